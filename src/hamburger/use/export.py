"""A trained network as one ONNX or pt2 file, handed over only after it has given what torch gives."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.data.normalise import normalise
from hamburger.engine.graph import PIXELS, Graph
from hamburger.errors import ExportError, HamburgerError, check_choice, check_count, check_positive
from hamburger.files import check_writable
from hamburger.use.graphs import WRITERS, Run, outputs
from hamburger.use.images import read_image
from hamburger.use.scene import scene

if TYPE_CHECKING:
    from hamburger.models.info import Info

FREEDOMS = (("batch", "height", "width"), ("batch",), ())  # tried in this order, as far as the graph allows them


@dataclass(frozen=True)
class Agreement:
    """A graph beside torch, over every input tried."""

    max_abs_difference: float
    largest_logit: float
    labels: float  # share of answers that are the same
    graph: Graph = PIXELS

    def within(self, tolerance: float) -> bool:
        return self.max_abs_difference <= tolerance * self.largest_logit and self.labels >= self.graph.least

    def __str__(self) -> str:
        return (
            f"{self.graph.differ} differ by at most {self.max_abs_difference:.2g} (the largest is "
            f"{self.largest_logit:.3g}), {self.graph.alike} in {self.labels:.3%} of the {self.graph.answer}"
        )


@dataclass(frozen=True)
class Exported:
    path: Path
    dynamic: tuple[str, ...]  # which of batch, height and width may be any
    size: tuple[int, int]
    agreement: Agreement
    refusals: tuple[str, ...]  # why not more of them


@torch.no_grad()  # a graph that switches gradients off in its middle cannot be saved
def export(
    net: nn.Module,
    info: Info,
    path: Path,
    *,
    format: str,
    size: int | tuple[int, int] | None = None,
    image: Path | None = None,
    tolerance: float = 1e-3,
    graph: Graph = PIXELS,
) -> Exported:
    """Write `path`: from normalised images, `image` b 3 h w, to `logits`, b k h w, float32; or as `graph` says.

    `size`: height and width in pixels, or one number for both. The file is compared with torch on a photograph (or a
    generated picture) before it gets its name: logits may differ by `tolerance` times the largest logit, labels in one
    pixel of a thousand. Classes, mean and std lie inside.
    """
    size = graph.size if size is None else (size, size) if isinstance(size, int) else size
    check_choice("export", "format", format, WRITERS)
    for side in size:
        check_count("export", "size", side, least=16)
    check_positive("export", "tolerance", tolerance)
    check_writable(path)
    net = net.cpu().float().eval()
    picture = scene(*size) if image is None else _resized(read_image(image), size)
    x = normalise(picture, info.mean, info.std)
    tensors = len(graph.inputs)
    written = graph.written(net).eval()
    refusals = [graph.fixed] if graph.fixed else []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / f"model.{format}"
        for dynamic in (freedom for freedom in FREEDOMS if set(freedom) <= set(graph.free)):
            # an example of one would be taken to mean that the batch is always one
            example = torch.stack([x, x.flip(-1)]) if "batch" in dynamic else x[None]
            try:
                with _silence():
                    run = WRITERS[format](written, _several(example, tensors), info, partial, dynamic, graph)
                    agreement = compare(net, run, [_several(z, tensors) for z in _inputs(x, dynamic)], graph)
            except HamburgerError:
                raise
            except Exception as refusal:  # exporters and runtimes have many kinds of their own
                refusals.append(_in_one_line(refusal))
                continue
            if agreement.within(tolerance):
                _publish(partial, path)
                return Exported(path, dynamic, size, agreement, tuple(refusals))
            refusals.append(str(agreement))
    raise ExportError(
        f"export: no {format} file was left at {path}, since {refusals[-1]}; "
        f"try another --format, or another context when training"
    )


@torch.no_grad()
def compare(net: nn.Module, run: Run, inputs: list[tuple[Tensor, ...]], graph: Graph = PIXELS) -> Agreement:
    judged = [graph.judge(outputs(graph.asked(net, *xs)), run(*xs)) for xs in inputs]
    differences = [each.difference for each in judged]
    worst = math.nan if any(map(math.isnan, differences)) else max(differences)  # max() may pass over a NaN
    same = torch.cat([each.same.flatten() for each in judged])
    if not len(same):
        raise ExportError(
            f"export: neither torch nor the file find any {graph.answer} in the picture, so that nothing could be "
            "compared; give a photograph that has some by --image"
        )
    return Agreement(worst, max(each.largest for each in judged), float(same.double().mean()), graph)


@contextmanager
def _silence() -> Iterator[None]:
    """The exporters talk of their own progress and deprecations."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


def _inputs(x: Tensor, dynamic: tuple[str, ...]) -> list[Tensor]:
    """The picture itself, others, and what must work too if the axes are as free as they are said to be."""
    inputs = [x[None], torch.stack([x, x.flip(-2), x.flip(-1)]) if "batch" in dynamic else x.flip(-1)[None]]
    if "height" in dynamic:
        inputs.append(x[None, :, : -(-x.shape[1] * 3 // 4), : -(-x.shape[2] * 7 // 8)])
    return inputs


def _several(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """As many images as the network takes: the same one, moved a little further to the left each time."""
    return tuple(x.roll(-4 * i, -1) for i in range(count))


def _resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    """3 h w uint8   ->   3 *size"""
    return F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]


def _publish(partial: Path, path: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.chmod(0o644)
    partial.replace(path)


def _in_one_line(refusal: Exception) -> str:
    """Exporters write pages; the cause stands at the end of the chain, in its first line."""
    cause: BaseException = refusal
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0][:200]}" if lines else type(cause).__name__
