"""Imports point one way; the core needs torch alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hamburger

SOURCE = Path(hamburger.__file__).parent
# A package may import from itself and from those to its left. Files at the top (errors, shapes, ...) lie below all.
ORDER = [
    *("ops", "solvers", "layers", "insertion", "adapters", "losses", "backbones", "heads", "models", "gan"),
    *("data", "metrics", "recipes", "engine", "use", "tasks", "bench", "analysis", "recovery", "cli"),
]


def packages_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        for name in names:
            parts = name.split(".")
            if parts[0] == "hamburger" and len(parts) > 1 and parts[1] in ORDER:
                yield parts[1]


def sources():
    return sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def test_every_package_has_its_place():
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"} <= set(ORDER)


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_back_edge(path):
    own = path.relative_to(SOURCE).parts[0]
    height = ORDER.index(own) if own in ORDER else -1
    for package in packages_imported(path):
        if own == "__main__.py":
            continue
        assert ORDER.index(package) <= height, f"{path.name} in {own} imports {package}, which lies above it"


CORE = """
import sys
import hamburger as hb, torch
hb.Hamburger(8, rank=2)(torch.rand(1, 8, 4, 4))
import hamburger.adapters
extras = {"numpy", "torchvision", "timm", "matplotlib", "typer", "rich", "sklearn", "onnx", "safetensors", "lightning"}
print(*sorted(m for m in extras if m in sys.modules and m not in before))
"""


def test_importing_the_core_loads_no_extra():
    # torch itself loads numpy where it is installed
    code = "import sys, torch\nbefore = set(sys.modules)\n" + CORE
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
