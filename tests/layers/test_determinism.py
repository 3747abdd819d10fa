"""In evaluation the same call gives the same output: twice, alone or in a batch, after loading, in another process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tolerances import assert_close

import hamburger as hb

CASES = [
    pytest.param({"ham": ham, "init": init}, id=f"{ham}-{init}")
    for ham in ("nmf", "vq", "cd")
    for init in ("random", "fixed", "learned", "online", "columns")
] + [
    pytest.param({"ham": "nmf", "codes_init": "uniform"}, id="uniform-codes"),
    pytest.param({"ham": "vq", "version": "v2+", "dual": True}, id="dual"),
    pytest.param({"ham": "nmf", "version": "v2+", "dual": True, "init": "columns"}, id="dual-columns"),
]


def build(options):
    return hb.Hamburger(16, rank=4, **options)


@pytest.mark.parametrize("options", CASES)
def test_eval_gives_the_same_bits_and_leaves_the_generator_alone(options):
    layer, z = build(options).eval(), torch.randn(3, 16, 6, 7)
    before = torch.get_rng_state()
    first = layer(z)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(layer(z), first)
    layer.train()(z)  # a training step in between
    if options.get("init") != "online":
        layer.load_state_dict(layer.state_dict())
        for module in layer.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.reset_running_stats()
        assert torch.equal(layer.eval()(z), first)


@pytest.mark.parametrize("options", CASES)
def test_sample_gives_the_same_output_alone_and_in_a_batch(options):
    layer, z = build(options).eval(), torch.randn(5, 16, 6, 7)
    batched = layer(z)
    apart = torch.cat([layer(image[None]) for image in z])
    assert_close(batched, apart)


@pytest.mark.parametrize("options", CASES)
def test_state_dict_restores_the_dictionary_of_another_seed(options, tmp_path):
    layer, z = build(options), torch.randn(3, 16, 6, 7)
    layer(z)  # statistics and an online dictionary move
    torch.save(layer.state_dict(), tmp_path / "weights.pt")
    fresh = hb.Hamburger(16, rank=4, seed=123, **options)
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=True)
    assert torch.equal(fresh.eval()(z), layer.eval()(z))


def test_seed_determines_the_evaluation_dictionary():
    z = torch.randn(3, 16, 6, 7)
    layers = [hb.Hamburger(16, rank=4, seed=seed, parts={"ham"}).eval() for seed in (0, 0, 1)]
    outs = [layer(z) for layer in layers]
    assert torch.equal(outs[0], outs[1])
    assert not torch.allclose(outs[0], outs[2])


SCRIPT = """
import sys, torch, hamburger as hb
found = {}
for ham in ("nmf", "vq", "cd"):
    torch.manual_seed(5)  # the weights; the dictionary of evaluation has a seed of its own
    layer = hb.Hamburger(16, rank=4, ham=ham).eval()
    torch.seed()
    found[ham] = layer(torch.linspace(-1, 1, 2 * 16 * 30).view(2, 16, 30)).detach()
torch.save(found, sys.argv[1])
"""


def test_second_process_gives_the_same_output(tmp_path):
    outs = []
    for run in range(2):
        path = tmp_path / f"{run}.pt"
        subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True)
        outs.append(torch.load(path, weights_only=True))
    for ham, out in outs[0].items():
        assert torch.equal(out, outs[1][ham]), ham


def test_training_draws_new_dictionaries_reproducibly():
    layer, z = hb.Hamburger(16, rank=4, norm="none").train(), torch.randn(3, 16, 6, 7)
    assert not torch.equal(layer(z), layer(z))
    outs = []
    for _ in range(2):
        torch.manual_seed(7)
        outs.append(layer(z))
    assert torch.equal(*outs)


def test_each_training_sample_has_its_own_dictionary():
    layer = hb.Hamburger(16, rank=4, norm="none", parts={"ham"}).train()
    z = torch.randn(1, 16, 6, 7).expand(2, -1, -1, -1)
    a, b = layer(z)
    assert not torch.allclose(a, b)
    a, b = layer.eval()(z)
    assert_close(a, b)
