"""What a ham inside any model computes: its atoms, and errors, convergence and gradient terms of its solve.

Layers are found by name. Everything runs in evaluation mode, from the layer's own first dictionary. s counts heads. A
ham along the channels factorises the transpose, so there d counts positions and n channels.

In the paper's model h^{k+1} = F(h^k, x), y = G(h^t) (Eqs. 10, 11), h is what a ham carries from step to step (NMF:
bases and codes; VQ and CD: bases), F is one step, and y is the reconstruction D C after the read-out. G therefore sees
x too: besides the terms of Eq. 12, the gradient has a direct term and, if h^0 is computed from x, a start term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.devices import to_double
from hamburger.errors import InputError, OptionError, ShapeError, check_count
from hamburger.hams.base import Factors, Ham
from hamburger.hams.decompose import Decomposition, solve_ham
from hamburger.inspect.activations import LayerActivations, evaluation_mode, get_layer, record_activations
from hamburger.layers.ham import HamLayer

# Below this fraction of |h| a move is float64 round-off, and its ratio to the previous one is meaningless.
ROUND_OFF = 1e-12
TAIL = 5  # the last moves, which define the rate: few, since a path often starts at another rate


class CodeMaps(NamedTuple):
    """The atoms of each head, sorted by falling energy.

    `maps`: b s r h w, the codes C of each atom over the positions.    `bases`: b s d r, the atoms D themselves.
    `energies`: b s r, the squared norm of each atom's part of D C; rescaling between D and C does not change it.
    """

    maps: Tensor
    bases: Tensor
    energies: Tensor


def list_ham_layers(model: nn.Module) -> dict[str, HamLayer]:
    """The hams inside the model, by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HamLayer)}


def code_maps(
    model: nn.Module, image: Tensor, *, layer: str | None = None, size: tuple[int, int] | None = None
) -> CodeMaps:
    """The codes that a ham of the model computes in evaluation.   image: 3 h w or b 3 h w, as the model takes it

    `layer` names a ham, or a module that contains exactly one; leave it out where the model contains exactly one.
    `size` is (h, w) of the ham's positions; leave it out where a module around the ham works on such a map. If the ham
    has up to w - 1 more positions, the last h w are the map: class tokens and the like come first. A ham that
    factorises along the channels has its maps in D, not in C; then `maps` is D and `bases` is C.
    """
    name, module = find_ham("code_maps", model, layer)
    image = image[None] if isinstance(image, Tensor) and image.dim() == 3 else image
    activations = record_activations("code_maps", model, image, [name], optional=outer_modules(name))
    return sort_atoms(module, activations[name].before, size or map_size(name, activations))


def sort_atoms(layer: HamLayer, x: Tensor, size: tuple[int, int]) -> CodeMaps:
    """The atoms of the solve of x on a map of that size; `code_maps` says what they are.   b d n"""
    bases, maps, _ = solve_layer(layer, x)
    if layer.axis != "spatial":
        bases, maps = maps.mT, bases.mT
    h, w = size
    if not 0 <= maps.shape[2] - h * w < w:
        raise ShapeError(
            f"code_maps: size {h} x {w} does not fit the {maps.shape[2]} positions of the ham; give (h, w) with as "
            f"many positions, or up to w - 1 fewer (tokens before the map are left out)"
        )
    energies = maps.square().sum(2) * bases.square().sum(1)  # (b s) r
    energies, order = energies.sort(dim=1, descending=True, stable=True)
    maps = maps.gather(1, order[:, :, None].expand_as(maps))
    bases = bases.gather(2, order[:, None].expand_as(bases))
    maps, bases, energies = (each.unflatten(0, (-1, layer.heads)) for each in (maps, bases, energies))
    return CodeMaps(maps[..., -h * w :].unflatten(3, (h, w)), bases, energies)


def prepare_solve(layer: HamLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices the layer factorises in evaluation, and its first bases.   b d *grid -> (b s) d n, (b s or 1) d r"""
    data = layer.fold(x)
    with evaluation_mode(layer.dictionary):  # in training mode it would draw random bases
        bases = layer.dictionary(data)
    assert bases is not None
    if isinstance(bases, str):  # "columns"
        with torch.no_grad():
            bases = layer.ham.select_columns(data)
    return data, bases


def solve_layer(layer: HamLayer, x: Tensor) -> Decomposition:
    """Decompose x as the layer does in evaluation.   b d *grid   ->   bases (b s) d r, codes (b s) r n"""
    data, bases = prepare_solve(layer, x)
    ham = layer.bind_ham(x.shape[2:])
    with torch.no_grad():
        out = solve_ham(data, ham, steps=layer.eval_steps, grad=layer.grad, bases=bases)
        return out._replace(codes=ham.expand_codes(out.codes))


def find_ham(call: str, model: nn.Module, layer: str | None) -> tuple[str, HamLayer]:
    """The ham that `layer` is or contains, with its full name; without `layer`, the model's only ham."""
    hams = list_ham_layers(model)
    if layer is not None:
        get_layer(call, model, layer)
        hams = {name: ham for name, ham in hams.items() if name == layer or not layer or name.startswith(f"{layer}.")}
    where = f"layer '{layer}'" if layer else "the model"
    if not hams:
        raise InputError(f"{call}: {where} contains no ham; name a Hamburger layer")
    # of the two hams of a dual Hamburger, the spatial one is the paper's
    matches = list(hams.items()) if len(hams) == 1 else [item for item in hams.items() if item[1].axis == "spatial"]
    if len(matches) != 1:
        raise OptionError(f"{call}: {where} contains several hams; name one with layer=: {', '.join(hams)}")
    return matches[0]


def outer_modules(name: str) -> list[str]:
    """The names of the modules around a layer, the innermost first; the last is the model itself."""
    return [name[:i] for i in reversed(range(len(name))) if name[i] == "."] + [""]


def map_size(name: str, activations: dict[str, LayerActivations]) -> tuple[int, int]:
    """(h, w) of the innermost surrounding map with as many positions as the ham."""
    n = activations[name].before.shape[2:].numel()
    for outer in outer_modules(name):
        before = activations[outer].before if outer in activations else torch.empty(0)
        if before.dim() == 4 and before.shape[2] * before.shape[3] == n:
            return before.shape[2], before.shape[3]
    raise ShapeError(
        f"code_maps: no module around '{name}' works on a map of its {n} positions; give size=(h, w) of the map "
        f"that the last positions form"
    )


# -- errors, convergence and gradients of a solve, in float64 ----------------------------------------------------------


@dataclass(frozen=True)
class Contraction:
    """How far each step moves the state."""

    moves: tuple[float, ...]  # |h^{k+1} - h^k|, k = 0 ... K-1
    size: float  # |h^K|

    @property
    def ratios(self) -> tuple[float, ...]:
        """|h^{k+2} - h^{k+1}| / |h^{k+1} - h^k|, up to round-off. Below 1 for every pair if F contracts."""
        return tuple(b / a for a, b in pairwise(self._above_round_off()))

    @property
    def rate(self) -> float | None:
        """Geometric mean of the last few ratios: the factor of linear convergence; None without two moves."""
        tail = self._above_round_off()[-TAIL:]
        return (tail[-1] / tail[0]) ** (1 / (len(tail) - 1)) if len(tail) > 1 else None

    def find_convergence_step(self, tol: float) -> int | None:
        """The first k with |h^{k+1} - h^k| <= tol |h^K|, or None."""
        return next((k for k, move in enumerate(self.moves) if move <= tol * self.size), None)

    def _above_round_off(self) -> tuple[float, ...]:
        return self.moves[: self.find_convergence_step(ROUND_OFF)]


class GradientSeries(NamedTuple):
    """Parts of dL/dX at the input of a ham; their sum is BPTT.

    `direct`: b s d n, through the read-out alone: the one-step gradient.    `terms`: b s t d n, Eq. 12 from the last
    step to the first.    `start`: b s d n, through the first codes.
    """

    direct: Tensor
    terms: Tensor
    start: Tensor

    def truncate(self, steps: int) -> Tensor:
        """The gradient through the last `steps` steps, `truncated:steps`.   ->   b s d n"""
        return self.direct + self.terms[:, :, :steps].sum(2)

    @property
    def total(self) -> Tensor:
        """BPTT.   ->   b s d n"""
        return self.truncate(self.terms.shape[2]) + self.start


def reconstruction_errors(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int | None = None
) -> Tensor:
    """|X - D C| / |X| after 0, 1, ... steps, each with its read-out.   ->   b s (steps + 1)

    `layer` is a ham, or a module that contains one; `steps` defaults to the layer's evaluation steps.
    """
    ham_layer, ham, x, bases = _prepare("reconstruction_errors", model, images, layer)
    steps = ham_layer.eval_steps if steps is None else steps
    check_count("reconstruction_errors", "steps", steps, least=0)
    with torch.no_grad():
        errors = [
            (x - ham.finish(x, factors)[2]).flatten(1).norm(dim=1) for factors in _solve_steps(ham, x, bases, steps)
        ]
    sizes = x.flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    return (torch.stack(errors, 1) / sizes[:, None]).unflatten(0, (-1, ham_layer.heads))


def convergence(
    model: nn.Module, images: Tensor, *, layer: str | None = None, steps: int = 100
) -> list[list[Contraction]]:
    """How far each of `steps` steps moves the factors, and the rate of decay: a list of heads for each image.

    If bases and codes can exchange scale (NMF), bases are kept at unit columns.
    """
    check_count("convergence", "steps", steps, least=1)
    ham_layer, ham, x, bases = _prepare("convergence", model, images, layer)
    path = _solve_steps(ham, x, bases, steps, unit_columns=ham.scale_free)
    flat = (torch.cat([factor.flatten(1) for factor in _present(factors)], 1) for factors in path)
    moves = []
    for before, after in pairwise(flat):
        moves.append((after - before).norm(dim=1))
    by_sample = zip(torch.stack(moves, 1).tolist(), after.norm(dim=1).tolist(), strict=True)
    contractions = [Contraction(tuple(each), size) for each, size in by_sample]
    return [contractions[i : i + ham_layer.heads] for i in range(0, len(contractions), ham_layer.heads)]


def gradient_series(
    model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], *, layer: str | None = None
) -> GradientSeries:
    """dL/dX of the ham's input, term by term; `loss` maps the model's output to one number.

    It does not depend on the gradient the layer trains with, and leaves weights and their gradients untouched.
    """
    ham_layer, ham, x, bases = _prepare("gradient_series", model, images, layer)
    check_count("gradient_series", "the layer's steps", ham_layer.eval_steps, least=1)

    def checked(output: Any) -> Tensor:
        value = loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"gradient_series: the loss must return one number (got {got})")
        if not bool(torch.isfinite(value)):
            raise InputError(f"gradient_series: the loss must be finite (got {value.item()})")
        return value

    cotangent = output_gradient(model, images, checked, ham_layer)
    if cotangent is None:
        raise InputError("gradient_series: the loss does not depend on the ham's output; give one that does")

    def reconstruct(x: Tensor, factors: Factors) -> tuple[Tensor]:
        return (ham.finish(x, factors)[2],)

    *path, last = _solve_steps(ham, x, bases, ham_layer.eval_steps)
    direct, *cotangents = _pull_back(reconstruct, x, last, [ham_layer.fold(cotangent).to(x)])
    terms = []
    for k, factors in reversed(list(enumerate(path))):
        one_step = ham.after(k).step
        term, *cotangents = _pull_back(lambda *args, step=one_step: _present(step(*args)), x, factors, cotangents)
        terms.append(term)
    (start,) = torch.func.vjp(lambda x: _present(ham.init(x, bases)), x)[1](tuple(cotangents))
    parts = (direct, torch.stack(terms, 1), start)
    return GradientSeries(*(part.unflatten(0, (-1, ham_layer.heads)) for part in parts))


def _solve_steps(ham: Ham, x: Tensor, bases: Tensor, steps: int, *, unit_columns: bool = False) -> Iterator[Factors]:
    """The factors before the first step and after each one."""
    factors = None
    for k in range(steps + 1):
        with torch.no_grad():
            factors = ham.init(x, bases) if factors is None else ham.after(k - 1).step(x, factors)
            if unit_columns and factors.codes is not None:
                norms = torch.linalg.vector_norm(factors.bases, dim=1, keepdim=True)
                factors = Factors(factors.bases / norms, factors.codes * norms.mT)
        yield factors


def _present(factors: Factors) -> tuple[Tensor, ...]:
    """The factors that the ham carries from step to step: VQ and CD carry no codes."""
    return tuple(factor for factor in factors if factor is not None)


def _pull_back(
    function: Callable[[Tensor, Factors], tuple[Tensor, ...]], x: Tensor, factors: Factors, cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Vector-Jacobian products of function(x, factors) with respect to x and to each factor."""
    pull = torch.func.vjp(lambda x, *state: function(x, Factors(*state)), x, *_present(factors))[1]
    return tuple(each.detach() for each in pull(tuple(cotangents)))


def _prepare(call: str, model: nn.Module, images: Tensor, layer: str | None) -> tuple[HamLayer, Ham, Tensor, Tensor]:
    """The layer, its ham, its input in float64, and its first bases.   ->   x: (b s) d n   bases: (b s) d r"""
    name, ham_layer = find_ham(call, model, layer)
    before = to_double(record_activations(call, model, images, [name])[name].before)
    x, bases = prepare_solve(ham_layer, before)
    return ham_layer, ham_layer.bind_ham(before.shape[2:]), x, bases.to(x).expand(len(x), -1, -1)


def output_gradient(model: nn.Module, images: Tensor, loss: Callable[[Any], Tensor], layer: HamLayer) -> Tensor | None:
    """dL/d(D C) of the ham's last call in evaluation mode; None if the loss does not depend on it.   ->   b d n"""
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: tuple[Any, ...], out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())  # also if every weight is frozen
        return leaves[-1]

    handle = layer.register_forward_hook(cut)
    try:
        with evaluation_mode(model), torch.enable_grad():
            value = loss(model(images))
            return torch.autograd.grad(value, leaves[-1:], allow_unused=True)[0] if value.requires_grad else None
    finally:
        handle.remove()
