"""int8 weights: half a step of error, small tensors and buffers exact, and nothing that does not fit is loaded."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from fuzz_weights import NETWORKS, int8_file, split

import hamburger as hb
from hamburger.checkpoints.weights_file import MIN_INT8, Info, quantise
from hamburger.segmentation import save_weights

OPTIONS = {"backbone": "tiny", "output_stride": 4, "head_options": {"width": 64}}


@pytest.fixture
def net():
    torch.manual_seed(0)
    return hb.create_model("hamnet", num_classes=5, context_options={"init": "online"}, **OPTIONS).eval()


def test_large_weights_become_int8_and_everything_else_is_exact(net, tmp_path):
    save_weights(tmp_path / "float.safetensors", net)
    save_weights(tmp_path / "int8.safetensors", net, int8=True)
    loaded, parameters = hb.load(tmp_path / "int8.safetensors").state_dict(), dict(net.named_parameters())
    rounded = 0
    for name, value in net.state_dict().items():
        if name in parameters and value.dim() > 1 and value.numel() >= MIN_INT8:
            half_a_step = value.abs().flatten(1).amax(1) / 254
            assert ((loaded[name] - value).abs().flatten(1).amax(1) <= half_a_step * 1.001).all(), name
            rounded += not torch.equal(loaded[name], value)
        else:
            assert torch.equal(loaded[name], value), name
    assert rounded >= 5 and "head.context.ham.dictionary.bases" in loaded
    sizes = [(tmp_path / f"{kind}.safetensors").stat().st_size for kind in ("int8", "float")]
    assert sizes[0] < 0.35 * sizes[1]


def test_outputs_barely_change(net, tmp_path):
    save_weights(tmp_path / "int8.safetensors", net, int8=True)
    image = torch.randn(1, 3, 48, 48)
    expected, actual = net(image), hb.load(tmp_path / "int8.safetensors")(image)
    assert 0 < (actual - expected).abs().max() < 0.02 * expected.abs().max()


def test_rounding_is_symmetric_and_to_the_nearest():
    weight = torch.tensor([[127.0, -127.0, 0.6, -0.6], [0.0, 0.0, 0.0, 0.0], [1e-3, -2e-3, 0.0, 1.0]])
    values, scale = quantise(weight)
    assert values[0].tolist() == [127, -127, 1, -1] and values[1].tolist() == [0] * 4
    assert scale[0] == 1 and values.dtype == torch.int8 and (scale > 0).all()


@pytest.mark.parametrize("task", NETWORKS)
def test_every_task_loads_int8_weights(task, tmp_path):
    (tmp_path / "net.safetensors").write_bytes(int8_file(task))
    assert any(entry.get("dtype") == "I8" for entry in split(int8_file(task))[0].values())
    assert hb.load(tmp_path / "net.safetensors").info.model["task" if task != "segmentation" else "name"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value, scale: (value, scale[:-1]), "does not fit .* as int8 factors"),
        (lambda value, scale: (value, scale.to(torch.int32)), "does not fit .* as int8 factors"),
        (lambda value, scale: (value.to(torch.int16), scale), "does not fit .* as int8 factors"),
        (lambda value, scale: (value, None), "has the dtype I8, the network's torch.float32"),
        (lambda value, scale: (None, scale), "is missing"),
        (lambda value, scale: (value, scale / 0), "has NaN or infinity in the tensor"),
        (lambda value, scale: (value, scale * 0 + 3e38), "has NaN or infinity in the tensor"),
    ],
)
def test_factors_that_do_not_fit_are_refused(change, message, net, tmp_path):
    path, name = tmp_path / "net.safetensors", "head.align.0.weight"
    save_weights(path, net, Info(), int8=True)
    tensors = safetensors.torch.load_file(path)
    value, scale = change(tensors.pop(name), tensors.pop(f"{name}.scale"))
    tensors |= {key: each for key, each in ((name, value), (f"{name}.scale", scale)) if each is not None}
    metadata = split(path.read_bytes())[0]["__metadata__"]
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    with pytest.raises(hb.CheckpointError, match=rf"net\.safetensors.*{message}"):
        hb.load(path)


def test_factors_of_unknown_tensors_are_refused(net, tmp_path):
    path = tmp_path / "net.safetensors"
    save_weights(path, net, int8=True)
    tensors = safetensors.torch.load_file(path) | {"other.scale": torch.ones(3)}
    safetensors.torch.save_file(tensors, path, metadata=split(path.read_bytes())[0]["__metadata__"])
    with pytest.raises(hb.CheckpointError, match=r"'other\.scale' is unexpected"):
        hb.load(path)


@pytest.mark.parametrize("side", [0, 15, 10**6, 2.5, "352", True, [352]])
def test_a_side_of_photos_is_bounded(side):
    text = Info(classes=("a",), side=352).as_json()
    assert Info.from_json(text, "file").side == 352
    assert Info.from_json(text.replace('"side": 352, ', ""), "file").side is None
    with pytest.raises(hb.CheckpointError, match="side must be a whole number from 16 to 8192"):
        Info.from_json(Info(side=side).as_json(), "file")
