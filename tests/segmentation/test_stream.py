"""`stream`: labels of the whole image from tiles, files in parts, kills, and what cannot be computed in tiles."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from small_segmenter import info
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, NotFiniteError, OptionError
from hamburger.hams.base import Ham
from hamburger.inference.disk_maps import DiskMap, run_with_journal
from hamburger.inference.large_images import open_large_image
from hamburger.layers.ham import HamLayer
from hamburger.segmentation import stream as module
from hamburger.segmentation.stream import StreamedLabels, probe
from hamburger.training.image_files import normalise

needs_tifffile = pytest.mark.skipif(not importlib.util.find_spec("tifffile"), reason="tifffile is not installed")


def network(context="nmf", backbone="tiny", stride=4, **options):
    """A network whose batch norms have statistics, so that labels differ within an image."""
    torch.manual_seed(0)
    if context == "vq":
        options["temperature"] = 0.1  # at 0.01, the default, a softmax amplifies rounding a hundred times
    net = hb.create_model(
        "hamnet",
        backbone=backbone,
        output_stride=stride,
        num_classes=4,
        context=context,
        context_options=options,
        head_options={"width": 32},
    ).train()
    with torch.no_grad():
        for _ in range(8):
            net(torch.randn(2, 3, 65, 65))
    net.info = info()
    return net.eval()


def random_image(height, width, seed=0):
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def whole_logits(net, image):
    with torch.inference_mode():
        return net(normalise(image, net.info.mean, net.info.std)[None])[0]


def assert_same_labels(labels, logits):
    """Labels are those of the logits, except where two logits are equal up to rounding."""
    assert labels.dtype == torch.uint8 and labels.shape == logits.shape[1:]
    best, second = logits.topk(2, dim=0).values
    decided = best - second > 1e-4
    assert decided.float().mean() > 0.99
    assert torch.equal(labels[decided], logits.argmax(0).to(torch.uint8)[decided])
    assert len(labels.unique()) > 1


SMALL = 96 * 96  # pixels of a tile, of which the margins are 24 on each side
CASES = [
    ("nmf", (130, 201), {}),
    ("nmf", (57, 333), {"heads": 2, "init": "online"}),
    ("vq", (101, 129), {}),
    ("hals", (101, 129), {}),
    ("cd", (129, 100), {"version": "v2"}),
    ("nmf", (128, 128), {"final_update": False, "steps": 1}),
    ("nmf", (99, 130), {"eval_steps": 0}),
    ("nmf", (101, 121), {"init": "columns", "heads": 2, "steps": 2}),
    (None, (130, 130), {}),
]


@pytest.mark.parametrize(("context", "size", "options"), CASES, ids=str)
def test_tiles_give_the_labels_of_the_whole_image(context, size, options, tmp_path):
    net, image = network(context, **options), random_image(*size)
    assert len(StreamedLabels(net, image, tmp_path, device="cpu", max_pixels=SMALL).tiles) > 3
    assert_same_labels(hb.stream(net, image, device="cpu", max_pixels=SMALL), whole_logits(net, image))


def test_independent_tiles_give_other_labels():
    """Otherwise the test above would pass without a common dictionary."""
    net, image = network(), random_image(130, 201)
    labels = hb.Predictor(net, side=0, device="cpu", max_pixels=SMALL)(image)
    assert (labels != whole_logits(net, image).argmax(0)).float().mean() > 0.05


def test_several_hams_are_solved_one_after_the_other():
    net = network()
    hb.insert_context(net.backbone, {"layers.1": "nmf", "layers.3": "cd"})
    image = random_image(110, 150)
    streamed_order = [name for name, _, _ in probe(net, torch.device("cpu"))[1]]
    assert streamed_order[-1] == "head.context.ham" and len(streamed_order) == 3
    assert_same_labels(hb.stream(net.eval(), image, device="cpu", max_pixels=SMALL), whole_logits(net, image))


@pytest.mark.full
@pytest.mark.parametrize("backbone", ["resnet18", "timm:tf_efficientnet_lite0", "timm:convnext_atto"])
def test_tiles_of_deep_backbones_give_the_labels_of_the_whole_image(backbone, tmp_path):
    net = network(backbone=backbone, stride=32 if "convnext" in backbone else 16)
    image, pixels = random_image(60, 2900), 64 * 2100
    assert len(StreamedLabels(net, image, tmp_path, device="cpu", max_pixels=pixels).tiles) > 1
    assert_same_labels(hb.stream(net, image, device="cpu", max_pixels=pixels), whole_logits(net, image))


def test_the_reach_is_how_far_a_change_is_felt():
    net = network(None)
    reach, _ = probe(net, torch.device("cpu"))
    image = random_image(9, 201).float()
    with torch.inference_mode():
        before = net.head(net.backbone(image[None])).logits

        def felt(distance):
            changed = image.clone()
            changed[..., 100 + distance] += 1e3
            return not torch.equal(net.head(net.backbone(changed[None])).logits[..., 25], before[..., 25])

        distances = [d for d in range(-100, 101) if felt(d)]
    assert reach - 4 < max(map(abs, distances)) <= reach


# -- kills -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_a_call_continues_after_a_kill_at_any_moment(tmp_path, monkeypatch):
    net, image, options = network("nmf", steps=2), random_image(60, 110), {"device": "cpu", "max_pixels": 72 * 72}
    expected = hb.stream(net, image, **options)
    done: list[tuple[int, int]] = []
    hb.stream(net, image, progress=lambda *now: done.append(now), **options)
    total = done[-1][1]
    assert done == [(i, total) for i in range(total + 1)]
    write = DiskMap.write
    left = 0

    def write_or_die(self, *args):
        nonlocal left
        write(self, *args)
        left -= 1
        if left == 0:
            raise Killed

    monkeypatch.setattr(DiskMap, "write", write_or_die)
    for writes in range(1, total + 4):
        left, first = writes, []
        work = tmp_path / str(writes)
        try:
            hb.stream(net, image, work=work, **options)
        except Killed:
            labels = hb.stream(net, image, work=work, progress=lambda now, _, first=first: first.append(now), **options)
            assert first[0] > 0 or writes <= 1
            assert torch.equal(labels, expected)
        assert not work.exists()  # all intermediate files are removed


def test_files_of_another_call_are_not_continued(tmp_path):
    options = {"device": "cpu", "max_pixels": SMALL}
    net, first, second = network(), random_image(97, 130), random_image(97, 130, seed=1)

    def stop(done, total):
        if done == total - 1:
            raise Killed

    expected = hb.stream(net, second, **options)
    for damaged in (False, True):
        with pytest.raises(Killed):
            hb.stream(net, first, work=tmp_path / "work", progress=stop, **options)
        if damaged:
            (tmp_path / "work" / "journal.json").write_text('{"plan": [')
        assert torch.equal(hb.stream(net, second, work=tmp_path / "work", **options), expected)


def test_a_journal_counts_only_items_that_exist(tmp_path):
    done = []
    for claim in (-1, 4, 10**30, 1.0, 1.5, "1", True, None):
        (tmp_path / "journal").write_text(json.dumps({"plan": {}, "done": claim}))
        run_with_journal(tmp_path / "journal", {}, [(3, done.append)], lambda now, total: None)
    assert done == [0, 1, 2] * 8


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_part_of_a_map_that_finds_no_space_is_an_error(tmp_path):
    import resource

    map_file, limits = DiskMap(tmp_path / "map", 4, 4, 1, np.uint8), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*map"):
            map_file.write(0, 0, torch.ones(4, 4, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# -- what cannot be computed in tiles ----------------------------------------------------------------------------------


def refuse(net, message, error=InputError, image=None, **options):
    with pytest.raises(error, match=message):
        hb.stream(net, random_image(64, 64) if image is None else image, device="cpu", **options)


def test_networks_that_see_the_whole_image_otherwise_are_refused():
    refuse(network("sa"), "something else than a ham")
    lightham = hb.create_model("lightham", backbone="tiny", output_stride=4, num_classes=4, head_options={"width": 64})
    lightham.info = info()
    refuse(lightham.eval(), "something else than a ham")
    refuse(network("nmf", codes_init="uniform"), "depends on the order of positions", OptionError)
    for name in ("local", "windowed", "robust", "learned"):
        refuse(network(name), "cannot decompose positions in parts", OptionError)
    refuse(network("nmf", init="carry"), "init='carry', which is for videos", OptionError)
    refuse(network("nmf", version="v2+", dual=True), "decomposes along channels", OptionError)


def test_a_ham_without_parts_is_refused(monkeypatch):
    class Whole(Ham):
        def step(self, x, factors):
            return factors

        def readout(self, x, factors):
            return factors.bases.mT @ x

    net = network()
    net.head.context.ham = HamLayer(Whole(rank=4), net.head.context.ham.dim)
    refuse(net.eval(), "Whole does not define update_codes", OptionError)


def test_other_input_is_refused(tmp_path):
    net = network()
    deep, large = network(backbone="resnet18", stride=16), random_image(300, 300)
    refuse(deep, "max_pixels must be at least", OptionError, image=large, max_pixels=64 * 64)
    refuse(nn.Identity(), "needs a segmentation network")
    refuse(net, "uint8 tensor", image=torch.zeros(3, 4, 4))
    refuse(net, "must be a path", image=3)
    refuse(net, "missing", image=tmp_path / "missing.png")
    net.info = None
    refuse(net, "no info")


def test_logits_that_are_not_finite_are_an_error_that_leaves_no_files(tmp_path):
    net = network()
    net.head.classifier[1].weight.data[:] = 3e38
    refuse(net, "logits are NaN or infinite", NotFiniteError, work=tmp_path / "work")
    assert not (tmp_path / "work").exists()
    net.head.classifier[1].weight.data[:] = torch.nan
    refuse(net, r"classifier.1.weight of the network has NaN", NotFiniteError)


def test_two_processes_do_not_share_a_folder(tmp_path):
    """Locks of one process do not exclude each other, so another one holds the lock."""
    net = network()
    code = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        refuse(net, "another process works in", OptionError, work=tmp_path)
        other.communicate()
    hb.stream(net, random_image(64, 64), work=tmp_path, device="cpu")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_map_on_disk_is_an_array(tmp_path):
    random = np.random.default_rng(0)
    array, disk = np.zeros((9, 7, 3), np.float32), DiskMap(tmp_path / "map", 9, 7, 3)
    for _ in range(50):
        (top, bottom), (left, right) = (sorted(random.choice(n + 1, 2, replace=False)) for n in (9, 7))
        values = random.random((bottom - top, right - left, 3), np.float32)
        array[top:bottom, left:right] = values
        disk.write(top, left, torch.from_numpy(values))
        (top, bottom), (left, right) = (sorted(random.choice(n + 1, 2, replace=False)) for n in (9, 7))
        assert np.array_equal(disk.read(top, bottom, left, right), array[top:bottom, left:right])


def test_the_png_has_the_labels_and_their_colours(tmp_path, monkeypatch):
    net, image = network(), random_image(97, 130)
    monkeypatch.setattr(module, "BAND", 1000)  # several bands
    hb.stream(net, image, tmp_path / "labels.png", device="cpu")
    with Image.open(tmp_path / "labels.png") as png:
        assert png.mode == "P" and np.array_equal(png, hb.stream(net, image, device="cpu"))
        assert png.getpalette()[:6] == [*info().palette[0], *info().palette[1]]


KINDS = {
    "tiles": ((150, 170, 3), np.uint8, {"tile": (64, 48)}),
    "deflate": ((150, 170, 3), np.uint8, {"tile": (64, 48), "compression": "zlib"}),
    "predictor": ((150, 170, 3), np.uint8, {"tile": (64, 48), "compression": "zlib", "predictor": True}),
    "strips": ((150, 170, 3), np.uint8, {"rowsperstrip": 7}),
    "one strip": ((150, 170, 3), np.uint8, {}),
    "grey": ((150, 170), np.uint8, {"tile": (64, 64)}),
    "grey of 16 bits": ((150, 170), np.uint16, {"tile": (64, 64)}),
    "RGB of 16 bits": ((150, 170, 3), np.uint16, {"tile": (64, 64)}),
    "alpha": ((150, 170, 4), np.uint8, {"tile": (64, 64), "extrasamples": ["unassalpha"]}),
    "infrared": ((150, 170, 4), np.uint8, {"tile": (64, 64), "extrasamples": ["unspecified"]}),
    "big": ((150, 170, 3), np.uint8, {"tile": (64, 64), "bigtiff": True}),
}


@needs_tifffile
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_tiff_are_those_of_the_whole(kind, tmp_path):
    import tifffile

    from hamburger.training.image_files import read_image

    shape, dtype, options = KINDS[kind]
    random = np.random.default_rng(0)
    pixels = random.integers(0, np.iinfo(dtype).max + 1, shape, dtype)
    photometric = "rgb" if len(shape) == 3 else "minisblack"
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, **options)
    image, whole = open_large_image(tmp_path / "a.tif"), read_image(tmp_path / "a.tif")
    assert (image.height, image.width) == (150, 170)
    for top, bottom, left, right in ((0, 150, 0, 170), (63, 65, 47, 49), (10, 140, 100, 170), (149, 150, 169, 170)):
        assert torch.equal(image.read(top, bottom, left, right), whole[:, top:bottom, left:right])


@needs_tifffile
def test_a_tiff_gives_the_labels_of_its_pixels(tmp_path):
    import tifffile

    net, image = network(), random_image(97, 130)
    tifffile.imwrite(tmp_path / "a.tif", image.permute(1, 2, 0).numpy(), photometric="rgb", tile=(32, 32))
    labels = hb.stream(net, tmp_path / "a.tif", device="cpu", max_pixels=SMALL)
    assert torch.equal(labels, hb.stream(net, image, device="cpu", max_pixels=SMALL))


@needs_tifffile
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiles_without_data_are_black(compression, tmp_path):
    import tifffile

    path, image = tmp_path / "a.tif", np.full((64, 64, 3), 7, np.uint8)
    tifffile.imwrite(path, image, photometric="rgb", tile=(32, 32), compression=compression)
    with tifffile.TiffFile(path, mode="r+") as file:
        tag = file.pages[0].tags["TileByteCounts"]
        tag.overwrite((0, *tag.value[1:]))
    pixels = open_large_image(path).read(0, 64, 0, 64)
    assert not pixels[:, :32, :32].any() and (pixels[:, 32:] == 7).all() and (pixels[:, :, 32:] == 7).all()


@needs_tifffile
def test_hostile_tiffs_are_clean_errors(tmp_path):
    import zlib

    import tifffile

    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((64, 64, 3), np.uint8), photometric="rgb", tile=(64, 64), compression="zlib")
    good = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        page = file.pages[0].aspage()
        start, width = page.dataoffsets[0], page.tags["ImageWidth"].valueoffset
        count = page.tags["TileByteCounts"].valueoffset
    bomb = zlib.compress(bytes(2**24))
    bombed = bytearray(good + bomb)
    bombed[count : count + 4] = len(bomb).to_bytes(4, "little")
    offset = good.index(int(start).to_bytes(4, "little"), 8)
    bombed[offset : offset + 4] = len(good).to_bytes(4, "little")
    wide = bytearray(good)
    wide[width : width + 4] = (2**31 - 1).to_bytes(4, "little")
    contents = {"bomb": bytes(bombed), "wide": bytes(wide), "cut": good[: len(good) // 2], "text": b"hello", "": b""}
    for name, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.tif"):
            open_large_image(path).read(0, 64, 0, 64)
            raise AssertionError(f"{name} was read")
