"""Exported stereo networks: two images in, disparities out, compared with torch on generated planes."""

from __future__ import annotations

import json

import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hamburger.checkpoints.weights_file import Info
from hamburger.cli.app import app
from hamburger.errors import ExportError, OptionError
from hamburger.inference.export import export
from hamburger.stereo.data import create_stereo_set
from hamburger.stereo.model import create_stereo
from hamburger.stereo.task import STEREO
from hamburger.training.image_files import normalise

SIZE = (40, 72)  # neither side a multiple of 16
SMALL = {"width": 16, "groups": 4, "volume_width": 4, "max_disparity": 32, "gate": "one"}
NETWORKS = {
    "none": {"volume": "concatenation"},
    "efficient": {"context": "efficient"},
    "nmf": {"context": "nmf", "context_options": {"rank": 4}},
    "sa-flash": {"context": "sa", "context_options": {"heads": 4}},
    "volume": {"context": "nmf", "context_options": {"rank": 4}, "place": "volume"},
}


def network(name):
    """Untrained, but with calibrated norms and costs that are far apart."""
    torch.manual_seed(0)
    net = create_stereo(**SMALL, **NETWORKS[name])
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(*pairs())
        net.aggregation.out[1].weight *= 20
    return net.eval()


def pairs():
    """Rendered planes as the network takes them.   ->   3 3 h w, 3 3 h w"""
    scenes = create_stereo_set("planes", "val", height=SIZE[0], width=SIZE[1], max_disparity=24, length=3)
    chosen = [scenes[i] for i in range(3)]
    return tuple(torch.stack([normalise(getattr(each, side)) for each in chosen]) for side in ("left", "right"))


def run_file(path, left, right):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(left, right)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [actual] = session.run(["disparity"], {"left": left.numpy(), "right": right.numpy()})
    return torch.from_numpy(actual)


@pytest.mark.parametrize(
    ("name", "format"),
    # the volume as ONNX is below
    [
        ("none", "pt2"),
        *(
            pytest.param(name, format, marks=pytest.mark.full)
            for name, format in [("efficient", "onnx"), ("nmf", "onnx"), ("sa-flash", "pt2"), ("volume", "pt2")]
        ),
    ],
)
def test_exported_files_match_torch(name, format, tmp_path):
    net, path = network(name), tmp_path / f"net.{format}"
    made = export(net, Info(), path, format=format, size=SIZE, spec=STEREO.export_spec(Info()))
    assert made.dynamic == ("batch",) and made.size == SIZE and made.agreement.labels == 1
    left, right = pairs()
    with torch.no_grad():
        ours = net(left, right)
    assert ours.std() > 1  # pixels
    assert (run_file(path, left, right) - ours).abs().max() < 1e-3
    assert (net(right, left) - ours).abs().max() > 1  # or the inputs could change places


@pytest.mark.full
def test_the_command_reports_fixed_sizes_and_the_file_enforces_them(tmp_path):
    STEREO.save(tmp_path / "best.safetensors", network("volume"), Info())
    made = CliRunner().invoke(
        app,
        ["export", str(tmp_path), "--format", "onnx", "--out", str(tmp_path / "net.onnx"), "--size", "32,48"],
    )
    assert made.exit_code == 0, made.output
    assert "height is fixed at 32: " in made.output and "width is fixed at 48: " in made.output
    assert "dynamic axes: batch\n" in made.output and "--size height,width" in made.output
    assert "disparities differ by at most" in made.output
    assert "within 0.05 px of each other in 100.000% of the pixels" in made.output
    net, _ = STEREO.load(tmp_path / "best.safetensors")
    left, right = torch.randn(2, 2, 3, 32, 48)
    with torch.no_grad():
        assert (run_file(tmp_path / "net.onnx", left, right) - net(left, right)).abs().max() < 1e-3
    with pytest.raises(Exception, match="invalid dimensions"):
        run_file(tmp_path / "net.onnx", *pairs())
    metadata = onnxruntime.InferenceSession(tmp_path / "net.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(metadata["std"]) == list(Info().std)


def test_an_export_with_wrong_disparities_raises(tmp_path, monkeypatch):
    from hamburger.inference import export as graphs

    monkeypatch.setitem(graphs.WRITERS, "pt2", lambda net, *args: lambda *xs: (net(*xs) + 0.1,))
    with pytest.raises(ExportError, match=r"disparities differ by at most 0\.1 .*, within 0\.05 px .* in 0\.000%"):
        export(
            network("none"),
            Info(),
            tmp_path / "n.pt2",
            format="pt2",
            size=SIZE,
            spec=STEREO.export_spec(Info()),
            tolerance=0.5,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--size", "8,64"), r"size must be a whole number of at least 16, got 8"),
        (("--size", "64,64,64"), r"one side, or height,width .got '64,64,64'"),
        (("--size", "64x64"), r"the sides of --size must be comma-separated whole numbers \(got '64x64'\)"),
        (("--format", "tflite"), r"no format 'tflite'"),
    ],
)
def test_invalid_command_options_raise(options, message, tmp_path):
    STEREO.save(tmp_path / "best.safetensors", network("none"), Info())
    chosen = {"--format": "pt2", "--out": str(tmp_path / "n.pt2")} | dict([options])
    result = CliRunner().invoke(app, ["export", str(tmp_path), *(word for pair in chosen.items() for word in pair)])
    assert isinstance(result.exception, OptionError)
    with pytest.raises(OptionError, match=message):
        raise result.exception
    assert not (tmp_path / "n.pt2").exists()
