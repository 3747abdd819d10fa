"""Run in a process of its own: load weights files and print what loading them tried to open, connect to or unpickle.

Arguments: a folder of genuine files (*.good) and hostile ones (*.bad). Prints {file: [outcome, [event, ...]]} as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import huggingface_hub
import timm  # noqa: F401
import torch

import hamburger as hb

WATCHED = (
    "open",
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "subprocess.",
    "os.system",
    "os.exec",
    "pickle.",
    "ctypes.",
)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for path in sorted(folder.glob("*.good.safetensors")):  # imports what each task needs
        hb.load(path)
    events: list[str] = []
    allowed: set[str] = set()

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event.startswith(WATCHED) and not (event == "open" and str(args[0]) in allowed):
            events.append(f"{event} {args!r:.200}")

    def forbid(owner: object, name: str) -> None:
        def refuse(*args: object, **options: object) -> None:
            events.append(f"{name} {args!r:.200}")
            raise RuntimeError(f"{name} was called")

        setattr(owner, name, refuse)

    forbid(torch, "load")
    for name in ("load_state_dict_from_url", "download_url_to_file", "load"):
        forbid(torch.hub, name)
    for name in ("hf_hub_download", "snapshot_download"):
        forbid(huggingface_hub, name)
    sys.addaudithook(audit)
    outcomes = {}
    for path in sorted(folder.glob("*.safetensors")):
        allowed.clear()
        allowed.add(str(path))
        events.clear()
        try:
            hb.load(path)
            outcome = "loaded"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        outcomes[path.name] = (outcome, list(events))
    sys.stdout.write(json.dumps(outcomes))


main(Path(sys.argv[1]))
