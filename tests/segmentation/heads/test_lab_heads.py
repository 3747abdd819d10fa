"""Heads of hamburger-lab: its entry point registers them; without the package, errors name it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hamburger as hb
import hamburger_lab.heads  # noqa: F401  (registers)
from hamburger.errors import CheckpointError, UnknownNameError
from hamburger.segmentation.heads.base import LAB_HEADS, heads
from hamburger.segmentation.model import save_weights

LAB = Path(__file__).parents[3] / "lab"
MISSING = r"head 'danet' is part of hamburger-lab; run pip install -e lab in your clone of hamburger"
TINY = {"num_classes": 3, "backbone": "tiny", "output_stride": 4}


def test_the_names_are_those_that_the_lab_registers():
    registered = {name for name, head in heads.items() if head.__module__.startswith("hamburger_lab.heads.")}
    assert registered == set(LAB_HEADS)


@pytest.mark.parametrize("first", ["hamburger.segmentation", "hamburger_lab.heads.stages"])
def test_the_entry_point_registers_them(tmp_path, first):
    # the metadata that pip would write, since that of an older installation has no such group
    groups = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups.items()]
    metadata = tmp_path / "hamburger_lab-0.2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hamburger-lab\nVersion: 0.2.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(tmp_path), str(LAB), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = f"import {first}\nimport hamburger as hb\nprint(*hb.list_models())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert set(out.stdout.split()) == {"hamnet", "lightham", *LAB_HEADS}


def test_without_the_lab_errors_name_it(monkeypatch, tmp_path):
    save_weights(tmp_path / "danet.safetensors", hb.create_model("danet", **TINY))
    monkeypatch.setattr(heads, "_entries", {name: heads[name] for name in heads if name not in LAB_HEADS})
    with pytest.raises(UnknownNameError, match=MISSING):
        hb.create_model("danet", **TINY)
    with pytest.raises(CheckpointError, match=MISSING):
        hb.load(tmp_path / "danet.safetensors")
    with pytest.raises(UnknownNameError, match=MISSING):
        hb.train("patchwork", tmp_path / "run", overrides={"model.name": "danet"}, accelerator="cpu")
