"""Kill training runs of every task many times, at random times and file operations, and compare how they end.

`make soak` kills 1,000 times. The same seed draws the same kills, but not at exactly the same instructions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import small_tasks
from killed_run import kill_repeatedly


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=small_tasks.SMALL, default=list(small_tasks.SMALL))
    options = parser.parse_args()
    begun, finished = time.monotonic(), 0
    for i, task in enumerate(options.tasks):
        kills = options.kills * (i + 1) // len(options.tasks) - options.kills * i // len(options.tasks)

        def report(done, task=task, kills=kills):
            sys.stderr.write(f"\r{task}: {done} of {kills} kills{'' if done < kills else chr(10)}")

        with tempfile.TemporaryDirectory() as folder:
            finished += kill_repeatedly(task, Path(folder), kills, seed=options.seed, report=report)
    sys.stdout.write(
        f"soak: {options.kills} kills of {len(options.tasks)} tasks, seed {options.seed}: all {finished} runs end with "
        f"the bits of undisturbed ones, in {time.monotonic() - begun:.0f} s\n"
    )


if __name__ == "__main__":  # processes started by the forkserver import this file again
    main()
