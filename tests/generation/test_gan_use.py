"""Sample files and distances of trained generators."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types

import numpy as np
import pytest
import torch
from gan_run import CLASSES, Means, write_run
from gaussians import fit_gaussian
from PIL import Image

from hamburger.classification.data.base import load_images, open_source
from hamburger.errors import CheckpointError, InputError, OptionError
from hamburger.generation.evaluate import (
    MeasureSettings,
    measure_generator,
    measure_real,
)
from hamburger.generation.metrics.distances import frechet_distance
from hamburger.generation.metrics.extractors import create_extractor, distance_name, module_extractor
from hamburger.generation.predict import SampleRequest, count_images, select_row_classes, write_samples
from hamburger.generation.sampling import interpolate_latents, truncate_latents
from hamburger.generation.visualize import tile_images, to_bytes
from hamburger.generation.weights import load_generator, open_generator, save_generator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("use") / "run")


def png_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


def test_the_same_seed_writes_the_same_files(run, tmp_path):
    generator, info, _ = open_generator(run)
    wanted = {"count": 5, "rows": 2, "ways": 2, "stops": 4, "seed": 3}
    written = write_samples(generator, info.classes, tmp_path / "a", SampleRequest(**wanted))
    write_samples(generator, info.classes, tmp_path / "b", SampleRequest(**wanted, batch=2))
    one, other = png_files(tmp_path / "a"), png_files(tmp_path / "b")
    assert one == other and len(one) == len(written) - 1 == 5 + 3
    for name, size in {"classes": (2 * 16 + 2, 4 * 16 + 3 * 2), "interpolations": (4 * 16 + 3 * 2, 2 * 16 + 2)}.items():
        with Image.open(tmp_path / "a" / f"{name}.png") as opened:
            assert opened.size == size
    summary = json.loads((tmp_path / "a" / "samples.json").read_text())
    assert summary["seed"] == 3 and len(summary["files"]) == 8
    write_samples(generator, info.classes, tmp_path / "c", SampleRequest(**{**wanted, "seed": 4}))
    assert png_files(tmp_path / "c")["sheet.png"] != one["sheet.png"]
    write_samples(
        generator, info.classes, tmp_path / "d", SampleRequest(count=3, rows=0, ways=0, classes=("cross", "0"))
    )
    assert [name.rsplit("-", 1)[1] for name in png_files(tmp_path / "d") if "image-" in name] == [
        *("2.png", "0.png", "2.png")
    ]


def test_files_of_an_older_call_are_removed(run, tmp_path):
    generator, info, _ = open_generator(run)
    out, outside = tmp_path / "made", tmp_path / "outside.png"
    write_samples(generator, info.classes, out, SampleRequest(count=6, rows=2, ways=0))
    own = [out / "images" / "mine.png", out / "notes.txt", outside]
    for path in own:
        path.touch()
    summary = json.loads((out / "samples.json").read_text())
    summary["files"] += ["../outside.png", "notes.txt", "images/mine.png", str(outside), 7]
    (out / "samples.json").write_text(json.dumps(summary))
    write_samples(generator, info.classes, out, SampleRequest(count=3, rows=0, ways=1, classes=("ring",)))
    listed = json.loads((out / "samples.json").read_text())["files"]
    assert {*png_files(out)} == {*listed, "images/mine.png"} and len(listed) == 5
    assert all(path.exists() for path in own)
    (out / "samples.json").write_text("a file of the user")
    write_samples(generator, info.classes, out, SampleRequest(count=1, rows=0, ways=0))

    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_samples(generator, info.classes, out, SampleRequest(count=2, rows=0, ways=0, seed=9), after=stopped)
    assert json.loads((out / "samples.json").read_text())["files"] == [
        name for name in png_files(out) if name.startswith("images/image-000000")
    ]


def test_rows_show_the_first_classes_unless_some_are_named(run, tmp_path, monkeypatch):
    generator, info, _ = open_generator(run)
    monkeypatch.setattr("hamburger.generation.predict.ROWS_SHOWN", 3)
    counted = []
    wanted = SampleRequest(count=2, rows=5, ways=2, stops=3)
    write_samples(generator, info.classes, tmp_path / "a", wanted, after=lambda: counted.append(1))
    assert len(counted) == count_images(wanted, info.classes) == 2 + 5 * 3 + 2 * 3
    with Image.open(tmp_path / "a" / "classes.png") as opened:
        assert opened.size == (5 * 18 - 2, 3 * 18 - 2)
        shown = opened.copy()
    summary = json.loads((tmp_path / "a" / "samples.json").read_text())
    assert summary["rows"] == {"0": "disc", "1": "square", "2": "cross"} and len(summary["classes"]) == 4
    named = SampleRequest(count=0, rows=5, ways=0, classes=("3", "2", "1", "0"))
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
        SampleRequest(count=0, rows=0, ways=0)


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
    save_generator(tmp_path / "broken.safetensors", generator, info)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors has 1 tensors that are not finite \(out\.bias\)"):
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


@pytest.fixture(scope="module")
def means():
    return module_extractor(Means(), "means", size=8, version="1")


def test_distances_match_those_of_the_features(run, means, tmp_path):
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=30, choice=20, subsets=4, batch=7)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    found = measure_generator(generator, real, means, measure, device=CPU)
    from hamburger.generation.sampling import sample

    theirs = means(torch.from_numpy(np.array(images.images)))
    ours = means(to_bytes(sample(generator, 30, seed=0)))
    assert found.frechet == pytest.approx(frechet_distance(fit_gaussian(theirs), fit_gaussian(ours)), rel=1e-4)
    assert found.name == "frechet[means@8]" and (found.real, found.fake) == (40, 30)

    again = measure_real(
        images, means, measure, device=CPU, cache=tmp_path, progress=lambda *_: pytest.fail("read again")
    )
    assert torch.equal(again.features, real.features) and len(real.features) == 20
    other = load_images(open_source("figures", "train", size=16, length=40, seed=1))
    assert not torch.equal(measure_real(other, means, measure, device=CPU, cache=tmp_path).features, real.features)
    larger = load_images(open_source("figures", "train", size=32, length=40))
    with pytest.raises(OptionError, match="16 pixels, the real ones have 32"):
        measure_generator(
            generator, measure_real(larger, means, measure, device=CPU, cache=tmp_path), means, measure, device=CPU
        )


def test_features_of_another_version_are_computed_again(means, tmp_path):
    """The label has a hash of the weights; what a module computes from them may change under the same label."""
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=16, choice=20)
    before = measure_real(images, means, measure, device=CPU, cache=tmp_path)

    class Changed(Means):
        def forward(self, x):
            return 2 * super().forward(x)

    changed = module_extractor(Changed(), "means", size=8, version="2")
    assert changed.label == means.label
    after = measure_real(images, changed, measure, device=CPU, cache=tmp_path)
    torch.testing.assert_close(after.features, 2 * before.features)
    torch.testing.assert_close(after.gaussian.mean, 2 * before.gaussian.mean)
    for extractor, first in ((means, before), (changed, after)):
        again = measure_real(
            images, extractor, measure, device=CPU, cache=tmp_path, progress=lambda *_: pytest.fail("read again")
        )
        assert torch.equal(again.gaussian.covariance, first.gaussian.covariance)
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("statistics-*")}
    measure_real(
        images, changed, MeasureSettings(samples=16, choice=9), device=CPU, cache=tmp_path
    )  # features of fewer images
    assert files == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("statistics-*")}


def test_an_extractor_without_a_version_is_not_cached(tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=40))
    plain = module_extractor(Means(), "plain", size=8)
    read = []
    for _ in range(2):
        read.clear()
        with pytest.warns(UserWarning, match=r"plain@8 .* are not cached.*features_version"):
            measure_real(
                images,
                plain,
                MeasureSettings(samples=16),
                device=CPU,
                cache=tmp_path,
                progress=lambda *_: read.append(1),
            )
        assert read
    assert not list(tmp_path.iterdir())


def test_an_unwritable_cache_is_reported_before_the_work(means, tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=40))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        measure_real(
            images,
            means,
            MeasureSettings(samples=16),
            device=CPU,
            cache=tmp_path / "file" / "x",
            progress=lambda *_: pytest.fail("worked"),
        )


def test_fewer_samples_than_the_choice_still_compare_all_classes(run, means, tmp_path):
    """Images in folders are sorted by class: the first ones would be of the first classes only."""
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    by_class = np.argsort(images.labels, kind="stable")
    images = dataclasses.replace(images, images=images.images[by_class], labels=images.labels[by_class])
    measure = MeasureSettings(samples=16, choice=40, subsets=4)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    assert len(real.features) == 16
    everything = means(torch.from_numpy(np.array(images.images)))
    places = [int((everything == one).all(1).nonzero()[0]) for one in real.features]
    assert len({int(images.labels[place]) for place in places}) > 2
    measure_generator(generator, real, means, measure, device=CPU)
    with pytest.raises(OptionError, match="hold features of 16 images"):
        measure_generator(generator, real, means, MeasureSettings(samples=14, choice=40, subsets=4), device=CPU)


def test_too_few_real_images_are_reported_before_the_work(means, tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=3))
    with pytest.raises(OptionError, match=r"figures, split 'train', has 3 images; .* at least 4"):
        measure_real(
            images,
            means,
            MeasureSettings(samples=20),
            device=CPU,
            cache=tmp_path,
            progress=lambda *_: pytest.fail("worked"),
        )


def test_nan_images_are_not_measured(run, means, tmp_path):
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=16, choice=8, subsets=2)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    torch.nn.init.constant_(generator.out.bias, math.nan)
    with pytest.raises(InputError, match="NaN"):
        measure_generator(generator, real, means, measure, device=CPU)
    with pytest.raises(OptionError, match="truncation must be"):
        MeasureSettings(truncation=0.0)


def test_extractors_by_name(tmp_path):
    with pytest.raises(OptionError, match=r"needs --weights FILE.*not called FID"):
        create_extractor("inception")
    with pytest.raises(OptionError, match="did you mean 'inception'"):
        create_extractor("inceptio")
    for name in ("inception", "efficientnet-lite0"):
        with pytest.raises(OptionError, match=r"gan fid: there is no file --weights .*none\.pth"):
            create_extractor(name, tmp_path / "none.pth")
    (tmp_path / "other.pth").write_bytes(b"other weights")
    with pytest.raises(CheckpointError, match="the weights that FID is defined by"):
        create_extractor("inception", tmp_path / "other.pth")
    own = create_extractor("gan_run:Means", size=8)
    assert own.label.startswith("Means@8 bilinear-antialias sha256:")
    assert own.version is None
    with pytest.raises(OptionError, match="gan_run:Nothing"):
        create_extractor("gan_run:Nothing")


def test_a_module_declares_the_version_of_its_features(monkeypatch):
    monkeypatch.setattr(Means, "features_version", "3", raising=False)
    assert create_extractor("gan_run:Means", size=8).version == "3"
    monkeypatch.setattr(Means, "features_version", 3)
    with pytest.raises(OptionError, match="features_version must be a string, got 3"):
        create_extractor("gan_run:Means", size=8)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("torch-fidelity", {"resizer": "bilinear"}, "brings its own resizer; leave --resizer out"),
        ("torch-fidelity", {"size": 64}, "brings its own size"),
        ("torch-fidelity", {"weights": "w"}, "brings its own weights"),
        ("torch-fidelity", {"other_weights": True}, "--other-weights is for --extractor inception only"),
        ("efficientnet-lite0", {"weights": "w", "other_weights": True}, "--other-weights is for"),
        ("gan_run:Means", {"other_weights": True}, "--other-weights is for"),
        ("gan_run:Means", {"weights": "w"}, "brings its own weights; leave --weights out"),
        ("inception", {"weights": "w", "size": 64}, "299 pixels"),
    ],
)
def test_options_that_do_not_apply_to_an_extractor_are_refused(name, options, complaint):
    with pytest.raises(OptionError, match=complaint):
        create_extractor(name, **options)


def test_torch_fidelity_where_it_is_installed(monkeypatch):
    """With a stand-in, since the tests do not require the package."""
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(OptionError, match="pip install torch-fidelity"):
        create_extractor("torch-fidelity")

    class StandIn(torch.nn.Module):
        def __init__(self, name, features):
            super().__init__()
            self.features = features

        def forward(self, images):
            assert images.dtype == torch.uint8 and self.features == ["2048"]
            assert not self.training and not torch.is_autocast_enabled("cpu")
            return (images.float().mean((2, 3)),)

    package = types.ModuleType("torch_fidelity")
    package.__version__ = "0.4.0"
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = StandIn
    monkeypatch.setitem(sys.modules, "torch_fidelity", package)
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", module)
    extractor = create_extractor("torch-fidelity")
    extractor.network.train()  # the extractor restores evaluation mode and full precision
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert extractor(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8)).tolist() == [[7.0] * 3] * 2
    with pytest.raises(InputError, match="resize: images must be uint8"):
        extractor(torch.rand(2, 3, 8, 8))
    assert extractor.label.startswith("torch-fidelity_inception@299 its-own sha256:")
    assert extractor.version == "0.4.0"
    assert distance_name(extractor.label) == "frechet[torch-fidelity_inception@299]"


def test_the_real_torch_fidelity():
    """The features of one image do not depend on the others."""
    pytest.importorskip("torch_fidelity")
    try:
        extractor = create_extractor("torch-fidelity")
    except OSError as error:  # it downloads its weights on first use
        pytest.skip(f"its weights are not available ({error})")
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    extractor.network.train()
    features = extractor(images)
    assert features.shape == (3, 2048) and features.dtype == torch.float32 and not features.requires_grad
    torch.testing.assert_close(extractor(images[:1]), features[:1], rtol=1e-4, atol=1e-4)
    assert distance_name(extractor.label) == "frechet[torch-fidelity_inception@299]"
