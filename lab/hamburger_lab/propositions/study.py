"""Run the measurements on section 2.3 of the paper over inputs, hams, temperatures and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.environment import describe_environment
from hamburger.files import encode_json
from hamburger.hams import CD, NMF, VQ, Ham
from hamburger.inspect import Contraction
from hamburger_lab.propositions.fixed_point import (
    GradientTerms,
    jacobian_spectrum,
    measure_contraction,
    measure_gradient_terms,
)
from hamburger_lab.propositions.gradients import DENSE, REFERENCE, Gradients, compare_gradients


def low_rank(seed: int, *, d: int = 16, n: int = 64, rank: int = 4, noise: float = 0.05) -> Tensor:
    """Return a non-negative matrix of low rank plus |normal| noise.   ->   1 d n, float64"""
    draw = torch.Generator().manual_seed(seed)
    # the exponent makes most entries small and a few large, as in real features
    parts = torch.rand(1, d, rank, generator=draw, dtype=torch.float64) ** 3
    mix = torch.rand(1, rank, n, generator=draw, dtype=torch.float64) ** 3
    deviation = torch.randn(1, d, n, generator=draw, dtype=torch.float64).abs()
    return parts @ mix + noise * deviation


def feature_map(seed: int, *, d: int = 16, side: int = 8) -> Tensor:
    """Return ReLU features of a generated image under a fixed random conv net.   ->   1 d (side * side), float64

    Two strided convolutions, each normalised per channel and followed by a ReLU: about half the entries are zero and
    neighbouring positions are similar, as in the features that a Hamburger gets inside a network.
    """
    weights = torch.Generator().manual_seed(2**16)  # the same net for every image
    z = generate_image(seed, side=4 * side)
    for channels in (d, d):
        fan_in = 9 * z.shape[1]
        kernel = torch.randn(channels, z.shape[1], 3, 3, generator=weights, dtype=z.dtype) * (2 / fan_in) ** 0.5
        z = F.conv2d(z, kernel, stride=2, padding=1)
        z = ((z - z.mean((2, 3), keepdim=True)) / z.std((2, 3), keepdim=True)).relu()
    return z.flatten(2)


def generate_image(seed: int, *, side: int) -> Tensor:
    """Return a shaded background with coloured disks, stripes and noise.   ->   1 3 side side, in [0, 1]"""
    draw = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    axis = torch.linspace(0, 1, side, dtype=torch.float64)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    tilt = uniform(3, 2, 1, 1)
    image = 0.5 * (tilt[:, 0] * down + tilt[:, 1] * across)
    for _ in range(5):
        middle, radius, colour = uniform(2), 0.1 + 0.2 * uniform(1), uniform(3, 1, 1)
        inside = (down - middle[0]) ** 2 + (across - middle[1]) ** 2 < radius**2
        image = torch.where(inside, colour, image)
    frequency, phase, left = 6 + 6 * uniform(1), 6.28 * uniform(1), 0.6 * uniform(1)
    stripes = 0.5 + 0.5 * torch.sin(6.28 * frequency * down + phase)
    image = torch.where((across > left) & (across < left + 0.25), stripes * uniform(3, 1, 1), image)
    return (image + 0.02 * uniform(3, side, side)).clamp(0, 1)[None]


# -- the study: one row per solve; None means "does not apply" --------------------------------------------------------

INPUTS: dict[str, Callable[[int], Tensor]] = {"low-rank": low_rank, "feature map": feature_map}
RANK = 4


@dataclass(frozen=True)
class StudyProtocol:
    """What is measured. Each ham is also measured at a largest K, `final_steps_*`; NMF converges more slowly."""

    seeds: int = 5
    temperatures: tuple[float, ...] = (1.0, 0.1, 0.01)
    steps: tuple[int, ...] = (1, 6, 50, 200)
    final_steps_nmf: int = 2000
    final_steps_soft: int = 400  # VQ and CD
    term_steps: int = 50
    convergence_tol: float = 1e-10  # converged: a step changes h by less than this fraction of |h|
    one_tol: float = 1e-6  # an eigenvalue is "at 1" within this; NMF's eps = 1e-6 moves them by about 1e-7

    def final_steps(self, ham: Ham) -> int:
        """Return the largest K of a ham."""
        return self.final_steps_nmf if ham.scale_free else self.final_steps_soft

    def hams(self) -> list[Ham]:
        soft = [kind(RANK, temperature=t) for kind in (VQ, CD) for t in self.temperatures]
        return [NMF(RANK), *soft]


QUICK = StudyProtocol(
    seeds=1, temperatures=(1.0, 0.01), steps=(1, 6), final_steps_nmf=30, final_steps_soft=20, term_steps=6
)


def run_study(
    protocol: StudyProtocol, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Run all cases of the protocol; return {"protocol", "environment", "rows", "curves"}, ready for JSON."""
    cases = [(name, ham, seed) for name in INPUTS for ham in protocol.hams() for seed in range(protocol.seeds)]
    rows, curves = [], []
    for done, (name, ham, seed) in enumerate(cases):
        progress(done, len(cases))
        row, curve = measure_solve(INPUTS[name](seed), ham, seed, protocol)
        case = {
            "input": name,
            "ham": type(ham).__name__,
            "temperature": getattr(ham, "temperature", None),
            "seed": seed,
        }
        rows.append(case | row)
        curves.append(case | curve)
    progress(len(cases), len(cases))
    sizes = {"rank": RANK, "shape": list(low_rank(0).shape), "dtype": "float64"}
    return _rounded(
        {
            "protocol": asdict(protocol) | sizes,
            "environment": describe_environment("cpu"),
            "rows": rows,
            "curves": curves,
        }
    )


def measure_solve(x: Tensor, ham: Ham, seed: int, protocol: StudyProtocol) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of one solve and the curves of the figure.   x: 1 d n"""
    draw = torch.Generator().manual_seed(seed)
    bases = ham.draw(1, x.shape[1], like=x, generator=draw)
    cotangent = torch.randn(x.shape, generator=draw, dtype=x.dtype)
    cotangent = cotangent / cotangent.norm()
    final = protocol.final_steps(ham)
    free = ham.scale_free

    contraction = measure_contraction(x, ham, bases, final, unit_columns=free)
    terms = measure_gradient_terms(x, ham, bases, protocol.term_steps)
    row = dict(_contraction_fields(contraction, protocol)) | dict(_term_fields(terms))
    for label, steps in (("early", min(6, final)), ("final", final)):
        here = jacobian_spectrum(x, ham, bases, steps)
        row |= {f"radius {label}": here.radius, f"norm {label}": here.operator_norm}
    row["at one"] = here.at_one(protocol.one_tol)
    if free:
        row["radius unit columns"] = jacobian_spectrum(x, ham, bases, final, unit_columns=True).radius
        row["rate raw"] = measure_contraction(x, ham, bases, final).rate
    with torch.no_grad():
        final_bases = ham.solve(x, ham.init(x, bases), final).bases
    row["rank of bases"] = int(torch.linalg.matrix_rank(final_bases, rtol=1e-6))
    grid = [*(k for k in protocol.steps if k < final), final]
    compared = compare_gradients(x, ham, bases, grid, cotangent=cotangent)
    for at in compared:
        row |= dict(_gradient_fields("final" if at.steps == final else str(at.steps), at))
    curve = {
        "moves": [move / contraction.size for move in contraction.moves[:120]],
        "terms": list(terms.norms),
        "steps": grid,
        "one-step": [at.cosines["one-step"] for at in compared],
        "truncated:1": [at.cosines["truncated:1"] for at in compared],
    }
    return row, curve


def _contraction_fields(contraction: Contraction, protocol: StudyProtocol) -> Iterator[tuple[str, Any]]:
    yield "rate", contraction.rate
    yield "worst ratio", max(contraction.ratios, default=None)
    yield "converged at", contraction.find_convergence_step(protocol.convergence_tol)
    yield "last update", contraction.moves[-1] / contraction.size


def _term_fields(terms: GradientTerms) -> Iterator[tuple[str, Any]]:
    l_h, l_x, l_g = terms.lipschitz
    yield from (("L_h", l_h), ("L_x", l_x), ("L_G", l_g))
    yield "bound", terms.bound
    yield "through steps", terms.through_steps
    yield "dy/dh0", terms.by_start
    yield "direct", terms.direct
    yield "start", terms.start
    yield "first term", terms.norms[0]
    yield "largest term at", terms.norms.index(max(terms.norms))
    yield "last over first", terms.norms[-1] / terms.norms[0]
    yield "envelope", terms.envelope


def _gradient_fields(label: str, at: Gradients) -> Iterator[tuple[str, Any]]:
    reference = at.norms[REFERENCE]
    yield f"bptt norm K={label}", reference
    for name in ("one-step", "truncated:1", "implicit", DENSE):
        yield f"{name} cosine K={label}", at.cosines.get(name)
        yield f"{name} norm K={label}", at.norms[name] / reference if name in at.norms else None
        yield f"{name} distance K={label}", at.distances.get(name)
    yield f"implicit refused K={label}", at.refusal.message if at.refusal else None
    yield f"implicit drift K={label}", at.refusal.drift if at.refusal else None


def as_json(result: dict[str, Any]) -> str:
    """Return the JSON with one line per row and curve, so that a diff shows which solve changed."""
    head = [f"{encode_json(key)}: {encode_json(result[key])}" for key in ("protocol", "environment")]
    lists = [
        f"{encode_json(key)}: [\n" + ",\n".join(encode_json(entry) for entry in result[key]) + "\n]"
        for key in ("rows", "curves")
    ]
    return "{\n" + ",\n".join(head + lists) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Round to five digits: the spread over seeds is larger, and the file stays readable."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value - 1) > 1e-3 else round(value, 9)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(entry) for entry in value]
    return value
