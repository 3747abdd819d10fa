"""Exported files match torch, also at other sizes than the example; a file that does not match is removed."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from small_segmenter import CLASSES, info, segmenter
from tiers import not_on_torch_2_6
from tolerances import relative_error
from torch import nn

from hamburger.errors import ExportError, InputError, OptionError
from hamburger.inference.export import Agreement, compare, export, generated_image
from hamburger.segmentation.model import create_model, save_weights

OTHER = (2, 3, 41, 70)


@not_on_torch_2_6
def test_onnx_export_matches_torch(tmp_path):
    # CD swaps its solve for products here; other contexts are exported in test_deploy_contexts.py
    net, path = segmenter("cd"), tmp_path / "deep" / "net.onnx"
    made = export(net, info(), path, format="onnx", size=65)
    assert made.dynamic == ("batch", "height", "width") and made.agreement.labels > 0.999
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]  # weights inside, nothing left over
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = torch.randn(OTHER)
    [actual] = session.run(["logits"], {"image": x.numpy()})
    assert relative_error(torch.from_numpy(actual), net(x)) < 1e-4


# none draws random numbers or loops, and TensorRT 10 supports all of them (docs/operators.md of onnx-tensorrt)
OPERATORS = {
    *("Abs", "Add", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Expand", "Less", "MatMul", "Mod", "Mul"),
    *("Pad", "Pow", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceSum", "Relu", "Reshape", "Resize", "Shape", "Slice"),
    *("Softmax", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
}


@not_on_torch_2_6
@pytest.mark.parametrize("context", ["nmf", "cd", pytest.param("vq", marks=pytest.mark.full)])
def test_onnx_files_have_one_opset_and_operators_of_tensorrt(context, tmp_path):
    static = context == "nmf"
    made = export(segmenter(context), info(), tmp_path / "net.onnx", format="onnx", size=64, static=static)
    model = onnx.load(made.path)
    assert made.dynamic == (() if static else ("batch", "height", "width"))
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
    assert {node.op_type for node in model.graph.node} <= OPERATORS


@pytest.mark.full
@pytest.mark.parametrize("context", ["nmf", "vq", "cd"])
def test_openvino_gives_the_values_of_torch(context, tmp_path):
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    net = segmenter(context)
    export(net, info(), tmp_path / "net.onnx", format="onnx", size=65)
    run = openvino.Core().compile_model(tmp_path / "net.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for shape in ((1, 3, 65, 65), OTHER):
        x = torch.randn(shape)
        assert relative_error(torch.from_numpy(run(x.numpy())[0]), net(x)) < 1e-4


def test_pt2_export_matches_torch(tmp_path):
    net, path = segmenter("cd"), tmp_path / "net.pt2"
    made = export(net, info(), path, format="pt2", size=65)
    assert made.dynamic == ("batch", "height", "width")
    extra = {"info.json": ""}
    program = torch.export.load(path, extra_files=extra)
    x = torch.randn(OTHER)
    assert relative_error(program.module()(x), net(x)) < 1e-6
    assert json.loads(json.loads(extra["info.json"])["classes"]) == list(CLASSES)


def test_onnx_file_contains_metadata(tmp_path):
    export(segmenter(None), info(), tmp_path / "net.onnx", format="onnx", size=32)
    metadata = {entry.key: json.loads(entry.value) for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert metadata["classes"] == list(CLASSES)
    assert metadata["mean"] == [0.5, 0.4, 0.3] and metadata["std"] == [0.2, 0.3, 0.25]


def test_export_compares_on_a_given_image(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 90, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    made = export(segmenter(None), info(), tmp_path / "n.pt2", format="pt2", size=48, image=tmp_path / "a.png")
    assert made.size == (48, 48)
    with pytest.raises(InputError, match=r"gone\.png"):
        export(segmenter(None), info(), tmp_path / "m.pt2", format="pt2", image=tmp_path / "gone.png")


class OfOneSize(nn.Module):
    """Flattens the map: works at the size it was made for and at no other."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(32 * 32, 32 * 32)

    def forward(self, x):
        return self.mix(x.flatten(2)).unflatten(2, (32, 32))


def test_fixed_size_network_has_a_dynamic_batch(tmp_path):
    made = export(OfOneSize().eval(), info(), tmp_path / "n.pt2", format="pt2", size=32)
    assert made.dynamic == ("batch",) and len(made.refusals) == 1


class Branching(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_failed_export_raises_one_line_and_leaves_no_file(format, tmp_path):
    with pytest.raises(ExportError, match=r"no .* file was left") as caught:
        export(Branching(), info(), tmp_path / f"n.{format}", format=format, size=32)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path):
    """torch's own writer of pt2 files ended the process."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        with pytest.raises(ExportError, match=r"^export: .*net\.pt2 cannot be written \(File too large\)$"):
            export(segmenter("cd"), info(), tmp_path / "net.pt2", format="pt2", size=64, static=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_terminated_export_leaves_no_file(tmp_path):
    net = create_model(num_classes=len(CLASSES), backbone="tiny", output_stride=4, head_options={"width": 8})
    save_weights(tmp_path / "net.safetensors", net, info())
    out = tmp_path / "out" / "net.pt2"
    process = subprocess.Popen(
        [sys.executable, "-m", "hamburger", "export", tmp_path / "net.safetensors", "--format", "pt2", "--out", out],
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list(out.parent.glob(f".{out.name}.*/")):
        time.sleep(0.01)
    process.terminate()
    assert process.communicate(timeout=60)[1] == "ham: interrupted\n" and process.returncode == 130
    assert not any(out.parent.iterdir())


def test_export_that_differs_from_torch_raises(tmp_path, monkeypatch):
    from hamburger.inference import export as graphs

    def bent(*args):
        run = graphs.write_pt2(*args)
        return lambda z: tuple(each + 0.05 * each.abs().max() for each in run(z))

    monkeypatch.setitem(graphs.WRITERS, "pt2", bent)
    (tmp_path / "n.pt2").write_bytes(b"the file of yesterday")
    with pytest.raises(ExportError, match="logits differ"):
        export(segmenter(None), info(), tmp_path / "n.pt2", format="pt2", size=32)
    assert (tmp_path / "n.pt2").read_bytes() == b"the file of yesterday"
    assert len(list(tmp_path.iterdir())) == 1


def test_nan_never_counts_as_agreement():
    net = segmenter(None)
    agreement = compare(net, lambda x: (net(x) * float("nan"),), [(torch.randn(1, 3, 16, 16),)] * 2)
    assert not agreement.within(1e9)
    assert Agreement(0.1, 1.0, 1.0).within(0.2) and not Agreement(0.1, 1.0, 0.99).within(0.2)


def test_invalid_export_options_raise(tmp_path):
    with pytest.raises(OptionError, match="did you mean 'onnx'"):
        export(segmenter(None), info(), tmp_path / "n", format="onx")
    with pytest.raises(OptionError, match="size"):
        export(segmenter(None), info(), tmp_path / "n", format="onnx", size=3)


def test_generated_image_has_contrast_and_is_reproducible():
    image = generated_image(50, 70)
    assert image.shape == (3, 50, 70) and image.dtype == torch.uint8
    assert torch.equal(image, generated_image(50, 70)) and not torch.equal(image, generated_image(50, 70, seed=1))
    assert image.float().std() > 30


def test_a_size_beyond_what_weights_may_demand_is_refused(tmp_path):
    with pytest.raises(OptionError, match="size must be at most 8192, got 1000000000"):
        export(segmenter(None), info(), tmp_path / "n.pt2", format="pt2", size=10**9)
