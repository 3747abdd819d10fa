"""Export a trained network as ONNX or pt2, compared with torch before the file gets its name."""

from __future__ import annotations

import io
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from hamburger.checkpoints.weights_file import MAX_SIDE, MIN_SIDE
from hamburger.errors import (
    ExportError,
    HamburgerError,
    OptionError,
    check_choice,
    check_count,
    check_positive,
    install_extra,
)
from hamburger.files import DISK_FULL, check_writable, encode_json, write_durably
from hamburger.inference.predict_files import read_image
from hamburger.training.image_files import normalise

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info


FREEDOMS = (("batch", "height", "width"), ("batch",), ())  # sets of dynamic axes, tried in this order


# -- how a task describes its network ----------------------------------------------------------------------------------


Outputs = tuple[Tensor, ...]


class OutputComparison(NamedTuple):
    """Two outputs compared: the largest difference of values, the largest value, and a flag per prediction that is
    the same in both."""

    difference: float
    largest: float
    same: Tensor


def compare_single_output(same: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Outputs, Outputs], OutputComparison]:
    """A comparison for networks with one output; `same` returns a flag per prediction that agrees."""

    def compare(ours: Outputs, theirs: Outputs) -> OutputComparison:
        [a], [b] = ours, theirs
        return OutputComparison(float((a - b).abs().max()), float(a.abs().max()), same(a, b))

    return compare


# whether the largest logit has the same index.   b k *spatial, twice
compare_classes = compare_single_output(lambda ours, theirs: ours.argmax(1) == theirs.argmax(1))


@dataclass(frozen=True)
class ExportSpec:
    """- `size`: default height and width of the example image
    - `inputs`, `outputs`: names; each input is b 3 h w, normalised with the mean and std of `Info`
    - `compare`: compares the outputs of torch and of the exported file
    - `values`, `agreement`: words for the report: what `difference` is of, and what `same` means
    - `predictions`: what the network makes one prediction for, in the plural; `least`: the share that must agree
    - `exported`: the module to export, from the network
    - `reference`: calls the network on the file's inputs; the file must return the same
    - `dynamic`: axes that may be dynamic, if the exporter can; `static_reason`: why the others cannot
    """

    size: tuple[int, int] = (513, 513)
    inputs: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("logits",)
    compare: Callable[[Outputs, Outputs], OutputComparison] = compare_classes
    values: str = "logits"
    agreement: str = "labels agree"
    predictions: str = "pixels"
    least: float = 0.999
    exported: Callable[[nn.Module], nn.Module] = lambda net: net
    reference: Callable[..., Any] = lambda net, *images: net(*images)
    dynamic: tuple[str, ...] = ("batch", "height", "width")
    static_reason: str = ""


SEGMENTATION_EXPORT = ExportSpec()


# -- the export --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of the exported file and of torch agree, over every input tried."""

    max_abs_difference: float
    largest_logit: float
    labels: float  # share of predictions that are the same
    spec: ExportSpec = SEGMENTATION_EXPORT

    def within(self, tolerance: float) -> bool:
        return self.max_abs_difference <= tolerance * self.largest_logit and self.labels >= self.spec.least

    def __str__(self) -> str:
        return (
            f"{self.spec.values} differ by at most {self.max_abs_difference:.2g} (the largest is "
            f"{self.largest_logit:.3g}), {self.spec.agreement} in {self.labels:.3%} of the {self.spec.predictions}"
        )


@dataclass(frozen=True)
class Exported:
    path: Path
    dynamic: tuple[str, ...]  # which of batch, height and width are dynamic
    size: tuple[int, int]
    agreement: Agreement
    refusals: tuple[str, ...]  # why not more axes are dynamic


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
    static: bool = False,
    spec: ExportSpec = SEGMENTATION_EXPORT,
) -> Exported:
    """Write `path`: from normalised images, `image` b 3 h w, to `logits`, b k h w, float32; or as `spec` says.

    `size`: height and width in pixels, or one number for both. With `static` the file takes one image of this size and
    no other; without it, as many axes are dynamic as the network allows. The file is compared with torch on `image` (or
    a generated one) before it gets its name: logits may differ by `tolerance` times the largest logit, labels in one
    pixel of a thousand. Classes, mean and std are stored in it.
    """
    size = spec.size if size is None else (size, size) if isinstance(size, int) else size
    check_choice("export", "format", format, WRITERS)
    for side in size:
        check_count("export", "size", side, least=MIN_SIDE, most=MAX_SIDE)
    check_positive("export", "tolerance", tolerance)
    check_writable(path)
    net = net.cpu().float().eval()
    pixels = generated_image(*size)
    if image is not None:
        pixels = F.interpolate(read_image(image)[None], size=size, mode="bilinear", antialias=True)[0]
    x = normalise(pixels, info.mean, info.std)
    tensors = len(spec.inputs)
    written = spec.exported(net).eval()
    refusals = [spec.static_reason] if spec.static_reason else []
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / f"model.{format}"
        allowed = [freedom for freedom in FREEDOMS if set(freedom) <= set(spec.dynamic)]
        for dynamic in allowed[-1:] if static else allowed:
            # from an example of one image the exporter would fix the batch size to one
            example = torch.stack([x, x.flip(-1)]) if "batch" in dynamic else x[None]
            try:
                with _silence():
                    run = WRITERS[format](written, _several(example, tensors), info, partial, dynamic, spec)
                    agreement = compare(net, run, [_several(z, tensors) for z in _inputs(x, dynamic)], spec)
            except HamburgerError:
                raise
            except Exception as refusal:
                if isinstance(refusal, OSError) and refusal.errno in DISK_FULL:
                    raise ExportError(f"export: {path} cannot be written ({refusal.strerror})") from None
                # exporters and runtimes raise many types
                refusals.append(_in_one_line(refusal))
                continue
            if agreement.within(tolerance):
                write_durably(path, partial.read_bytes())
                return Exported(path, dynamic, size, agreement, tuple(refusals))
            refusals.append(str(agreement))
    raise ExportError(
        f"export: no {format} file was left at {path}, since {refusals[-1]}; "
        f"try another --format, or another context when training"
    )


@torch.no_grad()
def compare(
    net: nn.Module, run: Run, inputs: list[tuple[Tensor, ...]], spec: ExportSpec = SEGMENTATION_EXPORT
) -> Agreement:
    judged = [spec.compare(outputs(spec.reference(net, *xs)), run(*xs)) for xs in inputs]
    differences = [each.difference for each in judged]
    worst = math.nan if any(map(math.isnan, differences)) else max(differences)  # max() may pass over a NaN
    same = torch.cat([each.same.flatten() for each in judged])
    if not len(same):
        raise ExportError(
            f"export: neither torch nor the file find any {spec.predictions} in the picture, so that nothing could be "
            "compared; give a photograph that has some by --image"
        )
    return Agreement(worst, max(each.largest for each in judged), float(same.double().mean()), spec)


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the exporters' progress messages and deprecation warnings."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _inputs(x: Tensor, dynamic: tuple[str, ...]) -> list[Tensor]:
    """The image, variants of it, and the other batch and image sizes that dynamic axes must allow."""
    inputs = [x[None], torch.stack([x, x.flip(-2), x.flip(-1)]) if "batch" in dynamic else x.flip(-1)[None]]
    if "height" in dynamic:
        inputs.append(x[None, :, : -(-x.shape[1] * 3 // 4), : -(-x.shape[2] * 7 // 8)])
    return inputs


def _several(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """As many inputs as the network takes: the same image, shifted 4 pixels further left each time."""
    return tuple(x.roll(-4 * i, -1) for i in range(count))


def _in_one_line(refusal: Exception) -> str:
    """The first line of the root cause: exporters' messages are pages long."""
    cause: BaseException = refusal
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0][:200]}" if lines else type(cause).__name__


# -- formats: each writer returns the file, read back as a function ----------------------------------------------------


Run = Callable[..., Outputs]
AXES = {"batch": 0, "height": 2, "width": 3}
INFO = "info.json"  # the metadata inside a pt2 file
OPSET = 18  # of ONNX: the lowest that every supported torch writes


def metadata(info: Info) -> dict[str, str]:
    """The metadata stored in the file; values are JSON, for formats that hold only strings."""
    values: dict[str, Any] = {
        "classes": list(info.classes),
        "palette": [list(colour) for colour in info.palette],
        "mean": list(info.mean),
        "std": list(info.std),
        "input": "RGB / 255, minus mean, divided by std; b 3 h w float32",
    }
    return {key: encode_json(value, ensure_ascii=False) for key, value in values.items()}


def write_onnx(
    net: nn.Module, xs: tuple[Tensor, ...], info: Info, path: Path, dynamic: tuple[str, ...], spec: ExportSpec
) -> Run:
    """xs: the example, each b 3 h w. The module itself is exported: only then do its layers know it is for ONNX."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError as missing:
        raise OptionError(f"export: ONNX needs {missing.name}; {install_extra('export')}") from None
    x = xs[0]
    # below the least size feature maps of one position would make a graph of their own
    least = {"batch": 1, "height": min(64, x.shape[2]), "width": min(64, x.shape[3])}
    shapes = {AXES[name]: Dim(name, min=least[name], max=8192) for name in dynamic}
    torch.onnx.export(
        net,
        xs,
        path,
        dynamo=True,
        opset_version=OPSET,
        dynamic_shapes=(shapes,) * len(xs) if shapes else None,
        input_names=list(spec.inputs),
        output_names=list(spec.outputs),
        external_data=False,
        verbose=False,
    )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, metadata(info))
    onnx.checker.check_model(model)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*zs: Tensor) -> Outputs:
        named = {name: z.numpy() for name, z in zip(spec.inputs, zs, strict=True)}
        return tuple(torch.from_numpy(each) for each in session.run(list(spec.outputs), named))

    return run


def write_pt2(
    net: nn.Module, xs: tuple[Tensor, ...], info: Info, path: Path, dynamic: tuple[str, ...], spec: ExportSpec
) -> Run:
    """xs: the example, each b 3 h w."""
    shapes = {AXES[name]: Dim.DYNAMIC for name in dynamic}
    program = torch.export.export(net, xs, dynamic_shapes=(shapes,) * len(xs) if shapes else None)
    content = io.BytesIO()  # torch's own writer ends the process where the disk is full
    torch.export.save(program, content, extra_files={INFO: encode_json(metadata(info))})
    path.write_bytes(content.getbuffer())
    module = torch.export.load(path).module()
    return lambda *zs: outputs(module(*zs))


def outputs(result: Tensor | Outputs) -> Outputs:
    return (result,) if isinstance(result, Tensor) else result


WRITERS: dict[str, Callable[..., Run]] = {"onnx": write_onnx, "pt2": write_pt2}


# -- a generated image, for comparing where the user gives none --------------------------------------------------------


def generated_image(height: int, width: int, *, seed: int = 0) -> Tensor:
    """Coloured discs over a gradient, with grain: edges, flat parts and texture.   ->   3 h w uint8"""
    generator = torch.Generator().manual_seed(seed)
    y = torch.linspace(0, 1, height).view(-1, 1)
    x = torch.linspace(0, 1, width).view(1, -1)
    image = torch.stack([y + 0 * x, 0 * y + x, 1 - (x + y) / 2])
    for _ in range(12):
        cy, cx, radius, *colour = torch.rand(6, generator=generator).tolist()
        inside = (y - cy) ** 2 + (x - cx) ** 2 < (0.05 + radius / 5) ** 2
        image = torch.where(inside, torch.tensor(colour).view(3, 1, 1), image)
    grain = 0.03 * torch.randn(3, height, width, generator=generator)
    return ((image + grain).clamp(0, 1) * 255).round().to(torch.uint8)
