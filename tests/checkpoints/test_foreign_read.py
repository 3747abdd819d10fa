"""`read_checkpoint`: wrappers, refused files and error messages."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_burgers import State, build, hamnet, lightham
from safetensors.torch import save_file

from hamburger.checkpoints import CheckpointError, load_hamburger, read_checkpoint


class Trap:
    """What a malicious file does: code of its choice runs while it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def check_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: net,
        lambda net: OrderedDict(net),
        lambda net: {"net": net, "step": 5, "best_mIoU": 0.8},
        lambda net: {"meta": {"epoch": 1}, "state_dict": net, "optimizer": {"state": {}}},
        lambda net: {"model": {"state_dict": net}},
        lambda net: {"model": {f"module.{key}": value for key, value in net.items()}},
    ],
    ids=["bare", "ordered", "net", "state_dict", "nested", "module"],
)
@pytest.mark.parametrize("zipped", [True, False])  # False: the format of torch 1.4, which HamNet was trained with
def test_wrapped_state_dicts_are_unwrapped(wrap: Any, zipped: bool, tmp_path: Path) -> None:
    torch.save(wrap(hamnet("v2")), tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    check_equal(read_checkpoint(tmp_path / "a.pth"), hamnet("v2"))
    check_equal(read_checkpoint(str(tmp_path / "a.pth")), hamnet("v2"))


def test_safetensors(tmp_path: Path) -> None:
    save_file(lightham(), tmp_path / "a.safetensors")
    state = read_checkpoint(tmp_path / "a.safetensors")
    check_equal(state, lightham())
    layer = build("v1", inner=64, norm="group")
    assert load_hamburger(layer, state).ok


def test_safetensors_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(lightham(), tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_checkpoint(tmp_path / "a.safetensors")
    code = "import sys, hamburger.checkpoints; sys.exit('safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_objects_are_refused_and_not_run(zipped: bool, tmp_path: Path) -> None:
    sprung, path = tmp_path / "sprung", tmp_path / "a.pth"
    torch.save({"net": hamnet("v2"), "meta": Trap(sprung)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"safe_globals.*weights_only=False.*only the tensors") as caught:
        read_checkpoint(path)
    assert not sprung.exists()
    assert "mkdir" in str(caught.value)  # names what the file asked for
    torch.load(path, weights_only=False)
    assert sprung.exists()  # the trap was a real one


def test_a_name_can_be_allowed(tmp_path: Path) -> None:
    torch.save({"net": hamnet("v2"), "meta": Harmless()}, tmp_path / "a.pth")
    with torch.serialization.safe_globals([Harmless]):
        check_equal(read_checkpoint(tmp_path / "a.pth"), hamnet("v2"))


class Harmless:
    pass


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>not found</html>", b"PK\x03\x04 and then nothing"])
def test_corrupt_files_raise(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} \({len(content)} bytes\) is not a readable checkpoint"):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_truncated_files_are_refused(part: float, zipped: bool, tmp_path: Path) -> None:
    torch.save(hamnet("v2"), tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    content = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "a.pth").write_bytes(content[: int(part * len(content))])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "a.pth")


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone\.pth"):
        read_checkpoint(tmp_path / "gone.pth")
    with pytest.raises(IsADirectoryError, match="folder"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.zeros(3), "holds a Tensor, not a state dict"),
        ({"epoch": 3, "net": {}}, "holds no tensors"),
        ({"net": {"a": torch.zeros(1)}, "model": {"a": torch.ones(1)}}, r"several state dicts, \['net', 'model'\]"),
    ],
)
def test_not_a_state_dict(content: object, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path / "a.pth")


def test_attributes_of_a_dict_do_not_replace_its_methods(tmp_path: Path) -> None:
    state = OrderedDict(hamnet("v2"))
    state.__dict__["get"] = "x"
    torch.save({"net": state}, tmp_path / "a.pth")
    check_equal(read_checkpoint(tmp_path / "a.pth"), hamnet("v2"))


def test_entries_that_are_not_tensors_are_named(tmp_path: Path) -> None:
    torch.save(hamnet("v2") | {"epoch": 3}, tmp_path / "a.pth")
    with pytest.warns(UserWarning, match="epoch"):
        check_equal(read_checkpoint(tmp_path / "a.pth"), hamnet("v2"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x80\x00\x85R.", "holds __builtin__.bytearray"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00ascii\x86R.", "holds _codecs.encode"),
        (b"\x80\x02}X\x01\x00\x00\x00actorch\nTensor\n\x8a\x05\x00\xe4\x0bT\x02\x85Rs.", "holds torch.Tensor"),
        (b"\x80\x02}q\x00X\x03\x00\x00\x00neth\x00s.", "wraps its state dict more than 8 times"),
        (b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"K\x01s.", "repeats its parts"),  # 2^60 parts to hash
        (b"\x80\x02}K\x01" + b"\x85" * 10**6 + b"K\x01s.", "nested deeper"),  # the hash would overflow the C stack
        (
            b"\x80\x02(" + b"K\x01" * 9999 + b"lq\x00" + b"c__builtin__\nset\nh\x00\x85R" * 99 + b".",
            "repeats its parts",
        ),
    ],
    ids=["bytes", "text", "tensor", "itself", "tuples", "deep", "sets"],
)
def test_small_files_that_ask_for_memory_or_endless_work_are_refused(tmp_path, content, says):
    buffer = io.BytesIO()
    torch.save({}, buffer)
    path = tmp_path / "net.pth"
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, content if name.endswith("data.pkl") else source.read(name))
    with pytest.raises(CheckpointError, match=says):
        read_checkpoint(path)
