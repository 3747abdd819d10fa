"""Long commands end with the path of what they wrote and the likely next command."""

from __future__ import annotations

import fake_datasets
import pytest
import small_gan
import small_run
from paths import ROOT

import hamburger as hb
from hamburger.cli import compare
from hamburger.tasks.sweep import cells, variants

SMALL = ("--sizes", "64", "--dim", "16", "--rank", "4", "--repeats", "2", "--hams", "nmf")
SET = [word for setting in small_run.SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A grid of one finished run, a GAN, a data folder and a photo."""
    folder = tmp_path_factory.mktemp("runs")
    (cell,) = cells("patchwork", variants(["nmf"]), [0], small_run.SETTINGS)
    hb.train(cell.resolved(), folder / "grid" / cell.name, accelerator="cpu")
    small_gan.train_small(folder / "gan")
    fake_datasets.folder(folder / "data")
    fake_datasets.write_image(folder / "photo.png")
    return folder


@pytest.mark.parametrize(
    ("words", "output", "following"),
    [
        ("eval RUN --json DIR/scores.json", "DIR/scores.json", "ham predict RUN IMAGE... --out predictions"),
        ("predict RUN DIR/photo.png --out DIR/out", "DIR/out/summary.json", "ham app RUN, or ham export RUN"),
        ("export RUN --format pt2 --static --size 16 --out DIR/net.pt2", "DIR/net.pt2", 'python -c "import torch; '),
        ("report DIR/grid --out DIR/report.html", "DIR/report.html", "ham predict RUN IMAGE... --out predictions"),
        ("compare patchwork --contexts nmf --seeds 0 --out DIR/grid SET", "DIR/grid/report.html", "ham predict RUN "),
        ("data check folder --data DIR/data", "", "ham train folder-cpu --run runs/folder --data DIR/data"),
        ("data check patchwork --option length=4", "", "ham train patchwork --run runs/patchwork --set data.options.l"),
        ("gan sample DIR/gan --out DIR/samples --count 1", "DIR/samples", "ham gan report DIR/gan"),
        ("bench core BENCH --json DIR/rows.jsonl", "DIR/rows.jsonl", "ham claims"),
        ("bench core BENCH", "", "ham bench core --json rows.jsonl"),
        ("claims --results RESULTS --json DIR/claims.json", "DIR/claims.json", "ham claims --only ID"),
        ("recover --out DIR/recovery", "DIR/recovery/recovery.json", "ham propositions"),
        ("gan report DIR/gan", "DIR/gan/report.html", "ham gan sample DIR/gan"),
    ],
)
def test_a_command_names_its_output_and_the_next_command(ham, folder, monkeypatch, words, output, following):
    monkeypatch.setattr("hamburger.devices.find_gpu", lambda: None)
    places = {"RUN": folder / "grid" / "nmf-seed0", "DIR": folder, "RESULTS": ROOT / "results"}

    def fill(text):
        for name, path in places.items():
            text = text.replace(name, str(path))
        return text

    lists = {"BENCH": SMALL, "SET": SET}
    status, out, err = ham(*(each for word in words.split() for each in lists.get(word, (fill(word),))))
    assert status == 0, err
    assert fill(output) in out
    last = err.splitlines()[-1]
    assert last.startswith(f"next: {fill(following)}"), last


def test_the_demo_goes_on_with_photos(ham, monkeypatch):
    monkeypatch.setattr(compare, "run_and_show_grid", lambda *args, **options: None)
    status, _, err = ham("demo")
    start = "" if hb.list_weights() else " --set start=none --set model.pretrained=timm"
    assert status == 0
    assert err.endswith(f"next: ham train folder-cpu --run runs/mine --data DIR{start} (your own photos)\n")
