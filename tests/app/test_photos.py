"""The first part of the demo's page: photos with their labels, atoms and spectra."""

from __future__ import annotations

import re

import pytest
from test_explain import save
from typer.testing import CliRunner

from hamburger.app.photos import ATOMS, SAMPLES, render_photos
from hamburger.cli.app import app
from hamburger.errors import OptionError


def test_each_sample_has_labels_and_atoms(tmp_path):
    text = render_photos(save(tmp_path / "net.safetensors", side=64))
    photos = sorted(path.stem for path in SAMPLES.glob("*.jpg"))
    assert len(photos) == 3
    assert [name for name, _ in re.findall(r"<span>(\w+): (.*?)</span>", text) if name != "atom"] == photos
    shares = [int(share) for share in re.findall(r"<span>atom \d: (\d+) %</span>", text)]
    assert len(shares) == 3 * ATOMS and all(0 < share <= 100 for share in shares)
    counts = re.search(r"of the energy, before and after it: (.*?)\.</figcaption>", text)[1].split(", ")
    assert [count.split()[0] for count in counts] == photos
    assert all(int(count.split()[3]) <= 4 for count in counts)  # the rank of the ham


def test_weights_without_a_ham_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"demo: .* must be segmentation weights with a ham"):
        render_photos(save(tmp_path / "net.safetensors", context=None))


def test_the_demo_writes_one_page_with_photos_and_runs(tmp_path):
    weights, out = save(tmp_path / "net.safetensors", side=64), tmp_path / "demo"
    options = ["--contexts", "baseline", "--seeds", "0", "--steps", "2", "--jobs", "1", "--weights", str(weights)]
    done = CliRunner().invoke(app, ["demo", "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    text = (out / "report.html").read_text()
    assert text.index("instead of attention</h1>") < text.index("atom 1: ") < text.index('id="results"')
