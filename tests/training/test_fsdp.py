"""`ham train --strategy fsdp`: two processes with sharded parameters match one, and runs move between strategies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from small_run import SETTINGS, rows, small
from tiers import GLOO_AVERAGES
from torch import nn

import hamburger as hb
from hamburger.tasks import train
from hamburger.training.checkpoint import LAST
from hamburger.training.fsdp import UNIT, list_units, shard

pytestmark = pytest.mark.skipif(not GLOO_AVERAGES, reason="gloo averages from torch 2.8 on")
# momentum, clipping, micro-batches and an online dictionary: all that the strategies divide differently
MORE = ("log_every=1", "accumulate=2", "optim.clip=0.5", "model.context_options.init=online")


def train_sharded(run, *more):
    settings = [word for setting in (*SETTINGS, *MORE) for word in ("--set", setting)]
    words = [sys.executable, "-m", "hamburger", "train", "patchwork", "--run", str(run), "--accelerator", "cpu"]
    words += ["--devices", "2", "--strategy", "fsdp", *settings, *more]
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def forget_end(run, copy):
    """Copy a run as if it had been killed after its last but one checkpoint."""
    shutil.copytree(run, copy)
    (copy / LAST).unlink()
    (copy / "result.json").unlink()
    return copy


def compare(run, expected):
    losses = [[row["loss"] for row in rows(each) if "loss" in row] for each in (run, expected)]
    assert len(losses[1]) == 12
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    weights = load_file(run / "best.safetensors"), load_file(expected / "best.safetensors")
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[1].items():
        torch.testing.assert_close(weights[0][name], tensor, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.full
def test_sharded_run_matches_one_process_and_resumes_either_way(tmp_path):
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    train(small(*MORE), alone, accelerator="cpu")
    train_sharded(sharded)
    compare(sharded, alone)
    back = forget_end(sharded, tmp_path / "back")
    train(small(*MORE), back, accelerator="cpu", resume=True)
    compare(back, alone)
    onward = forget_end(alone, tmp_path / "onward")
    train_sharded(onward, "--resume")
    compare(onward, alone)


def test_units_are_hamburgers_and_large_layers():
    net = nn.Sequential(hb.Hamburger(16), nn.Sequential(nn.Linear(UNIT // 4, 4), nn.Linear(4, 4)))
    assert list_units(net) == [net[0], net[1][0]]


@pytest.mark.parametrize(
    ("options", "message"), [({"strategy": "zero"}, "zero"), ({"strategy": "fsdp"}, "does not compile")]
)
def test_refused_before_anything_starts(options, message, tmp_path):
    with pytest.raises(hb.OptionError, match=message):
        train(small("compile=true"), tmp_path / "run", accelerator="cpu", devices=2, **options)
    assert not (tmp_path / "run").exists()


def test_scalars_are_refused_by_name():
    with pytest.raises(hb.OptionError, match=r"cannot shard scalars \(got burger_scale, skip_scale\)"):
        shard(hb.Hamburger(16, rank=4, version="v2+"), torch.device("cpu"))
