"""Networks written as graphs, and read back as functions: ONNX by onnxruntime, pt2 by torch.export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from hamburger.engine.graph import Graph, Outputs
from hamburger.errors import OptionError

if TYPE_CHECKING:
    from hamburger.models.info import Info

Run = Callable[..., Outputs]
Write = Callable[..., Run]
AXES = {"batch": 0, "height": 2, "width": 3}
INFO = "info.json"  # the metadata inside a pt2 file


def metadata(info: Info) -> dict[str, str]:
    """What a user of the file needs beside it; values are JSON, for formats that hold strings only."""
    values: dict[str, Any] = {
        "classes": list(info.classes),
        "palette": [list(colour) for colour in info.palette],
        "mean": list(info.mean),
        "std": list(info.std),
        "input": "RGB / 255, minus mean, divided by std; b 3 h w float32",
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def write_onnx(
    net: nn.Module, xs: tuple[Tensor, ...], info: Info, path: Path, dynamic: tuple[str, ...], graph: Graph
) -> Run:
    """xs: the example, each b 3 h w. The module itself is exported: only then do its layers know it is for ONNX."""
    onnx, onnxruntime = _onnx()
    x = xs[0]
    # below the least size feature maps of one position would make a graph of their own
    least = {"batch": 1, "height": min(64, x.shape[2]), "width": min(64, x.shape[3])}
    shapes = {AXES[name]: Dim(name, min=least[name], max=8192) for name in dynamic}
    torch.onnx.export(
        net,
        xs,
        path,
        dynamo=True,
        dynamic_shapes=(shapes,) * len(xs) if shapes else None,
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        external_data=False,
        verbose=False,
    )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, metadata(info))
    onnx.checker.check_model(model)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*zs: Tensor) -> Outputs:
        named = {name: z.numpy() for name, z in zip(graph.inputs, zs, strict=True)}
        return tuple(torch.from_numpy(each) for each in session.run(list(graph.outputs), named))

    return run


def write_pt2(
    net: nn.Module, xs: tuple[Tensor, ...], info: Info, path: Path, dynamic: tuple[str, ...], graph: Graph
) -> Run:
    """xs: the example, each b 3 h w."""
    shapes = {AXES[name]: Dim.DYNAMIC for name in dynamic}
    program = torch.export.export(net, xs, dynamic_shapes=(shapes,) * len(xs) if shapes else None)
    torch.export.save(program, path, extra_files={INFO: json.dumps(metadata(info))})
    module = torch.export.load(path).module()
    return lambda *zs: outputs(module(*zs))


def outputs(answer: Tensor | Outputs) -> Outputs:
    return (answer,) if isinstance(answer, Tensor) else answer


def _onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ModuleNotFoundError as missing:
        raise OptionError(f"export: ONNX needs {missing.name}: pip install 'hamburger[export]'") from None
    return onnx, onnxruntime


WRITERS: dict[str, Write] = {"onnx": write_onnx, "pt2": write_pt2}
