"""The names and calls that users' scripts rely on."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from typing import get_args

import pytest
import torch

import hamburger as hb
from hamburger.contexts import ContextName
from hamburger.hams.decompose import HamName
from hamburger.segmentation import Info
from hamburger.segmentation.losses import cross_entropy

NAMES = (
    *(
        "NMF",
        "VQ",
        "CD",
        "HALS",
        "Robust",
        "Local",
        "Windowed",
        "Learned",
        "hams",
        "Ham",
        "Factors",
        "Decomposition",
        "decompose",
    ),
    *("one_step", "bptt", "Truncated", "Phantom", "Implicit"),
    *("Hamburger", "HamLayer", "contexts", "create_context", "list_contexts", "debug"),
    *("create_model", "create_gan", "create_classifier", "create_detector", "create_stereo"),
    *("load", "train", "Predictor", "stream", "list_models", "list_weights", "errors"),
    *("insert_context", "remove_contexts", "replace_attention", "shard_positions"),
    *(
        "HamburgerError",
        "ShapeError",
        "InputError",
        "OptionError",
        "UnknownNameError",
        "NotFiniteError",
        "ImplicitGradientError",
        "DataError",
        "CheckpointError",
        "TrainingError",
        "ExportError",
    ),
)


def test_public_names_match_the_documented_list():
    assert sorted(hb.__all__) == sorted(NAMES)
    assert all(hasattr(hb, name) for name in NAMES)
    assert hb.__version__


def test_decompose_has_the_documented_signature():
    x = torch.rand(2, 32, 100)
    out = hb.decompose(x, "nmf", rank=4, steps=6)
    assert [tuple(t.shape) for t in (out.bases, out.codes, out.reconstruction)] == [
        (2, 32, 4),
        (2, 4, 100),
        (2, 32, 100),
    ]
    g = torch.Generator().manual_seed(0)
    bases = torch.rand(2, 32, 4)
    again = hb.decompose(x, hb.NMF(rank=4, eps=1e-6), steps=6, grad=hb.one_step, bases=bases, generator=g)
    assert again.reconstruction.shape == x.shape


def test_defaults_match_the_documentation():
    assert hb.VQ(64) == hb.VQ(rank=64, temperature=0.01)
    assert hb.CD(64) == hb.CD(rank=64, temperature=0.01, beta=0.1)
    assert hb.NMF(64) == hb.NMF(rank=64, eps=1e-6, codes_init="softmax")
    layer = hb.Hamburger(
        512, ham="nmf", inner=512, rank=64, steps=6, init="random", grad="one-step", heads=1, version="paper"
    )
    assert repr(layer) == repr(hb.Hamburger(512))


def test_create_gan_works_as_documented():
    G, D = hb.create_gan("hamgan", resolution=32, num_classes=10, width=8)
    z, y = torch.randn(2, 128), torch.tensor([3, 7])
    images = G(z, y)
    assert images.shape == (2, 3, 32, 32) and images.abs().max() <= 1
    assert D(images, y).shape == (2,)


def test_every_ham_fits_on_a_screen():
    for ham in (hb.NMF, hb.VQ, hb.CD, hb.HALS, hb.Robust, hb.Local, hb.Learned):
        lines = inspect.getsource(ham).split('"""')
        code = [line for line in (lines[0] + lines[2]).splitlines() if line.strip()]
        assert len(code) < 60, ham


def test_version_is_the_same_in_package_and_pyproject():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == hb.__version__


def test_literal_types_list_the_registered_names():
    for names, registry in ((ContextName, hb.contexts), (HamName, hb.hams)):
        ours = {name for name, constructor in registry.items() if constructor.__module__.startswith("hamburger.")}
        assert set(get_args(names)) == ours


def test_dir_lists_every_public_name_and_each_has_a_docstring_that_shows_use():
    assert set(hb.__all__) <= set(dir(hb))
    for name in set(hb.__all__) - {"errors"}:
        if not (name.endswith("Error") and name != "HamburgerError"):
            assert ">>>" in inspect.getdoc(getattr(hb, name)), name
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        hb.lod  # noqa: B018


def test_examples_of_the_core_run():
    core = (
        "NMF",
        "VQ",
        "CD",
        "HALS",
        "Robust",
        "Local",
        "Windowed",
        "Learned",
        "Phantom",
        "Ham",
        "Factors",
        "Decomposition",
        "decompose",
        "Truncated",
        "bptt",
        "Implicit",
    )
    more = ("Hamburger", "HamLayer", "hams", "debug", "HamburgerError")
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in (*core, *more):
        names = {**vars(hb), "hb": hb, "torch": torch, "x": torch.rand(2, 32, 20)}
        for example in finder.find(type(getattr(hb, name)) if name in ("bptt", "hams") else getattr(hb, name), name):
            example.globs = names
            runner.run(example)
    assert runner.summarize().attempted > 25 and not runner.summarize().failed


def test_importing_the_package_imports_no_task():
    code = "import sys, hamburger as hb; dir(hb); print(*(m for m in sys.modules if m.startswith('hamburger.')))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.split(".")[1] for name in out.stdout.split()}
    heavy = {"segmentation", "classification", "detection", "stereo", "generation", "training", "tasks", "inference"}
    assert not packages & heavy


def test_every_error_is_in_hb_errors():
    for name in NAMES:
        if name.endswith("Error"):
            assert getattr(hb.errors, name) is getattr(hb, name)
    kinds = [kind for _, kind in inspect.getmembers(hb.errors, inspect.isclass) if issubclass(kind, Exception)]
    assert all(issubclass(kind, hb.HamburgerError) for kind in kinds)


class NoFactors(hb.Ham):
    def step(self, x, factors):
        return factors.bases

    def readout(self, x, factors):
        return x


class NoCodes(NoFactors):
    def step(self, x, factors):
        return factors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hb.create_model(3, num_classes=2), "create_model: no head '3'"),
        (lambda: hb.create_model("hamnet", num_classes=2, context=3), "create_model: .*context must be a name"),
        (lambda: hb.create_model("hamnet", num_classes=2, pretrained=True), "create_model: .*must be a path, got True"),
        (lambda: hb.create_model("hamnet", num_classes=2, rank=3), "create_model has no option 'rank'"),
        (lambda: hb.create_classifier(3, num_classes=2), "create_classifier: .*must be a string .*got 3"),
        (lambda: hb.create_classifier(num_classes=2, context_options=3, context="nmf"), "must be a mapping"),
        (lambda: hb.create_context("nnf", 8), "create_context: no context 'nnf'; did you mean 'nmf'"),
        (lambda: hb.load(3), "load: .*must be a path, got 3"),
        (lambda: hb.Predictor(None), "Predictor: .*must be a path, got None"),
        (lambda: hb.Predictor(torch.nn.ReLU(), 3), "Predictor: info must say the classes.*got 3"),
        (lambda: hb.Predictor(torch.nn.ReLU(), Info())(None), r"Predictor: .*uint8 tensor of shape \(3, h, w\)"),
        (lambda: hb.train("patchwork", 3), "train: run must be a path, got 3"),
        (lambda: hb.Hamburger(8, norm=torch.nn.BatchNorm1d(8)), "Hamburger: norm must be a function"),
        (lambda: hb.Hamburger(8, norm=torch.nn.BatchNorm2d), "Hamburger: norm must return a module"),
        (lambda: hb.decompose(torch.rand(1, 4, 9), NoFactors(2)), "NoFactors.step must return Factors, got Tensor"),
        (lambda: hb.decompose(torch.rand(1, 4, 9), NoCodes(2)), "NoCodes.readout: r is 2 in bases"),
        (
            lambda: cross_entropy(torch.rand(1, 2, 4, 4), torch.rand(1, 4, 4)),
            r"got torch.float32; pass labels.long\(\)",
        ),
    ],
)
def test_errors_name_the_call_and_the_argument(call, message):
    with pytest.raises(hb.HamburgerError, match=message):
        call()


def test_a_name_that_needs_an_extra_says_how_to_install_it():
    script = "import sys; sys.modules['numpy'] = None\nimport hamburger as hb\nhb.load"
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.stderr.splitlines()[-1].startswith(
        "ImportError: hamburger.load needs numpy; run pip install 'hamburger[train]', in a clone"
    )
