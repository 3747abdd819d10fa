"""Sample files and weights files of trained generators."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from gan_run import CLASSES, write_run
from PIL import Image

from hamburger.errors import CheckpointError, InputError, OptionError
from hamburger.generation.predict import SampleRequest, count_images, select_row_classes, write_samples
from hamburger.generation.sampling import interpolate_latents, truncate_latents
from hamburger.generation.visualize import tile_images, to_bytes
from hamburger.generation.weights import load_generator, open_generator, save_generator


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("use") / "run")


def png_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def test_the_same_seed_writes_the_same_files(run, tmp_path):
    generator, info, _ = open_generator(run)
    expected = {"count": 5, "rows": 2, "interpolations": 2, "stops": 4, "seed": 3}
    written = write_samples(generator, info.classes, tmp_path / "a", SampleRequest(**expected))
    write_samples(generator, info.classes, tmp_path / "b", SampleRequest(**expected, batch=2))
    one, other = png_files(tmp_path / "a"), png_files(tmp_path / "b")
    assert one == other and len(one) == len(written) - 1 == 5 + 3
    for name, size in {"classes": (2 * 16 + 2, 4 * 16 + 3 * 2), "interpolations": (4 * 16 + 3 * 2, 2 * 16 + 2)}.items():
        with Image.open(tmp_path / "a" / f"{name}.png") as opened:
            assert opened.size == size
    summary = json.loads((tmp_path / "a" / "samples.json").read_text())
    assert summary["seed"] == 3 and len(summary["files"]) == 8
    write_samples(generator, info.classes, tmp_path / "c", SampleRequest(**{**expected, "seed": 4}))
    assert png_files(tmp_path / "c")["sheet.png"] != one["sheet.png"]
    write_samples(
        generator,
        info.classes,
        tmp_path / "d",
        SampleRequest(count=3, rows=0, interpolations=0, classes=("cross", "0")),
    )
    assert [name.rsplit("-", 1)[1] for name in png_files(tmp_path / "d") if "image-" in name] == [
        *("2.png", "0.png", "2.png")
    ]


def test_files_of_an_older_call_are_removed(run, tmp_path):
    generator, info, _ = open_generator(run)
    out, outside = tmp_path / "made", tmp_path / "outside.png"
    write_samples(generator, info.classes, out, SampleRequest(count=6, rows=2, interpolations=0))
    own_files = [out / "images" / "mine.png", out / "notes.txt", outside]
    for path in own_files:
        path.touch()
    summary = json.loads((out / "samples.json").read_text())
    summary["files"] += ["../outside.png", "notes.txt", "images/mine.png", str(outside), 7]
    (out / "samples.json").write_text(json.dumps(summary))
    write_samples(generator, info.classes, out, SampleRequest(count=3, rows=0, interpolations=1, classes=("ring",)))
    listed = json.loads((out / "samples.json").read_text())["files"]
    assert {*png_files(out)} == {*listed, "images/mine.png"} and len(listed) == 5
    assert all(path.exists() for path in own_files)
    (out / "samples.json").write_text("a file of the user")
    write_samples(generator, info.classes, out, SampleRequest(count=1, rows=0, interpolations=0))

    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_samples(
            generator, info.classes, out, SampleRequest(count=2, rows=0, interpolations=0, seed=9), after=stopped
        )
    assert json.loads((out / "samples.json").read_text())["files"] == [
        name for name in png_files(out) if name.startswith("images/image-000000")
    ]


def test_rows_show_the_first_classes_unless_some_are_named(run, tmp_path, monkeypatch):
    generator, info, _ = open_generator(run)
    monkeypatch.setattr("hamburger.generation.predict.ROWS_SHOWN", 3)
    counted = []
    expected = SampleRequest(count=2, rows=5, interpolations=2, stops=3)
    write_samples(generator, info.classes, tmp_path / "a", expected, after=lambda: counted.append(1))
    assert len(counted) == count_images(expected, info.classes) == 2 + 5 * 3 + 2 * 3
    with Image.open(tmp_path / "a" / "classes.png") as opened:
        assert opened.size == (5 * 18 - 2, 3 * 18 - 2)
        shown = opened.copy()
    summary = json.loads((tmp_path / "a" / "samples.json").read_text())
    assert summary["rows"] == {"0": "disc", "1": "square", "2": "cross"} and len(summary["classes"]) == 4
    named = SampleRequest(count=0, rows=5, interpolations=0, classes=("3", "2", "1", "0"))
    write_samples(generator, info.classes, tmp_path / "b", named)
    with Image.open(tmp_path / "b" / "classes.png") as opened:
        assert opened.size == (5 * 18 - 2, 4 * 18 - 2)
        # a row has the same images wherever it is in the grid
        np.testing.assert_array_equal(np.array(opened)[18 * 3 :], np.array(shown)[:16])


def test_classes_by_name_or_number():
    def select(*classes):
        return select_row_classes(SampleRequest(classes=classes), CLASSES)

    assert select() == [0, 1, 2, 3]
    assert select("ring", "1") == [3, 1]
    with pytest.raises(OptionError, match="did you mean 'ring'"):
        select("rin")
    for number in ("4", "-1", "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(OptionError, match=f"gan sample: no class '{number}' among numbers 0 ... 3"):
            select(number)
    with pytest.raises(OptionError, match="must be different ones"):
        select("ring", "3")
    with pytest.raises(OptionError, match="nothing to write"):
        SampleRequest(count=0, rows=0, interpolations=0)


def test_truncated_latents_follow_the_truncated_normal():
    z = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    cut = truncate_latents(z, 1.0)
    assert cut.abs().max() <= 1.0
    assert torch.equal(cut.argsort(), z.argsort())
    density = math.exp(-0.5) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * density / math.erf(1 / math.sqrt(2))  # of a normal truncated at one standard deviation
    assert float(cut.var()) == pytest.approx(variance, rel=0.03)
    torch.testing.assert_close(truncate_latents(z, 30.0), z, rtol=1e-4, atol=1e-5)


def test_interpolation_keeps_its_ends_and_norms():
    a, b = torch.randn(64), torch.randn(64)
    path = interpolate_latents(a, b, 5)
    torch.testing.assert_close(path[0], a)
    torch.testing.assert_close(path[-1], b)
    low, high = sorted((float(a.norm()), float(b.norm())))
    assert all(0.9 * low <= float(each.norm()) <= 1.1 * high for each in path)
    torch.testing.assert_close(interpolate_latents(a, a, 3), a.expand(3, -1))


def test_bytes_round_trip_and_tile():
    pixels = torch.arange(256, dtype=torch.uint8).expand(1, 3, 4, 256)
    assert torch.equal(to_bytes(pixels.float() / 127.5 - 1), pixels)
    grid = tile_images(torch.zeros(3, 3, 4, 5, dtype=torch.uint8), columns=2)
    assert grid.shape == (3, 10, 12)
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match="to_bytes: images have NaN or infinity"):
            to_bytes(torch.full((1, 3, 2, 2), value))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(run, tmp_path, value):
    generator, info, _ = open_generator(run)
    torch.nn.init.constant_(generator.out.bias, value)
    save_generator(tmp_path / "broken.safetensors", generator, info.classes)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors has NaN or infinity in the tensor 'out\.bias'"):
        load_generator(tmp_path / "broken.safetensors")


def test_files_that_are_not_generators(run, tmp_path):
    with pytest.raises(InputError, match="neither a run of `ham gan train`"):
        open_generator(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(InputError, match="first checkpoint"):
        open_generator(tmp_path)
    broken = tmp_path / "generator.safetensors"
    broken.write_bytes((run / "generator.safetensors").read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="not a readable"):
        load_generator(broken)
