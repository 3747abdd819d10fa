"""The `ham` command: parse, call, print. A user's mistake is one line on stderr and exit status 2."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from hamburger.errors import HamburgerError, Interrupted, install_extra, name_lab_package, printable
from hamburger.startup import end_startup, start_shutdown

# packages that commands import, and the extra that installs each
EXTRAS = {
    **dict.fromkeys(("torchvision", "timm", "torchmetrics", "tensorboard", "safetensors"), "train"),
    **dict.fromkeys(("huggingface_hub", "PIL", "scipy", "numpy", "pycocotools"), "train"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    "gradio": "app",
}


def main() -> None:
    """Run `ham` with the arguments of the process; end it with the exit status."""
    if os.environ.get("COLUMNS") == "0":  # of a shell whose terminal has no size; tables would be empty
        del os.environ["COLUMNS"]
    try:
        import typer

        from hamburger.cli.app import app, find_missing_lab_command
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "click"):
            raise
        _stop(f"the command line needs {missing.name}; {install_extra('cli')}")
    if lab_command := find_missing_lab_command(sys.argv[1:]):
        _stop(name_lab_package(f"`ham {lab_command}`"))
    # newer versions of typer include click
    usage: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    try:
        end_startup()
        status = app(standalone_mode=False)
    except usage as mistake:
        message = mistake.format_message()
        _stop(" ".join(message.split())) if message else sys.exit(2)  # empty: typer has printed the help
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _stop(f"this command needs {package}; {install_extra(EXTRAS[package])}")
    # errors a user can cause; anything else is a bug in this library and keeps its traceback
    except (HamburgerError, OSError) as mistake:
        _stop(str(mistake), status=130 if isinstance(mistake, Interrupted) else 2)
    except (KeyboardInterrupt, typer.Abort):
        status = 130  # newer versions of typer return it
    if status == 130:
        _stop("interrupted", status=130)
    start_shutdown()
    sys.exit(status or 0)


def _stop(message: str, status: int = 2) -> NoReturn:
    start_shutdown()
    sys.stderr.write(f"ham: {printable(message)}\n")
    sys.exit(status)
