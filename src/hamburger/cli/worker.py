"""`python -m hamburger.cli.worker`: commands of `ham` one after another in one interpreter, for grids of short runs.

Each line of the input is `{"words": [...], "log": FILE}`; what the command says goes into the file, its exit status
into the output. After one that fails the worker ends: nothing that it has left behind can meet the next.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from typing import Any

from hamburger import cli


def main() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    for line in orders:
        status = run(json.loads(line))
        answers.write(f"{status}\n")
        answers.flush()
        if status:
            sys.exit(status)
        tidy()


def run(order: dict[str, Any]) -> int:
    """The exit status of one command, as its own process would have it."""
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    sys.argv = ["ham", *order["words"]]
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def tidy() -> None:
    """As a new interpreter would be: the next command finds no tensor and no setting of this one."""
    import torch

    gc.collect()
    torch.backends.cudnn.benchmark = False
    if torch.cuda.is_initialized():
        # a workspace that cuBLAS keeps would be counted as memory of the next run
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
