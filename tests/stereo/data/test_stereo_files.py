"""Stereo sets in files: every layout, every disparity format, and all defects listed at once."""

from __future__ import annotations

import fake_stereo
import numpy as np
import pytest
from fake_datasets import write_image
from paths import SHARED
from PIL import Image

from hamburger.errors import DataError, OptionError, UnknownNameError
from hamburger.stereo.data import check_stereo, create_stereo_set, inspect_stereo, stereo_sets
from hamburger.stereo.data.files import encode_pfm, find_consistent, read_disparity, read_pfm

REAL = SHARED / "data" / "stereo"


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_a_pfm_of_either_byte_order_is_read_from_the_top(tmp_path, big):
    values = np.arange(15, dtype=np.float32).reshape(3, 5) / 3
    values[0, 2] = np.inf
    fake_stereo.write_pfm(tmp_path / "a.pfm", values, big=big)
    assert np.array_equal(read_pfm(tmp_path / "a.pfm"), values)
    (tmp_path / "ours.pfm").write_bytes(encode_pfm(values))
    assert np.array_equal(read_pfm(tmp_path / "ours.pfm"), values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a one-channel PFM file"),
        (b"P6\n1 1\n255\n" + bytes(3), "has mode RGB"),
        (b"PF\n1 1\n-1\n" + bytes(12), "not a one-channel PFM file"),
        (b"Pf\n2 2\n-1\n" + bytes(15), "or damaged .*truncated"),
        (b"Pf\n0 2\n-1\n", "not a one-channel PFM file"),
        (b"Pf\n2 2\n0.0\n" + bytes(16), "a scale that is not 0"),
        (b"Pf\n2 2\n1.2.3\n" + bytes(16), "not a one-channel PFM file"),
    ],
)
def test_an_invalid_pfm_raises(tmp_path, content, message):
    path = tmp_path / "a.pfm"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_pfm(path)
    assert str(path) in str(error.value)


def test_sixteen_bit_png_and_scale(tmp_path):
    Image.fromarray(np.array([[0, 256], [384, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert read_disparity(tmp_path / "a.png", scale=256).tolist() == [[0, 1], [1.5, np.float32(65535 / 256)]]
    write_image(tmp_path / "colours.png")
    with pytest.raises(DataError, match="one grey channel"):
        read_disparity(tmp_path / "colours.png")


def test_every_middlebury_layout(tmp_path):
    truths = fake_stereo.middlebury(tmp_path)
    data = create_stereo_set("middlebury", "val", tmp_path)
    assert list(data.ids) == sorted(truths)
    for id, sample in zip(data.ids, data, strict=True):
        assert sample.left.shape == sample.right.shape == (3, fake_stereo.H, fake_stereo.W)
        assert np.array_equal(sample.disparity.numpy(), truths[id]), id
        assert not np.array_equal(sample.left.numpy(), sample.right.numpy())
        assert sample.seen is None
    findings = check_stereo(data)
    assert findings.sizes == {(fake_stereo.H, fake_stereo.W): 5} and findings.largest == 8
    assert findings.known == pytest.approx(np.mean([values > 0 for values in truths.values()]))
    assert create_stereo_set("middlebury", "val", tmp_path, scale=2)[1].disparity.max() == 4  # art


def test_a_list_selects_pairs_and_training_needs_one(tmp_path):
    fake_stereo.middlebury(tmp_path)
    with pytest.raises(DataError, match=r"which of its 5 pairs are 'train'.*train\.txt"):
        create_stereo_set("middlebury", "train", tmp_path)
    (tmp_path / "train.txt").write_text("piano\naloe\n")
    assert create_stereo_set("middlebury", "train", tmp_path).ids == ["piano", "aloe"]
    (tmp_path / "train.txt").write_text("pianno\n")
    with pytest.raises(DataError, match="no pair 'pianno'; did you mean 'piano'"):
        create_stereo_set("middlebury", "train", tmp_path)


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_sceneflow(tmp_path, suffix):
    fake_stereo.sceneflow(tmp_path, suffix=suffix)
    train = create_stereo_set("sceneflow", "train", tmp_path)
    assert train.ids == ["TRAIN/A/0000/0000", "TRAIN/A/0000/0001"]
    assert create_stereo_set("sceneflow", "val", tmp_path).ids == ["TEST/A/0000/0000", "TEST/A/0000/0001"]
    for frame, sample in enumerate(train):
        assert np.array_equal(sample.disparity.numpy(), fake_stereo.truth(f"TRAIN/A/0000{frame}", unknown=False))
    assert check_stereo(train).known == 1


def test_several_sceneflow_trees_and_the_right_disparity(tmp_path):
    fake_stereo.sceneflow(tmp_path / "Monkaa", scenes=("forest",), frames=1)
    values = np.full((fake_stereo.H, fake_stereo.W), 2, np.float32)
    for side in ("left", "right"):
        fake_stereo.write_pfm(tmp_path / "Monkaa" / "disparity" / "forest" / side / "0000.pfm", values)
    data = create_stereo_set("sceneflow", "train", tmp_path)
    assert data.ids == ["Monkaa/forest/0000"]
    seen = data[0].seen.numpy()
    assert not seen[:, :2].any() and seen[:, 2:].all()
    assert data.read(0, occlusions=False).seen is None
    with pytest.raises(DataError, match=r"1 pairs, and none of split 'val'.*val\.txt"):
        create_stereo_set("sceneflow", "val", tmp_path)


def test_a_pair_at_half_its_size(tmp_path):
    root = tmp_path / "one"
    for name in ("im2.png", "im6.png"):
        write_image(root / name, (5, 6))
    values = np.array(
        [[8, 8, 4, 9, 0, 8], [8, 9, 4, 4, 8, 8], [2, 2, 3, 3, 6, 6], [2, 2, 3, 3, 6, 7], [1, 1, 1, 1, 1, 1]]
    )
    fake_stereo.write_png(root / "disp2.png", values, scale=4)
    fake_stereo.write_png(root / "disp6.png", np.full((5, 6), 2), scale=4)
    whole, half = (create_stereo_set("middlebury", "val", tmp_path, shrink=factor)[0] for factor in (1, 2))
    # an edge of 5 pixels and an unknown pixel make their blocks unknown
    assert half.disparity.tolist() == [[8.25 / 2, 0, 0], [1, 1.5, 6.25 / 2]]
    blocks = whole.left[:, :4].numpy().reshape(3, 2, 2, 3, 2).transpose(0, 1, 3, 2, 4).reshape(3, 2, 3, 4)
    assert np.abs(half.left.numpy() - blocks.mean(-1)).max() <= 0.5 and half.right.shape == (3, 2, 3)
    # of the block 2 2 2 2 only the half that lies inside the right frame is seen
    assert not half.seen[1, 0] and half.seen.sum() == whole.seen[:4].reshape(2, 2, 3, 2).all(3).all(1).sum()
    with pytest.raises(OptionError, match="shrink"):
        create_stereo_set("middlebury", "val", tmp_path, shrink=0)


def test_a_mask_gives_the_pixels_both_cameras_see(tmp_path):
    fake_stereo.middlebury(tmp_path)
    mask = fake_stereo.rng("mask").choice(np.array([0, 128, 255], np.uint8), (fake_stereo.H, fake_stereo.W))
    Image.fromarray(mask).save(tmp_path / "piano" / "mask0nocc.png")
    data = create_stereo_set("middlebury", "val", tmp_path)
    assert np.array_equal(data[data.ids.index("piano")].seen.numpy(), mask == 255)


def test_two_disparities_give_the_pixels_both_cameras_see():
    """A near square, at disparity 4, before a ground at disparity 1: by hand, pixel by pixel."""
    left, right = np.full((1, 12), 1, np.float32), np.full((1, 12), 1, np.float32)
    left[0, 6:9], right[0, 2:5] = 4, 4
    expected = [x >= 1 for x in range(12)]
    for x in range(12):
        there = x - int(left[0, x])
        expected[x] = there >= 0 and right[0, there] == left[0, x]
    assert find_consistent(left, right).tolist() == [expected]
    assert expected == [False, True, True, False, False, False] + [True] * 6
    assert not find_consistent(np.zeros((1, 12), np.float32), right).any()


def test_every_defect_is_listed_with_its_path(tmp_path):
    fake_stereo.middlebury(tmp_path)
    (tmp_path / "cones" / "im6.png").unlink()
    (tmp_path / "art" / "view1.png").unlink()  # the right half alone is half of a pair, too
    write_image(tmp_path / "aloe" / "aloeR.jpg", (fake_stereo.H, fake_stereo.W + 1))
    fake_stereo.write_png(tmp_path / "aloe" / "aloeGT.png", np.zeros((fake_stereo.H, fake_stereo.W)))
    bad = fake_stereo.truth("bad")
    bad[0, :3] = np.nan
    fake_stereo.write_pfm(tmp_path / "piano" / "disp0GT.pfm", bad)
    np.savez(tmp_path / "motorcycle" / "motorcycle_disp.npz", -fake_stereo.truth("motorcycle"))
    data = create_stereo_set("middlebury", "val", tmp_path)
    with pytest.raises(DataError, match="middlebury, split 'val': 6 problems") as error:
        check_stereo(data)
    problems = error.value.problems
    for path, what in {
        "cones/im6.png": "missing",
        "art/view1.png": "missing",
        "aloe/aloeR.jpg": f"{fake_stereo.W + 1} x {fake_stereo.H} pixels, but the left image",
        "aloe/aloeGT.png": "no pixel has a known disparity",
        "piano/disp0GT.pfm": "3 pixels are NaN",
        "motorcycle/motorcycle_disp.npz": "disparities are negative",
    }.items():
        assert any(str(tmp_path / path) in line and what in line for line in problems), path
    assert len(problems) == 6
    with pytest.raises(DataError, match=r"im6\.png: missing"):
        data[data.ids.index("cones")]


def test_disparities_without_their_image_do_not_count_as_known(tmp_path):
    fake_stereo.middlebury(tmp_path)
    (tmp_path / "art" / "view1.png").unlink()
    (tmp_path / "one.txt").write_text("piano\n")
    (tmp_path / "two.txt").write_text("piano\nart\n")
    one, two = (inspect_stereo(create_stereo_set("middlebury", split, tmp_path)) for split in ("one", "two"))
    assert two.known == one.known and len(two.problems) == 1


def test_a_list_that_is_not_text_raises(tmp_path):
    fake_stereo.sceneflow(tmp_path)
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"train\.txt: not readable as text"):
        create_stereo_set("sceneflow", "train", tmp_path)


def test_unknown_names_and_missing_folders_raise(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'middlebury'"):
        create_stereo_set("midlebury", "val", tmp_path)
    for name in stereo_sets.names():
        if name == "planes":
            with pytest.raises(OptionError, match="reads no folder"):
                create_stereo_set(name, "train", tmp_path)
            continue
        with pytest.raises(OptionError, match="needs its folder"):
            create_stereo_set(name, "val")
        with pytest.raises(DataError, match="there is no folder"):
            create_stereo_set(name, "val", tmp_path / "nowhere")
        with pytest.raises(DataError, match="should hold"):
            create_stereo_set(name, "val", tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real pairs are not on this machine")
def test_the_real_pairs_match_under_their_disparities():
    """Warping the right image to the left by the truth makes them alike; by another disparity it does not."""
    data = create_stereo_set("middlebury", "val", REAL)
    assert data.ids == ["aloe", "cones", "motorcycle", "teddy"]
    assert check_stereo(data).largest == 211
    for sample in data:
        d = sample.disparity.numpy()
        rows, columns = np.nonzero(d)

        def error(shift, d=d, rows=rows, columns=columns, sample=sample):
            there = np.rint(columns - d[rows, columns] + shift).astype(int)
            inside = (there >= 0) & (there < d.shape[1])
            left, right = sample.left.numpy().astype(float), sample.right.numpy().astype(float)
            return np.median(np.abs(left[:, rows, columns] - right[:, rows, there.clip(0, d.shape[1] - 1)])[:, inside])

        assert error(0) < 0.5 * min(error(-10), error(10))
