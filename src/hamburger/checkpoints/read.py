"""Read a weights file into a flat dict of tensors, executing nothing in it; and the report of loading them."""

from __future__ import annotations

import errno
import io
import os
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from hamburger.errors import CheckpointError, HamburgerError, printable, shorten
from hamburger.files import open_regular

WRAPPERS = ("net", "state_dict", "model", "module")  # HamNet; mmcv and mmengine; common training scripts; DeepSpeed
# what `torch.load` would call, and what can allocate far more than the file holds
ALLOCATES = re.compile(
    r"(__builtin__|builtins) bytearray|_codecs encode|"
    r"torch\S* (\w*Tensor|_rebuild_(?!(parameter|tensor|tensor_v2)\b).*)"
)
ZIP = b"PK\3\4"  # how a zip file begins
# the last records of a zip file: length and offset of the directory, and the length of a comment; those of a large file
END, END64, LOCATOR64 = struct.Struct("<12xIIH"), struct.Struct("<40xQQ"), struct.Struct("<8xQ4x")
MAX_NESTING = 100  # tuples inside each other; C code that visits them would overflow its stack
MAX_INSTRUCTIONS = 2**21  # of a pickle; a network of 1,000 tensors and its optimizer have about 100,000
MAX_REUSE = 16  # parts of a pickle that are used again, for each of its instructions
IN_PLACE = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")
PACKED = (getattr(torch, "float4_e2m1fn_x2", None),)  # dtypes of several numbers a byte; torch 2.8 has the first
MAX_WRAPPERS = 8  # inside each other
COUNTER = "num_batches_tracked"  # of a batch norm; without effect on the output
SHOWN = 20  # entries printed per section of a report
WIDEST = 1000  # characters of a line of it
PARALLEL = "module."  # the prefix that (Distributed)DataParallel puts before every key


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the state dict in a .pth or .safetensors file, on the CPU, without wrappers or `module.` prefixes.

    Pickled objects other than tensors and plain containers are refused and never executed: the file is read with
    `torch.load(weights_only=True)`. Tensors must be plain ones that the file stores number by number.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"read_checkpoint: {path} is a folder; pass the file in it")
    if not path.exists():
        raise FileNotFoundError(f"read_checkpoint: there is no file {path}")
    tensors = unwrap(_read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path), str(path))
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in tensors.values()}
    if sum(storages.values()) > path.stat().st_size:
        raise _corrupt(path, "its tensors are larger than the file")
    return tensors


def unwrap(checkpoint: object, name: str = "the checkpoint") -> dict[str, Tensor]:
    """Return the tensors in a checkpoint, out of {"net": ...}, {"state_dict": ...} and the like."""
    for _ in range(MAX_WRAPPERS):  # a pickled dict may contain itself
        if not isinstance(checkpoint, Mapping):
            raise CheckpointError(f"{name} holds a {type(checkpoint).__name__}, not a state dict (names to tensors)")
        if isinstance(checkpoint, OrderedDict):  # a pickle may put other attributes in place of its methods
            checkpoint = dict(OrderedDict.items(checkpoint))
        inside = [key for key in WRAPPERS if isinstance(checkpoint.get(key), Mapping)]
        if len(inside) > 1:
            raise CheckpointError(f"{name} holds several state dicts, {inside}; pass one of them")
        if not inside:
            break
        checkpoint = checkpoint[inside[0]]
    else:
        raise CheckpointError(f"{name} wraps its state dict more than {MAX_WRAPPERS} times; pass the state dict")
    tensors = {key: value for key, value in checkpoint.items() if isinstance(key, str) and isinstance(value, Tensor)}
    others = [str(key)[:80] for key in checkpoint if not isinstance(key, str) or key not in tensors]
    if not tensors:
        raise CheckpointError(
            f"{name} holds no tensors; its keys: {others[:12]}, known wrappers: {', '.join(WRAPPERS)}"
        )
    if others:
        warnings.warn(f"{name}: ignored {len(others)} entries that are not tensors: {others[:SHOWN]}", stacklevel=3)
    for key, value in tensors.items():
        _check_tensor(name, key, value)
    if all(key.startswith(PARALLEL) for key in tensors):
        return {key.removeprefix(PARALLEL): value for key, value in tensors.items()}
    return tensors


def _check_tensor(name: str, key: str, value: Tensor) -> None:
    """Raise unless the tensor is stored number by number: a view or a sparse tensor may be far larger than its file."""
    plain = value.layout is torch.strided and not value.is_quantized and not value.is_nested and not value.is_complex()
    plain &= value.dtype not in PACKED
    if not plain or value.nbytes > (value.untyped_storage().nbytes() if not value.is_meta else 0):
        raise CheckpointError(
            f"{name}: {shorten(key)} ({value.dtype}, {value.layout}, shape {tuple(value.shape)}) is not a plain tensor "
            f"of real numbers; save the checkpoint with plain tensors"
        )


def load_tensors(path: Path) -> Any:
    """Return what torch.save wrote, on the CPU; raise an exception of any type where it is damaged or hostile.

    Only tensors and plain containers are created. `read_checkpoint` also checks that each tensor fits its storage.
    """
    with open_regular(path) as file:
        if file.read(len(ZIP)) != ZIP:  # as torch.load decides; zipfile looks at the end of a file
            file.seek(0)
            for _ in range(5):  # magic number, version, system, state and names of the storages
                check_pickle(file, refused=ALLOCATES)
        else:
            _check_directory(file)
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                sizes = sum(entry.file_size for entry in entries)
                if sizes > path.stat().st_size or any(entry.compress_type for entry in entries):
                    raise ValueError("its content is compressed, which torch.save never does")
                for entry in entries:
                    if entry.filename.lower().endswith(".pkl"):  # torch's reader ignores case
                        check_pickle(io.BytesIO(archive.read(entry)), refused=ALLOCATES)
                if (broken := archive.testzip()) is not None:  # torch itself does not notice flipped bits
                    raise ValueError(f"the checksum of its entry {broken} is wrong")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)  # the file that was checked, not its path


def _check_directory(file: IO[bytes]) -> None:
    """Raise ValueError unless a zip file ends in its one directory, so that zipfile and torch read the same entries.

    zipfile finds a directory by the end of the file, torch's reader by the offsets that are stated there.
    """
    end = file.seek(0, io.SEEK_END) - END.size
    file.seek(max(0, end - LOCATOR64.size - END64.size))
    tail = file.read()
    length, offset, comment = END.unpack(tail[-END.size :])
    if tail[-END.size - LOCATOR64.size :].startswith(b"PK\6\7"):
        (stated,) = LOCATOR64.unpack(tail[-END.size - LOCATOR64.size : -END.size])
        end -= LOCATOR64.size + END64.size
        length, offset = END64.unpack(tail[: END64.size]) if stated == end and tail.startswith(b"PK\6\6") else (0, 0)
    if comment or not tail[-END.size :].startswith(b"PK\5\6") or offset + length != end:
        raise ValueError("it does not end in its only directory, as torch.save writes it")


def check_pickle(file: IO[bytes], *, refused: re.Pattern[str] | None = None) -> None:
    """Raise ValueError where the next pickle names a refused function, or would take far longer than its size explains.

    A pickle of a hundred bytes can make a tuple that holds a tuple twice, which holds a tuple twice, and so on. To use
    it as a key of a dict would not end. So what is on the unpickler's stack is followed here by its size alone.
    """
    mark = [0, 0]
    stack: list[list[int]] = []  # of each value: its parts, and how deep its tuples are nested
    memo: dict[Any, list[int]] = {}
    reused = 0
    for count, (operation, value, _) in enumerate(pickletools.genops(file)):
        name, before, cost = operation.name, operation.stack_before, [1, 0]
        if before:
            parts = []
            if pickletools.markobject in before:
                while (part := stack.pop()) is not mark:
                    parts.append(part)
                before = before[: before.index(pickletools.markobject)]
            parts += [stack.pop() for _ in before]
            cost[0] += sum([part[0] for part in parts])
            if name in IN_PLACE:
                parts[-1][0], cost = cost[0], parts[-1]
            elif "TUPLE" in name:
                cost[1] = 1 + max([part[1] for part in parts], default=0)
            elif name == "MEMOIZE":
                cost = memo[len(memo)] = parts[0]
        elif name.endswith("PUT"):
            memo[value] = stack[-1]
        elif name.endswith("GET"):
            cost = memo[value]
            reused += cost[0]
        elif name == "MARK":
            cost = mark
        elif name == "GLOBAL" and refused is not None and refused.fullmatch(f"{value}"):
            raise ValueError(f"it holds {f'{value}'.replace(' ', '.')}, not only plain tensors")
        if cost[1] > MAX_NESTING or reused > MAX_REUSE * (count + 1000) or count > MAX_INSTRUCTIONS:
            raise ValueError("it is nested deeper, repeats its parts more often or is longer than tensors need")
        if operation.stack_after:
            stack.append(cost)


def describe_damage(error: Exception) -> str:
    """Why a file could not be loaded, in one line; torch's advice to load it with weights_only=False is left out."""
    if isinstance(error, pickle.UnpicklingError):
        return "not a torch file, or one that holds objects instead of tensors"
    text = ascii(" ".join(str(error).split()))[1:-1]
    return f"{type(error).__name__} {text[:300]}".rstrip()


def _read_torch(path: Path) -> Any:
    try:
        return load_tensors(path)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        if name is None:
            raise _corrupt(path, describe_damage(error)) from None
        raise CheckpointError(
            f"read_checkpoint: {path} holds more than tensors: loading it would call "
            f"'{name[1]}'. It was refused, since a pickle can run any code. If you trust its "
            f"author, allow that name: `with torch.serialization.safe_globals([...]): read_checkpoint(path)`; or run "
            f"torch.load(path, weights_only=False) in a sandbox and save only the tensors"
        ) from None
    except Exception as error:  # a damaged pickle can raise any exception
        if isinstance(error, HamburgerError) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # not the file's fault; a truncated zip ends in EINVAL
        raise _corrupt(path, describe_damage(error)) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:  # an optional dependency
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f"read_checkpoint: {path} needs the package safetensors; run pip install safetensors"
        ) from error
    open_regular(path).close()  # load_file would wait for a pipe
    try:
        return load_file(path)
    except SafetensorError as error:
        raise _corrupt(path, str(error)) from error
    except (TypeError, ValueError, RuntimeError) as error:  # of a side of 2^63, where another is 0
        raise _corrupt(path, str(error).partition("\n")[0]) from None


def _corrupt(path: Path, why: str) -> CheckpointError:
    size = path.stat().st_size
    return CheckpointError(
        f"read_checkpoint: {path} ({size} bytes) is not a readable checkpoint: {why}; download or save it again"
    )


@dataclass(frozen=True)
class Report:
    """What happened to every key when tensors of a checkpoint were loaded into a layer or network of ours.

    - `loaded`: our key -> the checkpoint's key; empty where a strict load left the layer unchanged
    - `kept`: our key that the checkpoint lacks and that keeps its value -> why
    - `skipped`: the checkpoint's key outside what is loaded, or without use here -> why
    - `problems`: our key that is missing or does not fit, the checkpoint's key that we have no place for, or an option
      in which the two differ although the keys may fit -> why
    """

    source: str
    prefix: str = ""
    loaded: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything fits; kept and skipped keys do not count."""
        return not self.problems

    def __str__(self) -> str:
        sections = {title: getattr(self, title) for title in ("problems", "loaded", "kept", "skipped")}
        counts = ", ".join(f"{len(entries)} {title}" for title, entries in sections.items())
        lines = [f"{self.source}{f' under {self.prefix!r}' if self.prefix else ''}: {counts}"]
        for title, entries in sections.items():
            separator = " <- " if title == "loaded" else ": "
            lines += [f"  {title}:"] if entries else []
            lines += [f"    {key}{separator}{value}" for key, value in list(entries.items())[:SHOWN]]
            lines += [f"    ... {len(entries) - SHOWN} more in Report.{title}"] if len(entries) > SHOWN else []
        return printable("\n".join(line[:WIDEST] for line in lines))
