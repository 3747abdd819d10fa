"""How a ham inside any model solves what it receives, by its layer's name: errors, convergence, its gradient by terms.

All in float64 and in evaluation, from the layer's own first dictionary. s counts heads; a ham along the channels
factorises the transpose, so d and n are positions and channels there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.errors import InputError, check_count
from hamburger.inspect.atoms import find_ham, fold_heads, prepare_solve
from hamburger.inspect.fixed_point import Contraction, FixedPointIteration, measure_contraction, term_gradients
from hamburger.inspect.hooks import evaluation_mode, get_layer, record_activations
from hamburger.layers.ham import HamLayer


class GradientSeries(NamedTuple):
    """Parts of dL/dX at the input of a ham, which sum up to BPTT.

    `direct`: b s d n, through the read-out alone: the one-step gradient.    `terms`: b s t d n, Eq. 12 from the last
    sweep to the first.    `start`: b s d n, through the first codes.
    """

    direct: Tensor
    terms: Tensor
    start: Tensor

    def kept(self, sweeps: int) -> Tensor:
        """The gradient that keeps the last `sweeps`: `truncated:sweeps`.   ->   b s d n"""
        return self.direct + self.terms[:, :, :sweeps].sum(2)

    @property
    def total(self) -> Tensor:
        """BPTT.   ->   b s d n"""
        return self.kept(self.terms.shape[2]) + self.start


def reconstruction_errors(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int | None = None
) -> Tensor:
    """|X - D C| / |X| after 0, 1, ... sweeps, each with its read-out.   ->   b s (steps + 1)

    `layer` is a ham, or a module that holds one; `steps` are those of the layer's evaluation unless given.
    """
    found, x, bases = _solve("reconstruction_errors", model, images, layer)
    steps = found.eval_steps if steps is None else steps
    check_count("reconstruction_errors", "steps", steps, least=0)
    with torch.no_grad():
        factors = found.ham.init(x, bases)
        errors = []
        for step in range(steps + 1):
            factors = found.ham.step(x, factors) if step else factors
            errors.append((x - factors.bases @ found.ham.readout(x, factors)).flatten(1).norm(dim=1))
    sizes = x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    return (torch.stack(errors, 1) / sizes[:, None]).unflatten(0, (-1, found.heads))


def convergence(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int = 100
) -> list[list[Contraction]]:
    """How far each of `steps` sweeps moves the factors, and at which rate that falls: one for each image and head.

    Where bases and codes can trade scale (NMF), bases are held at unit columns, as in `propositions`.
    """
    found, x, bases = _solve("convergence", model, images, layer)
    ham = found.ham
    moved = [
        measure_contraction(x[[i]], ham, bases[[i]], steps, unit_columns=ham.scale_free)  # one sample at a time
        for i in range(len(x))
    ]
    return [moved[i : i + found.heads] for i in range(0, len(moved), found.heads)]


def gradient_series(
    model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], *, layer: str | None = None
) -> GradientSeries:
    """dL/dX of the ham's input, term by term; `loss` takes what the model returns and gives one number.

    Whatever gradient the layer trains with; the model's weights and their gradients are not touched.
    """
    found, x, bases = _solve("gradient_series", model, images, layer)
    check_count("gradient_series", "the layer's sweeps", found.eval_steps, least=1)
    pull = fold_heads(found, _cotangent(model, images, loss, found)).to(x)
    parts = [
        term_gradients(FixedPointIteration(x[[i]], found.ham, bases[[i]]), found.eval_steps, pull[i])
        for i in range(len(x))
    ]
    made = (torch.stack(each).unflatten(-1, x.shape[1:]) for each in zip(*parts, strict=True))
    return GradientSeries(*(each.unflatten(0, (-1, found.heads)) for each in made))


def _solve(call: str, model: nn.Module, images: Tensor, layer: str | None) -> tuple[HamLayer, Tensor, Tensor]:
    """The ham, what it receives, and where it starts.   ->   x: (b s) d n   bases: (b s) d r"""
    name = find_ham(model, layer, call=call)
    found = get_layer(call, model, name)
    assert isinstance(found, HamLayer)
    x, bases = prepare_solve(found, record_activations(call, model, images, [name])[name].before.double())
    return found, x, bases.to(x).expand(len(x), -1, -1)


def _cotangent(model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], layer: HamLayer) -> Tensor:
    """dL/d(D C) of the ham's last call.   ->   b d n"""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: tuple[Any, ...], out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())  # also where every weight is frozen
        return leaves[-1]

    handle = layer.register_forward_hook(cut)
    try:
        with evaluation_mode(model), torch.enable_grad():
            value = loss(model(images))
            if not isinstance(value, Tensor) or value.numel() != 1:
                came = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InputError(f"gradient_series: the loss must give one number, got {came}")
            if not bool(torch.isfinite(value)):
                raise InputError(f"gradient_series: the loss must be finite, got {value.item()}")
            (pull,) = torch.autograd.grad(value, leaves[-1:], allow_unused=True) if value.requires_grad else (None,)
    finally:
        handle.remove()
    if pull is None:
        raise InputError("gradient_series: the loss does not depend on what the ham returns; give one that does")
    return pull
