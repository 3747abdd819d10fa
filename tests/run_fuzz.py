"""Fuzz every reader of untrusted input: damaged and hostile files must be refused cleanly or read validly.

`make fuzz` runs 100,000 cases. A case is a function of (reader, seed, number). The input of a failed case is stored
below --out, and `python tests/run_fuzz.py --replay FOLDER` reads it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from fuzz import FUZZERS
from fuzz_cases import MAX_SECONDS, Case

CASE = "case.json"  # next to the folder with the input
MAX_FAILURES = 10  # of one reader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", nargs="+", choices=FUZZERS, default=list(FUZZERS), metavar="READER")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder for the input of failed cases")
    parser.add_argument("--replay", type=Path, help="run the stored case in this folder, and nothing else")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    if options.replay is not None:
        return replay(options.replay)
    begun, failures = time.monotonic(), 0
    for index, reader in enumerate(options.readers):
        count = options.cases * (index + 1) // len(options.readers) - options.cases * index // len(options.readers)
        failures += run_reader(reader, count, options.seed, options.out)
    sys.stdout.write(
        f"fuzz: {options.cases:,} cases of {len(options.readers)} readers, seed {options.seed}: {failures} failures, "
        f"in {timedelta(seconds=round(time.monotonic() - begun))}\n"
    )
    return min(failures, 1)


def run_reader(reader: str, count: int, seed: int, out: Path) -> int:
    """Run the cases of one reader; return the number of failures."""
    fuzzer, outcomes, begun, shown = FUZZERS[reader], Counter[str](), time.monotonic(), 0.0
    for number in range(count):
        case = fuzzer.case(seed, number)
        folder = out / f"{reader}-{seed}-{number}"  # a crash of the process leaves it behind
        store(folder, reader, seed, number, case)
        faulthandler.dump_traceback_later(11 * MAX_SECONDS, exit=True)  # ends compiled code that hangs
        try:
            outcome = "read" if fuzzer.check(case, folder / "files") == "read" else "refused"
            shutil.rmtree(folder)
        except AssertionError as error:
            outcome = "failed"
            sys.stdout.write(f"\nfuzz: {reader}, seed {seed}, case {number} failed ({case.note:.200}): {error}\n")
            sys.stdout.write(f"replay: {sys.executable} tests/run_fuzz.py --replay {folder}\n")
            store(folder, reader, seed, number, case)  # the reader may have changed the files
        faulthandler.cancel_dump_traceback_later()
        outcomes[outcome] += 1
        now = time.monotonic()
        if now - shown > 1 or number + 1 == count:
            shown, rate = now, (number + 1) / (now - begun)
            left = timedelta(seconds=round((count - number - 1) / rate))
            sys.stderr.write(f"\r{reader}: {number + 1:,} of {count:,} cases, {rate:.0f} cases/s, {left} left   ")
        if outcomes["failed"] >= MAX_FAILURES:
            break
    sys.stderr.write("\n")
    words = ", ".join(f"{outcomes[name]:,} {name}" for name in ("read", "refused", "failed"))
    sys.stdout.write(f"{reader}: {words}\n")
    sys.stdout.flush()
    return outcomes["failed"]


def store(folder: Path, reader: str, seed: int, number: int, case: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in case.files.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    about = {"reader": reader, "seed": seed, "number": number, "changed": case.changed, "note": case.note[:1000]}
    (folder / CASE).write_text(json.dumps(about))


def replay(folder: Path) -> int:
    about = json.loads((folder / CASE).read_text())
    paths = [path for path in (folder / "files").rglob("*") if path.is_file()]
    files = {path.relative_to(folder / "files").as_posix(): path.read_bytes() for path in paths}
    work = folder / "replayed"
    shutil.rmtree(work, ignore_errors=True)
    try:
        outcome = FUZZERS[about["reader"]].check(Case(files, about["changed"], about["note"]), work)
    except AssertionError:
        traceback.print_exc()
        return 1
    sys.stdout.write(f"{outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
