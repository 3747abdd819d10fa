"""The scripts of examples/ run, and stay short."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = {
    "huggingface_segmentation": "transformers",
    "lightning_training": "lightning",
    "smp_models": "segmentation_models_pytorch",
    "timm_vit": "timm",
    "ultralytics_yolo": "ultralytics",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_fits_one_screen(script):
    assert len(script.read_text().splitlines()) <= 60


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_runs(script, tmp_path):
    package = PACKAGES.get(script.stem, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install {package.replace('_', '-')}")
    environment = {**os.environ, "YOLO_OFFLINE": "1", "YOLO_CONFIG_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", script]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "nan" not in run.stdout
    assert run.stdout.strip()
