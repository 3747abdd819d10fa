"""One run from its folder's door to its result: who may write there, what is already finished, and who must end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch.distributed

from hamburger import distributed
from hamburger.engine.events import Listener, Note
from hamburger.engine.folder import RunFolder
from hamburger.engine.machine import Machine, is_first
from hamburger.engine.result import Result
from hamburger.recipes.base import Training

if TYPE_CHECKING:
    from lightning.fabric import Fabric

D = TypeVar("D")


def in_folder(
    recipe: Training,
    run: Path | str,
    machine: Machine,
    *,
    resume: bool,
    on_event: Listener,
    open_data: Callable[[bool], D],
    work: Callable[[Fabric, RunFolder, D, Listener], Result],
) -> Result:
    """`open_data` (told whether this process is the first) and `work` in a folder that is this run's own.

    A finished run is only read. Where one process fails, those that wait for it are ended.
    """
    machine.check_precision(recipe.precision)
    folder = RunFolder(Path(run))
    first = is_first()
    listen: Listener = on_event if first else lambda event: None
    fabric = None
    try:
        if first:
            folder.claim(recipe, resume=resume)
        finished = folder.result() if resume else None
        if finished is not None:
            listen(Note(f"the run in {folder.path} is finished: nothing is left to do"))
            return Result(folder.path, finished)
        data = open_data(first)
        fabric = machine.fabric(recipe.precision)
        result = work(fabric, folder, data, listen)
        if distributed.world() > 1:
            torch.distributed.destroy_process_group()  # or what this process does next would wait for the others
        return result
    except BaseException:
        if fabric is not None:
            _end_others(fabric)
        raise
    finally:
        folder.release()


def _end_others(fabric: Fabric) -> None:
    """Processes that wait for one that has failed would wait for long."""
    launcher = fabric.strategy.launcher
    for process in getattr(launcher, "procs", ()):
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
