"""Weights files from untrusted sources: nothing is executed, opened or downloaded, and little is allocated."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fuzz_cases import limit_resources
from fuzz_weights import INFO, edit_model, good_file, join, replace_metadata, split
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

import hamburger as hb
from hamburger.checkpoints import network, read_checkpoint
from hamburger.checkpoints.weights_file import check_model_options
from hamburger.errors import CheckpointError, DataError
from hamburger.segmentation import Info, load_weights, save_weights

TASKS = ("segmentation", "classification", "detection", "stereo", "generation")
HELPER = Path(__file__).parents[1] / "helpers" / "audited_load.py"
URL = {"url": "http://127.0.0.1:9/evil.pth", "hf_hub_id": "", "custom_load": False}


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def hostile_models(trap: Path) -> dict[str, dict]:
    """Keywords that make the constructors of version 0.1, or timm, open a path or an address."""
    sources = {
        "timm": {"pretrained": "timm"},
        "flag": {"pretrained": True},
        "path": {"pretrained": str(trap)},
        "url": {"pretrained": True, "backbone_options": {"pretrained_cfg": URL}},
        "overlay": {"pretrained": True, "backbone_options": {"pretrained_cfg_overlay": URL}},
        "file": {"pretrained": True, "backbone_options": {"pretrained_cfg": {"file": str(trap)}}},
        "checkpoint": {"backbone_options": {"checkpoint_path": str(trap)}},
        "cache": {"backbone_options": {"cache_dir": str(trap.parent / "cache")}},
        "hub": {"backbone": "hf-hub:someone/net"},
        "hub2": {"backbone": "hf_hub:someone/net"},
        "folder": {"backbone": f"local-dir:{trap.parent}"},
        "start": {"start": str(trap)},
        "weights": {"weights": "DEFAULT"},
        "context": {"context": str(trap), "context_options": {"path": str(trap)}},
    }
    timm = {
        f"timm-{name}": {"backbone": "timm:resnet18", **model}
        for name, model in sources.items()
        if "backbone" not in model
    }
    timm |= {f"timm-{name}": {"backbone": f"timm:{sources[name]['backbone']}"} for name in ("hub", "hub2", "folder")}
    return sources | timm


def test_loading_opens_no_other_file_and_no_connection(tmp_path):
    executed, trap = tmp_path / "executed", tmp_path / "trap.pth"
    trap.write_bytes(pickle.dumps({"state_dict": Evil(executed)}))
    folder = tmp_path / "files"
    folder.mkdir()
    for task in TASKS:
        (folder / f"{task}.good.safetensors").write_bytes(good_file(task))
        for name, model in hostile_models(trap).items():
            (folder / f"{task}-{name}.bad.safetensors").write_bytes(edit_model(good_file(task), **model))
    run = subprocess.run([sys.executable, HELPER, folder], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    for name, (outcome, events) in json.loads(run.stdout).items():
        assert not events, (name, events[:3])
        assert (outcome == "loaded") == (".good." in name), (name, outcome)
        assert outcome == "loaded" or (outcome.startswith("CheckpointError") and name in outcome), outcome
    assert not executed.exists()


def test_what_a_file_could_not_hold_is_refused_when_it_is_saved(tmp_path):
    net = hb.create_model("hamnet", num_classes=3, backbone="tiny", output_stride=4, head_options={"width": 8})
    for changes, message in (
        ({"backbone": "timm:hf-hub:a/b"}, "must be the name of an architecture"),
        ({"backbone": "timm:resnet18", "backbone_options": {"cache_dir": "x"}}, "backbone_options.cache_dir is not"),
        ({"context_options": {"steps": 10**6}}, "context_options.steps must be a number of at most 1000"),
        ({"context_options": {"sizes": [1, 257]}}, "context_options.sizes must be a number of at most 64"),
        ({"context_options": {"scales": [65]}}, "context_options.scales must be a number of at most 64"),
        ({"proposals": 2**16}, "proposals must be a number of at most 8192"),
        ({"max_disparity": 2048}, "max_disparity must be a number of at most 1024"),
        ({"pretrained": "w.pth"}, "pretrained must be empty"),
        ({"output_stride": {"a": 1}}, "output_stride must not be an object"),
    ):
        net.config = {**net.config, **changes}
        with pytest.raises(CheckpointError, match=f"save_weights: a weights file cannot describe .*{message}"):
            save_weights(tmp_path / "w.safetensors", net, INFO)
        net.config = {key: value for key, value in net.config.items() if key not in changes} | {"context": None}
        net.config |= {"backbone": "tiny", "backbone_options": {}, "context_options": {}, "output_stride": 4}
    assert not (tmp_path / "w.safetensors").exists()
    with pytest.raises(ValueError, match="must be a text, a number, a list or an object"):
        check_model_options({"width": object()})


# -- finite values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_name_the_tensor(task, value, tmp_path):
    content = bytearray(good_file(task))
    header, data = split(bytes(content))
    name, entry = next((name, entry) for name, entry in header.items() if entry.get("dtype") == "F32")
    place = len(content) - len(data) + entry["data_offsets"][0]
    content[place : place + 4] = torch.tensor(value).numpy().tobytes()
    path = tmp_path / "net.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"net\.safetensors has NaN or infinity in the tensor '{name}'"):
        hb.load(path)


# -- sizes -------------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is really allocated."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and output.device.type == "cpu":
            self.largest = max(self.largest, output.numel())
        return output


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("segmentation", {"num_classes": 4_000_000}),
        ("segmentation", {"num_classes": 1_000_000}),
        ("segmentation", {"context_options": {"rank": 60_000}}),
        ("segmentation", {"head_options": {"width": 60_000}}),
        ("segmentation", {"backbone_options": {"width": 60_000}}),
        ("segmentation", {"context_options": {"steps": 10**9}}),
        ("segmentation", {"num_classes": 10**30}),
        ("classification", {"num_classes": 1_000_000}),
        ("classification", {"size": 8000}),
        ("classification", {"backbone_options": {"layers": [200] * 4, "channels": [2000] * 4}}),
        ("classification", {"context_options": {"heads": 60_000}}),
        ("detection", {"channels": 60_000}),
        ("detection", {"hidden": 60_000}),
        ("stereo", {"width": 60_000}),
        ("stereo", {"max_disparity": 16 * 10**6}),
        ("generation", {"width": 60_000}),
        ("generation", {"latent": 60_000, "width": 2048}),
        ("generation", {"discriminator_multipliers": [60_000] * 4}),
    ],
)
def test_networks_larger_than_their_file_are_refused_before_they_are_allocated(task, model, tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(edit_model(good_file(task), **model))
    hb.load(_write(tmp_path / "good.safetensors", good_file(task)))  # imports and caches what the task needs
    with Allocations() as allocated, pytest.raises(CheckpointError, match=r"net\.safetensors"):
        hb.load(path)
    assert allocated.largest < 10**6


def test_a_build_that_catches_the_limit_is_still_refused(tmp_path, monkeypatch):
    """Constructors may catch the error of the limit, as timm's encoders are probed with images that may not fit."""

    def create(**options):
        with pytest.raises(RuntimeError, match="larger than its weights explain"):
            torch.zeros(2**40)
        return torch.nn.Linear(2, 2)

    path = _write(tmp_path / "net.safetensors", good_file("segmentation"))
    with pytest.raises(CheckpointError, match="cannot be built: it is larger than its weights explain"):
        network.load_network("load", path, None, create)

    def loop(**options):
        x = torch.zeros(2)
        while True:
            x += 1

    monkeypatch.setattr(network, "MAX_CALLS", 100)
    with pytest.raises(CheckpointError, match="after 101 operations"):
        network.load_network("load", path, None, loop)


# -- malformed files ---------------------------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "too many brackets"),
        ('{"version": ' + "9" * 5000 + "}", "does not describe a network"),
        ('{"version": 1, "version": 1}', "duplicate key"),
        ('{"version": NaN}', "NaN is not a JSON number"),
        ("1", "does not describe a network"),
        ("x" * (2**22 + 1), "characters, at most"),
        (Info(extra={"a": [[[[[[[[1]]]]]]]]}).as_json(), "nested more than"),
        (Info(extra={"a": [1] * 5000}).as_json(), "more than 2000 values"),
        (Info(classes=("\x1b[31m",)).as_json(), "printable characters"),
        (Info(classes=("a",), palette=((0, 0, 256),)).as_json(), "from 0 to 255"),
        (Info(classes=("a",), palette=((0, 0, 0), (1, 1, 1))).as_json(), "2 colours for 1 classes"),
        (Info(std=(1.0, 1.0, 0.0)).as_json(), "std must be three numbers"),
        (Info(mean=(1e300, 1.0, 0.0)).as_json(), "is too large"),
    ],
)
def test_malformed_metadata_are_one_clear_error(text, message, tmp_path):
    path = _write(tmp_path / "net.safetensors", replace_metadata(good_file("segmentation"), text))
    with pytest.raises(CheckpointError, match=rf"net\.safetensors.*{message}") as raised:
        load_weights(path)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.complex64}, "has the dtype C64, the network's torch.float32"),
        ({"dtype": torch.int32}, "has the dtype I32, the network's torch.float32"),
        ({"dtype": torch.bool}, "has the dtype BOOL, the network's torch.float32"),
        ({"shape": (0,)}, r"has the shape \(0,\)"),
        ({"name": "other"}, "is missing"),
        ({"extra": "other"}, "'other' is unexpected"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes, message, tmp_path):
    import safetensors.torch

    content = good_file("classification")
    tensors = safetensors.torch.load(content)
    name = "net.fc.bias"
    value = tensors.pop(name)
    if "shape" in changes:
        value = torch.zeros(changes["shape"])
    tensors[changes.get("name", name)] = value.to(changes.get("dtype", value.dtype))
    if "extra" in changes:
        tensors[changes["extra"]] = torch.zeros(1)
    metadata = split(content)[0]["__metadata__"]
    save_file(tensors, tmp_path / "net.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match=rf"net\.safetensors do not fit the network it describes: .*{message}"):
        hb.load(tmp_path / "net.safetensors")


def test_classes_that_do_not_fit_the_network_are_refused(tmp_path):
    header, _ = split(good_file("segmentation"))
    values = json.loads(header["__metadata__"]["hamburger"]) | {"classes": ["sky", "sea"], "palette": []}
    path = _write(tmp_path / "net.safetensors", replace_metadata(good_file("segmentation"), json.dumps(values)))
    with pytest.raises(CheckpointError, match=r"net\.safetensors has names of 2 classes for a network of 3"):
        hb.load(path)


# -- checkpoints of other code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**12),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(1).to_sparse().sparse_resize_((10**12,), 1, 0),
        torch.empty(10**12, device="meta"),
    ],
    ids=["expanded", "complex", "sparse", "meta"],
)
def test_tensors_larger_than_their_storage_are_refused(tensor, tmp_path):
    torch.save({"lower_bread.weight": tensor}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"w\.pth.*(is not a|not only) plain tensor"):
        read_checkpoint(tmp_path / "w.pth")


def test_compressed_checkpoints_are_refused(tmp_path):
    torch.save({"a": torch.zeros(10**6)}, tmp_path / "w.pth")
    with (
        zipfile.ZipFile(tmp_path / "w.pth") as stored,
        zipfile.ZipFile(tmp_path / "small.pth", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in stored.namelist():
            small.writestr(name, stored.read(name))
    with pytest.raises(CheckpointError, match=r"small\.pth .* its content is compressed"):
        read_checkpoint(tmp_path / "small.pth")


def test_pickled_code_is_never_executed(tmp_path):
    executed = tmp_path / "executed"
    torch.save({"a": Evil(executed)}, tmp_path / "zip.pth")
    torch.save({"a": Evil(executed)}, tmp_path / "legacy.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Evil(executed)))
    for name in ("zip", "legacy", "raw"):
        with pytest.raises(CheckpointError, match=rf"{name}\.pth"):
            read_checkpoint(tmp_path / f"{name}.pth")
    assert not executed.exists()


def _zip(name, pickled, before=b""):
    file = io.BytesIO(before)
    with zipfile.ZipFile(file, "a") as archive:
        for entry, content in ((name, pickled), ("archive/version", "3"), ("archive/byteorder", "little")):
            archive.writestr(entry, content)
    return file.getvalue()


def _add_directory(content):
    """Put another directory before the end: zipfile takes that one, torch's reader the one at the stated offset."""
    end = content.index(b"PK\5\6")
    directory = content[content.index(b"PK\1\2") : end]
    return content[:end] + directory.replace(b"data.pkl", b"data.txt") + content[end:]


BOMB = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x80\x00\x85R."  # 2 GiB
OLD = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]  # the first values of a file of torch before 1.6
HIDDEN = {
    "an old file before a zip file": _zip("version", b"3", b"".join(pickle.dumps(each, 2) for each in OLD) + BOMB),
    "upper case": _zip("archive/DATA.PKL", BOMB),
    "two directories": _add_directory(_zip("archive/data.pkl", BOMB)),
    "a comment": _zip("archive/data.pkl", BOMB)[:-2] + b"\4\0abcd",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_pickle_is_checked_wherever_torch_finds_it(kind, tmp_path):
    """zipfile looks for the end of a zip file, torch for its beginning and without regard to case."""
    (tmp_path / "w.pth").write_bytes(HIDDEN[kind])
    with limit_resources(), pytest.raises(CheckpointError, match=r"w\.pth .*(only plain tensors|its only directory)"):
        read_checkpoint(tmp_path / "w.pth")


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**64 - 1]], ids=["2^63", "2^64 - 1"])
def test_sides_of_64_bits_are_refused(shape, tmp_path):
    header, data = split(good_file("segmentation"))
    header["more"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data)] * 2}
    path = _write(tmp_path / "net.safetensors", join(json.dumps(header), data))
    with pytest.raises(CheckpointError, match=r"net\.safetensors .*'more' is unexpected"):
        hb.load(path)
    with pytest.raises(CheckpointError, match=r"net\.safetensors .* is not a readable checkpoint: [^\n]*$"):
        read_checkpoint(path)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch 2.8 or newer")
def test_numbers_of_4_bits_are_refused(tmp_path):
    save_file({"a": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"w\.safetensors: 'a' .* is not a plain tensor"):
        read_checkpoint(tmp_path / "w.safetensors")


def test_a_pipe_is_not_opened(tmp_path):
    """Opening a pipe would block until something writes to it."""
    pipe = tmp_path / "weights.safetensors"
    os.mkfifo(pipe)
    signal.alarm(20)  # ends the test process if the call hangs
    try:
        with pytest.raises(hb.CheckpointError, match="there is no file"):
            hb.load(pipe)
        with pytest.raises(DataError, match="is not a regular file"):
            read_checkpoint(pipe)
    finally:
        signal.alarm(0)
