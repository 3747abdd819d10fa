"""The `ham` command: parse, call, print. A user's mistake is one line on stderr and exit status 2."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from hamburger.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(f"ham: the command line needs {missing.name}: pip install 'hamburger[cli]'\n")
        raise SystemExit(2) from None
    try:
        app()
    except MISTAKES as mistake:
        sys.stderr.write(f"ham: {mistake}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("ham: interrupted\n")
        raise SystemExit(130) from None


# What a user can cause. Anything else is a bug of ours and keeps its traceback.
MISTAKES = (ValueError, LookupError, OSError)
