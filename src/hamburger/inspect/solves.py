"""Reconstruction errors, convergence and gradient terms of a ham inside any model, by the layer's name.

Everything runs in float64 and evaluation mode, from the layer's own first dictionary. s counts heads. A ham along the
channels factorises the transpose, so there d counts positions and n channels.
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
    """Parts of dL/dX at the input of a ham; their sum is BPTT.

    `direct`: b s d n, through the read-out alone: the one-step gradient.    `terms`: b s t d n, Eq. 12 from the last
    step to the first.    `start`: b s d n, through the first codes.
    """

    direct: Tensor
    terms: Tensor
    start: Tensor

    def kept(self, steps: int) -> Tensor:
        """The gradient through the last `steps` steps, `truncated:steps`.   ->   b s d n"""
        return self.direct + self.terms[:, :, :steps].sum(2)

    @property
    def total(self) -> Tensor:
        """BPTT.   ->   b s d n"""
        return self.kept(self.terms.shape[2]) + self.start


def reconstruction_errors(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int | None = None
) -> Tensor:
    """|X - D C| / |X| after 0, 1, ... steps, each with its read-out.   ->   b s (steps + 1)

    `layer` is a ham, or a module that contains one; `steps` defaults to the layer's evaluation steps.
    """
    ham_layer, x, bases = _prepare("reconstruction_errors", model, images, layer)
    steps = ham_layer.eval_steps if steps is None else steps
    check_count("reconstruction_errors", "steps", steps, least=0)
    with torch.no_grad():
        factors = ham_layer.ham.init(x, bases)
        errors = []
        for step in range(steps + 1):
            factors = ham_layer.ham.step(x, factors) if step else factors
            errors.append((x - factors.bases @ ham_layer.ham.readout(x, factors)).flatten(1).norm(dim=1))
    sizes = x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    return (torch.stack(errors, 1) / sizes[:, None]).unflatten(0, (-1, ham_layer.heads))


def convergence(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int = 100
) -> list[list[Contraction]]:
    """How far each of `steps` steps moves the factors, and the rate of decay: a list of heads for each image.

    If bases and codes can exchange scale (NMF), bases are kept at unit columns.
    """
    ham_layer, x, bases = _prepare("convergence", model, images, layer)
    ham = ham_layer.ham
    moves = [
        measure_contraction(x[[i]], ham, bases[[i]], steps, unit_columns=ham.scale_free)  # one sample at a time
        for i in range(len(x))
    ]
    return [moves[i : i + ham_layer.heads] for i in range(0, len(moves), ham_layer.heads)]


def gradient_series(
    model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], *, layer: str | None = None
) -> GradientSeries:
    """dL/dX of the ham's input, term by term; `loss` maps the model's output to one number.

    It does not depend on the gradient the layer trains with, and leaves weights and their gradients untouched.
    """
    ham_layer, x, bases = _prepare("gradient_series", model, images, layer)
    check_count("gradient_series", "the layer's steps", ham_layer.eval_steps, least=1)
    cotangent = fold_heads(ham_layer, _cotangent(model, images, loss, ham_layer)).to(x)
    parts = [
        term_gradients(FixedPointIteration(x[[i]], ham_layer.ham, bases[[i]]), ham_layer.eval_steps, cotangent[i])
        for i in range(len(x))
    ]
    stacked = (torch.stack(part).unflatten(-1, x.shape[1:]) for part in zip(*parts, strict=True))
    return GradientSeries(*(part.unflatten(0, (-1, ham_layer.heads)) for part in stacked))


def _prepare(call: str, model: nn.Module, images: Tensor, layer: str | None) -> tuple[HamLayer, Tensor, Tensor]:
    """The ham, its input in float64, and its first bases.   ->   x: (b s) d n   bases: (b s) d r"""
    name = find_ham(model, layer, call=call)
    ham_layer = get_layer(call, model, name)
    assert isinstance(ham_layer, HamLayer)
    x, bases = prepare_solve(ham_layer, record_activations(call, model, images, [name])[name].before.double())
    return ham_layer, x, bases.to(x).expand(len(x), -1, -1)


def _cotangent(model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], layer: HamLayer) -> Tensor:
    """dL/d(D C) of the ham's last call.   ->   b d n"""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: tuple[Any, ...], out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())  # also if every weight is frozen
        return leaves[-1]

    handle = layer.register_forward_hook(cut)
    try:
        with evaluation_mode(model), torch.enable_grad():
            value = loss(model(images))
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise InputError(f"gradient_series: the loss must return one number (got {got})")
            if not bool(torch.isfinite(value)):
                raise InputError(f"gradient_series: the loss must be finite (got {value.item()})")
            (cotangent,) = (
                torch.autograd.grad(value, leaves[-1:], allow_unused=True) if value.requires_grad else (None,)
            )
    finally:
        handle.remove()
    if cotangent is None:
        raise InputError("gradient_series: the loss does not depend on the ham's output; give one that does")
    return cotangent
