"""Fuzzers of pickled files: training checkpoints (last.ckpt) and checkpoints of other code (.pth)."""

from __future__ import annotations

import copy
import io
import random
import tempfile
import warnings
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import foreign_burgers
import small_tasks
import torch
from fuzz_cases import HOSTILE_PICKLES, NASTY, Files, Fuzzer, Mutation, mutate_bytes

import hamburger as hb
from hamburger.checkpoints import load_hamburger, read_checkpoint
from hamburger.tasks import task_of
from hamburger.training.accelerator import Accelerator
from hamburger.training.run_folder import RunFolder
from hamburger.training.run_lifecycle import StopSignal
from hamburger.training.trainer import Trainer


def hostile_values() -> list[Any]:
    tensor = torch.ones(3)
    shared: dict[Any, Any] = {}
    shared["net"] = shared["model"] = shared
    return [
        *copy.deepcopy(NASTY),  # a later change of the same state must not reach other cases
        *(tensor, tensor.half(), tensor.new_zeros(0), tensor * float("nan"), torch.tensor(2**62), torch.zeros(2, 3).T),
        *(torch.ones(1).expand(10**6, 10**6), torch.ones(4, dtype=torch.complex64), torch.ones(2, 2).to_sparse()),
        *(torch.ones(3, device="meta"), torch.nn.Parameter(tensor)),
        *(torch.zeros(5, dtype=torch.bool), {1: tensor}, {"net": {"net": {"net": {}}}}, shared, b"bytes", (1, 2), {3}),
    ]


def mutate_state(source: random.Random, state: Any) -> tuple[Any, str]:
    """Replace, remove or add values anywhere in nested dicts and lists."""
    state, notes = copy.deepcopy(state), []
    for _ in range(source.choice((1, 1, 2, 4))):
        owner, place = state, []
        while True:
            keys: list[Any] = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
            if not keys:
                break
            place.append(source.choice(keys))
            inner = owner[place[-1]]
            if not isinstance(inner, dict | list) or not inner or source.random() < 0.2:
                break
            owner = inner
        if not place:
            continue
        kind = source.choice(("replace", "replace", "remove", "add"))
        if kind == "remove":
            del owner[place[-1]]
        elif kind == "add" and isinstance(owner, dict):
            owner[source.choice(("net", "x\x1b[31m", 3, "", "a" * 3000))] = source.choice(hostile_values())
        else:
            owner[place[-1]] = source.choice(hostile_values())
        notes.append(f"{kind} at {place}")
    return state, ", ".join(notes)


def mutate_pickled(name: str) -> Mutation:
    """Mutate the file, the pickle in its archive, or the object that it holds."""

    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        kind, content = source.choice(("file", "pickle", "pickle", "object", "object", "hostile")), files[name]
        if kind == "file":
            content, note = mutate_bytes(source, content)
        elif kind == "object":
            state, note = mutate_state(source, torch.load(io.BytesIO(content), weights_only=True))
            content = save(state, legacy=not zipfile.is_zipfile(io.BytesIO(content)))
        elif not zipfile.is_zipfile(io.BytesIO(content)):
            note, content = source.choice(list(HOSTILE_PICKLES.items()))
        else:
            entries = unzip(content)
            pickled = next(entry for entry in entries if entry.endswith("data.pkl"))
            if kind == "hostile":
                note, entries[pickled] = source.choice(list(HOSTILE_PICKLES.items()))
            else:
                entries[pickled], note = mutate_bytes(source, entries[pickled])
            content = rezip(entries, source.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,)))
        return {**files, name: content}, f"{kind}: {note}"

    return mutate


def save(state: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(state, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def unzip(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rezip(entries: dict[str, bytes], compression: int) -> bytes:
    """An archive with right checksums, so that a mutation meets more than those."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


# -- training checkpoints ----------------------------------------------------------------------------------------------


@cache
def make_trainer() -> Trainer[Any]:
    recipe = small_tasks.small("segmentation")
    task, hardware = task_of(recipe), Accelerator("cpu")
    data = task.open(recipe, None, check=True, note=lambda text: None)
    torch.manual_seed(0)
    net = task.build(recipe, data)
    return Trainer(task, recipe, data, net, hardware, RunFolder(Path()), StopSignal(), lambda event: None)


def make_checkpoint() -> list[Files]:
    """The checkpoint after the last step, whose weights are kept as the best."""
    with tempfile.TemporaryDirectory() as folder:
        small_tasks.train("segmentation", Path(folder))
        return [{name: (Path(folder) / name).read_bytes() for name in ("last.ckpt", "metrics.jsonl")}]


def read_training_checkpoint(folder: Path) -> Any:
    trainer = make_trainer()
    trainer.folder = RunFolder(folder)
    length = (folder / "metrics.jsonl").stat().st_size
    assert trainer.restore()
    progress = trainer.progress
    for step in (progress.step, progress.evaluated, progress.best_step):
        assert type(step) is int and 0 <= step <= trainer.recipe.steps, progress
    for number in (progress.best, progress.loss):
        assert number is None or type(number) is float, progress
    assert (folder / "metrics.jsonl").stat().st_size <= length
    state = trainer.net.state_dict()
    return [progress.step, progress.evaluated, progress.best_step, *state, *state.values(), torch.get_rng_state()]


# -- checkpoints of other code -----------------------------------------------------------------------------------------


def make_foreign() -> list[Files]:
    states = {"state_dict": foreign_burgers.lightham(), "meta": {"epoch": 3}}, foreign_burgers.hamnet("v2+")
    return [{"foreign.pth": save(state, legacy=legacy)} for state in states for legacy in (False, True)]


def read_foreign(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of entries that are not tensors
        state = read_checkpoint(folder / "foreign.pth")
        assert all(type(key) is str for key in state)
        layer = hb.Hamburger(foreign_burgers.C, version="v1", norm="group", rank=4)
        try:
            loaded = load_hamburger(layer, state, strict=False).loaded
        except hb.HamburgerError as error:  # of tensors in memory, so it names no file
            return [state, str(error)]
    return [state, loaded]


CHECKPOINTS: dict[str, Fuzzer] = {
    "checkpoint": Fuzzer(make_checkpoint, mutate_pickled("last.ckpt"), read_training_checkpoint),
    "foreign": Fuzzer(make_foreign, mutate_pickled("foreign.pth"), read_foreign),
}
