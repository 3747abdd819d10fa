"""Fuzzers of weights files: loading one ends in a clean error, or in exactly the tensors of the file."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from fuzz_cases import Files, Fuzzer

import hamburger as hb
from hamburger.checkpoints.weights_file import Info, write_weights
from hamburger.generation.weights import save_generator
from hamburger.tasks import tasks

FILE = "fuzzed.safetensors"
INFO = Info(classes=("sky", "sea", "sand"), palette=((0, 0, 0), (9, 9, 9), (1, 2, 3)), extra={"size": 32, "step": 4})
NETWORKS: dict[str, Callable[[], Any]] = {
    "segmentation": lambda: hb.create_model(
        "hamnet", num_classes=3, backbone="tiny", output_stride=4, head_options={"width": 8}
    ),
    "classification": lambda: hb.create_classifier(
        "resnet10t", num_classes=3, context="nmf", backbone_options={"stem_width": 8, "channels": [8, 8, 8, 8]}
    ),
    "detection": lambda: hb.create_detector("tiny", num_classes=3, channels=8, hidden=8, context="vq"),
    "stereo": lambda: hb.create_stereo(width=8, groups=2, volume_width=4, max_disparity=16),
}
TASKS_WITH_FILES = tuple(NETWORKS)  # those of `ham predict`


@cache
def good_file(task: str) -> bytes:
    """Return a valid weights file of the task, of a few hundred kilobytes at most."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        path = Path(folder) / "net.safetensors"
        if task == "generation":
            generator = hb.create_gan("hamgan", resolution=32, num_classes=3, latent=4, width=4).generator
            save_generator(path, generator, INFO.classes)
        else:
            info = Info(extra={"seed": 0}) if task == "stereo" else INFO
            tasks[task].save(path, NETWORKS[task](), info)
        return path.read_bytes()


@cache
def int8_file(task: str) -> bytes:
    """Return a valid weights file of the task with int8 weights."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        info = Info(model={"task": task} if task != "segmentation" else {})
        net = NETWORKS[task]()
        write_weights(Path(folder) / FILE, net, replace(info, model={**info.model, **net.config}), int8=True)
        return (Path(folder) / FILE).read_bytes()


def read_weights(folder: Path) -> list[Any]:
    """Load the network; assert that it has exactly the tensors of the file, and that all are finite."""
    net = hb.load(folder / FILE)
    stored, state = safetensors.torch.load_file(folder / FILE), net.state_dict()
    for name in [name for name in stored if name + ".scale" in stored]:
        stored[name] = torch.einsum("i...,i->i...", stored[name].float(), stored.pop(name + ".scale").float())
    assert stored.keys() == state.keys(), "other tensors were loaded"
    for name, value in stored.items():
        assert value.isfinite().all(), f"{name} is not finite"
        assert torch.equal(value.to(state[name].dtype), state[name]), f"{name} differs"
    return [*state, *state.values()]


def mutate_weights(rng: random.Random, files: Files) -> tuple[Files, str]:
    content, notes = files[FILE], []
    for _ in range(rng.choice((1, 1, 1, 2))):
        mutate = rng.choice(MUTATORS)
        content, note = mutate(rng, content)
        notes.append(f"{mutate.__name__}: {note}")
    return {FILE: content}, ", ".join(notes)


# -- the parts of a file -----------------------------------------------------------------------------------------------


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a safetensors file; raise ValueError on a damaged one."""
    if len(content) < 8:
        raise ValueError("no header")
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return header, content[8 + length :]


def join(header: str, data: bytes) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + data


def replace_metadata(content: bytes, text: str) -> bytes:
    """Return the file with other text as its metadata."""
    header, data = split(content)
    header["__metadata__"] = {"hamburger": text}
    return join(json.dumps(header), data)


def edit_model(content: bytes, **changes: Any) -> bytes:
    """Return the file with other keywords of its network."""
    header, _ = split(content)
    values = json.loads(header["__metadata__"]["hamburger"])
    values["model"] |= changes
    return replace_metadata(content, json.dumps(values))


# -- mutators: random generator and file -> file and words -------------------------------------------------------------

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 255, 65536, 10**6, 4_000_000, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "x" * 100_000,
        "\x00",
        "\x1b[31m",
        "\ud800",
        "\U0001d54f",
        "../../etc/passwd",
        "/etc/passwd",
        "net.safetensors",
    ),
    *(
        "timm",
        "hf-hub:a/b",
        "hf_hub:a/b",
        "local-dir:/tmp",
        "timm:hf-hub:a/b",
        "timm:resnet18",
        "https://x.invalid/a.pth",
    ),
    *([], [[]], [1] * 3000, [["a"]], [10**9] * 4, ["sky"], {}, {"": {}}, {"rank": 10**6}, {"steps": 10**9}),
    *({"pretrained_cfg": {"url": "https://x.invalid/a.pth"}}, {"checkpoint_path": "/etc/passwd"}, {"heads": 10**6}),
)
KEYS = ("pretrained", "backbone", "backbone_options", "context", "context_options", "head_options", "task", "name")
KEYS += ("checkpoint_path", "weights", "start", "width", "num_classes", "size", "after", "gate", "rank", "", "self")


def flip_bytes(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Change single bytes: anywhere, or in the header, which is a small part of the file."""
    changed = bytearray(content)
    end = len(content) if rng.random() < 0.5 else min(len(content), 4000)
    places = [rng.randrange(end) for _ in range(rng.choice((1, 3, 30)))] if end else []
    for place in places:
        changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed), f"at {places}"


def cut_or_extend(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    if rng.random() < 0.2:
        return content + rng.randbytes(9), "9 more bytes"
    length = rng.choice((0, 7, 8, 9, rng.randrange(len(content) + 1), max(0, len(content) - 1)))
    return content[:length], f"to {length} bytes"


def set_header_length(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    length = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(content), rng.randrange(1, 5000)))
    return struct.pack("<Q", length) + content[8:], str(length)


def edit_metadata(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Set, add or delete a value anywhere in the description of the network."""
    try:
        header, _ = split(content)
        values = json.loads(header["__metadata__"]["hamburger"])
        owner: Any = values
        while True:
            inner = [value for value in owner.values() if isinstance(value, dict)]
            if not inner or rng.random() < 0.3:
                break
            owner = rng.choice(inner)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return content, "nothing, since it is damaged"
    key = rng.choice([*owner, *rng.sample(KEYS, 2)])
    if key in owner and rng.random() < 0.15:
        del owner[key]
        what = f"deletes {key}"
    else:
        owner[key] = rng.choice(HOSTILE)
        what = f"{key} = {owner[key]!r:.60}"
    return replace_metadata(content, json.dumps(values)), what


def break_metadata(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Replace the description by text that is not a description, or not JSON."""
    deep = rng.choice((10, 500, 100_000))
    texts = ("", "{", "null", "[]", "1", '"x"', "{}", '{"version": 1}', '{"version": "1"}', '{"version": 1e99}')
    texts += ("[" * deep + "]" * deep, '{"version":' * deep + "1" + "}" * deep, '{"version": 1, "version": 1}')
    texts += ('{"version": ' + "9" * 5000 + "}", '{"version": 1, "model": ' + "[" * 900 + "]" * 900 + "}", "\ud800")
    text = rng.choice(texts)
    try:
        return replace_metadata(content, text), f"{text:.40}"
    except (ValueError, TypeError, RecursionError):
        return content, "nothing, since it is damaged"


def edit_tensor_entry(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Change dtype, shape, offsets or name of a tensor, or list it twice."""
    try:
        header, data = split(content)
        name = rng.choice([name for name in header if name != "__metadata__"])
        entry = dict(header[name])
        part = rng.choice(("dtype", "shape", "data_offsets", "name", "missing", "twice"))
        if part == "name":
            header[rng.choice(("", "x", "\x1b[31m\u202e", name + ".", "__metadata__x"))] = header.pop(name)
        elif part == "missing":
            del header[name]
        elif part == "twice":
            text = json.dumps(header)
            return join(text[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}", data), f"{name} twice"
        elif part == "dtype":
            entry["dtype"] = rng.choice(("F64", "F16", "BF16", "F32", "I32", "BOOL", "C64", "F8_E4M3", "U8", "X", 3))
        elif part == "shape":
            entry["shape"] = rng.choice(([], [0], [-1], [2**62, 4], [1] * 100, entry["shape"][::-1], None))
        else:
            entry["data_offsets"] = rng.choice(([0, 0], [0, 4], [4, 0], [2**63, 2**63], [-1, 3], None))
        if part not in ("name", "missing"):
            header[name] = entry
        return join(json.dumps(header), data), f"{part} of {name}"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return content, "nothing, since it is damaged"


def put_nan(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Overwrite one number of a tensor by NaN or infinity."""
    try:
        header, data = split(content)
        name = rng.choice([name for name, entry in header.items() if entry.get("dtype") == "F32" and entry["shape"]])
        start, end = header[name]["data_offsets"]
        place = start + 4 * rng.randrange((end - start) // 4)
        value = struct.pack("<f", rng.choice((float("nan"), float("inf"), -float("inf"))))
        return join(json.dumps(header), data[:place] + value + data[place + 4 :]), f"in {name}"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return content, "nothing, since it is damaged"


MUTATORS = (
    *(edit_metadata, edit_metadata, edit_metadata, break_metadata, edit_tensor_entry, edit_tensor_entry),
    *(flip_bytes, flip_bytes, cut_or_extend, set_header_length, put_nan),
)


def files(task: str) -> list[bytes]:
    return [good_file(task), *([int8_file(task)] if task in ("segmentation", "stereo") else [])]


def _weights_fuzzer(task: str) -> Fuzzer:
    quick = 50 if task in ("segmentation", "stereo") else 10
    return Fuzzer(lambda: [{FILE: file} for file in files(task)], mutate_weights, read_weights, quick=quick)


WEIGHTS = {f"weights-{task}": _weights_fuzzer(task) for task in (*NETWORKS, "generation")}
