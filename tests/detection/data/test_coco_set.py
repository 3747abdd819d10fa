"""COCO's layout: scenes match the file, and all defects are listed at once."""

from __future__ import annotations

import json
import re

import fake_datasets
import numpy as np
import pytest
import torch
from fake_coco import SIZE, coco, note, write

from hamburger.detection.data import create_detection_set
from hamburger.detection.data.coco import encode_masks
from hamburger.errors import DataError, OptionError

KEEP_HINT = "set empty=keep to accept images without objects"


def encode(mask):
    return encode_masks(torch.from_numpy(mask)[None])[0]


def open_set(root, split="train2017", **options):
    return create_detection_set("coco", split, root, **options)


def test_a_scene_matches_the_file(tmp_path):
    content = coco(tmp_path)
    group = np.zeros(SIZE, bool)
    group[:6, :8] = True
    content["annotations"].append(note(99, 10, 3, [0, 0, 8, 6], encode(group), iscrowd=1, area=47.5))
    write(tmp_path, "train2017", content)
    data = open_set(tmp_path)
    assert data.classes == ("square", "triangle") and data.ids == ["10", "11", "12", "13"] and data.problems() == []
    scene = data[0]
    expected = torch.from_numpy(fake_datasets.write_image(tmp_path / "train2017" / "000.png", SIZE)).movedim(-1, 0)
    assert torch.equal(scene.image, expected)
    assert scene.labels.tolist() == [0, 1, 0] and scene.crowd.tolist() == [False, False, True]
    assert scene.boxes.tolist() == [[4, 5, 14, 15], [20, 10, 30, 20], [0, 0, 8, 6]]
    assert scene.masks[0].sum() == 100 and scene.masks[0][5:15, 4:14].all()
    assert np.array_equal(scene.masks[2].numpy(), group)
    assert scene.areas.tolist() == [100, scene.masks[1].sum(), 47.5]
    assert 40 <= scene.masks[1].sum() <= 60


@pytest.mark.parametrize("layout", ["images/train2017", "images", "."])
def test_images_may_be_in_other_folders(tmp_path, layout):
    coco(tmp_path)
    files = sorted((tmp_path / "train2017").iterdir())
    (tmp_path / layout).mkdir(parents=True, exist_ok=True)
    for file in files:
        file.rename(tmp_path / layout / file.name)
    assert open_set(tmp_path).problems() == [] and open_set(tmp_path)[3].image.shape == (3, *SIZE)


def test_classes_can_be_chosen(tmp_path):
    coco(tmp_path)
    data = open_set(tmp_path, classes="triangle")
    assert data.classes == ("triangle",) and data[0].labels.tolist() == [0] and data.problems() == []
    with pytest.raises(OptionError, match="did you mean 'triangle'"):
        open_set(tmp_path, classes="triangel")


def open_broken_set(root):
    content = coco(root, images=9)
    (root / "train2017" / "000.png").unlink()
    fake_datasets.write_image(root / "train2017" / "001.png", (7, 8))
    (root / "train2017" / "002.png").write_bytes(b"")
    good = [[4, 5, 14, 5, 14, 15, 4, 15]]
    bad = {
        100: (13, 3, [35, 5, 10, 10], good),
        101: (13, 3, [4, 5, 0, 10], good),
        102: (13, 99, [4, 5, 10, 10], good),
        103: (77, 3, [4, 5, 10, 10], good),
        104: (14, 3, [4, 5, 10, 10], [[4, 5, 14, 5]]),
        105: (14, 3, [4, 5, 10, 10], {"size": list(SIZE), "counts": [5, 6]}),
        106: (14, 3, [4, 5, 10], good),
        107: (14, 3, [4, 5, 10, 10], []),
        108: ([14], 3, [4, 5, 10, 10], good),
        109: (14, [3], [4, 5, 10, 10], good),
        110: (14, 3, [4, 5, 10, 10], [[4, 5, 14, 5, 1e12, 15]]),
    }
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] != 18]
    content["annotations"] += [note(id, *rest) for id, rest in bad.items()]
    content["annotations"].append(note(111, 14, 3, [4, 5, 10, 10], good, area="large"))
    content["annotations"].append(note(112, 14, 3, [4, 5, 10, 10], good, iscrowd="0"))
    content["annotations"].append(content["annotations"][0])
    content["images"].append({"id": 13, "file_name": "003.png", "height": SIZE[0], "width": SIZE[1]})
    write(root, "train2017", content)
    return open_set(root)


def test_every_defect_is_listed_with_its_path_or_id(tmp_path):
    problems = open_broken_set(tmp_path).problems()
    for where, what in {
        "000.png": "missing",
        "001.png": "has 8 x 7 pixels, but instances_train2017.json says 40 x 30",
        "002.png": "empty file",
        "008.png": "has no annotation; set empty=keep",
        "annotation 100 (003.png)": "reaches outside the image of 40 x 30",
        "annotation 101": "has no area",
        "annotation 102": "category_id 99",
        "annotation 103 (no image)": "image_id 77",
        "annotation 104": "three or more corners",
        "annotation 105": "sum to 40 x 30",
        "annotation 106": "left, top, width and height",
        "annotation 107": "empty or neither",
        "annotation 108 (no image)": "image_id [14]",
        "annotation 109": "category_id [3]",
        "annotation 110": "got 4 to 1e+12",
        "annotation 111": "area must be a number",
        "annotation 112": "iscrowd must be 0 or 1 (got '0')",
        "annotation 0 (000.png)": "is listed twice",
        "image 13": "listed 2 times",
    }.items():
        assert sum(where in problem and what in problem for problem in problems) == 1, (where, problems)
    assert len(problems) == 19


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": list(SIZE), "counts": [SIZE[0] * SIZE[1]]}, "the RLE has no pixel of the object"),
        ({"size": list(SIZE), "counts": [600, 0, 600]}, "the RLE has no pixel of the object"),
        ([[4, 5, 4, 5, 4, 5]], "polygons have no area"),
        ([[4, 5, 14, 5, 9, 5], [4, 5, 14, 15, 9, 10]], "polygons have no area"),
        ([[4.1, 5.1, 4.2, 5.2, 4.3, 5.3, 4.4, 5.4]], "polygons have no area"),
        ([[44, 5, 54, 5, 54, 15]], "polygons lie outside the image of 40 x 30"),
        ([[4, -9, 14, -9, 14, 0], [4, 30, 14, 30, 9, 35]], "polygons lie outside the image of 40 x 30"),
    ],
)
def test_a_mask_without_a_pixel_is_a_defect(tmp_path, segmentation, message):
    content = coco(tmp_path, images=1)
    content["annotations"][0]["segmentation"] = segmentation
    write(tmp_path, "train2017", content)
    (problem,) = open_set(tmp_path).problems()
    assert "annotation 0 (000.png)" in problem and message in problem
    data = open_set(tmp_path, broken="drop")
    assert data.problems() == [] and data.dropped == 1 and len(data[0].labels) == 1


@pytest.mark.parametrize(
    ("box", "message"),
    [
        (
            [24, 5, 10, 10],
            r"bbox \[24, 5, 10, 10\] hardly overlaps its segmentation, which extends from 4, 5 to 14, 15$",
        ),
        ([0, 0, 40, 30], "hardly overlaps its segmentation"),
        (
            [4, 5, 14, 15],
            r"hardly overlaps .* to 14, 15; a bbox is left, top, width and height, but this one looks like",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["polygon", "rle"])
def test_a_box_away_from_its_mask_is_a_defect(tmp_path, box, message, kind):
    content = coco(tmp_path, images=1)
    content["annotations"][0]["bbox"] = box
    if kind == "rle":
        mask = np.zeros(SIZE, bool)
        mask[5:15, 4:14] = True
        content["annotations"][0]["segmentation"] = encode(mask)
    write(tmp_path, "train2017", content)
    (problem,) = open_set(tmp_path).problems()
    assert "annotation 0 (000.png)" in problem and re.search(message, problem)


@pytest.mark.parametrize(
    ("box", "polygons"),
    [
        ([4, 5, 10, 10], [[4.4, 5.3, 13.2, 5.9, 13.6, 14.1]]),  # rounded outwards
        ([0, 0, 10, 10], [[-20, -20, 10, -20, 10, 10, -20, 10]]),  # a polygon beyond the image, its box cut off there
        ([4, 5, 1, 1], [[4.2, 5.4, 4.6, 5.4, 4.6, 5.8]]),  # smaller than a pixel
        ([4, 5, 20, 10], [[4, 5, 7, 5, 7, 15, 4, 15], [20, 5, 24, 5, 24, 15]]),  # in two parts
        ([4, 5, 20, 10], [[4, 5, 12, 5, 12, 15, 4, 15]]),  # of the whole object, of which some is hidden
        ([1, 1, 9, 9], [[1, 1, 10, 1, 10, 10, 1, 10]]),  # as corners it would fit nearly as well
    ],
)
def test_boxes_as_tools_write_them_are_accepted(tmp_path, box, polygons):
    content = coco(tmp_path, images=1)
    content["annotations"][0] |= {"bbox": box, "segmentation": polygons}
    write(tmp_path, "train2017", content)
    assert open_set(tmp_path).problems() == []


def test_a_box_given_as_corners_is_recognised(tmp_path):
    content = coco(tmp_path, images=1)
    content["annotations"][1]["bbox"] = [20, 10, 30, 20]
    write(tmp_path, "train2017", content)
    (problem,) = open_set(tmp_path).problems()
    assert "reaches outside" in problem and problem.endswith("looks like left, top, right, bottom")


def test_an_empty_polygon_next_to_a_valid_one_is_accepted(tmp_path):
    content = coco(tmp_path, images=1)
    content["annotations"][0]["segmentation"] += [[4, 5, 14, 5, 9, 5], [4, -9, 14, -9, 14, -1]]
    write(tmp_path, "train2017", content)
    assert open_set(tmp_path).problems() == []


def test_an_image_without_objects_is_reported_once(tmp_path):
    """A box outside, an unknown category, an image that is missing and one that is there, both without annotations."""
    content = coco(tmp_path)
    square = content["annotations"][0]["segmentation"]
    content["annotations"] = [
        note(0, 10, 3, [35, 5, 10, 10], square),
        note(1, 11, 99, [4, 5, 10, 10], square),
    ]
    write(tmp_path, "train2017", content)
    (tmp_path / "train2017" / "002.png").unlink()
    problems = open_set(tmp_path).problems()
    assert len(problems) == 4 and sum("empty=keep" in problem for problem in problems) == 1
    assert any(problem.endswith("003.png: has no annotation; " + KEEP_HINT) for problem in problems)
    dropped = open_set(tmp_path, broken="drop").problems()
    for name in ("000.png", "001.png"):
        message = f"{name}: all its annotations are invalid and left out; {KEEP_HINT}"
        assert sum(problem.endswith(message) for problem in dropped) == 1
    assert len(dropped) == 4 and open_set(tmp_path, broken="drop", empty="keep").problems() == [dropped[-1]]
    assert dropped[-1].endswith("002.png: missing")


def test_an_image_without_the_chosen_classes_is_reported(tmp_path):
    content = coco(tmp_path)
    content["annotations"] = [each for each in content["annotations"] if each["id"] != 1]  # the triangle of the first
    write(tmp_path, "train2017", content)
    assert open_set(tmp_path).problems() == [] and open_set(tmp_path, classes="triangle", empty="keep").problems() == []
    (problem,) = open_set(tmp_path, classes="triangle").problems()
    assert problem.endswith(f"000.png: has no annotation of the chosen classes; {KEEP_HINT}")


def test_broken_annotations_can_be_left_out_and_empty_images_kept(tmp_path):
    open_broken_set(tmp_path)
    data = open_set(tmp_path, broken="drop", empty="keep")
    assert data.dropped == 14
    assert not any(": annotation " in problem for problem in data.problems())
    scene = data[8]
    assert scene.boxes.shape == (0, 4) and scene.masks.shape == (0, *SIZE) and scene.labels.dtype == torch.int64


def test_a_box_may_be_rounded_beyond_the_image(tmp_path):
    content = coco(tmp_path, images=1)
    content["annotations"][0] |= {"bbox": [30.5, 20, 10, 10.4], "segmentation": [[30, 20, 40, 20, 40, 30, 30, 30]]}
    write(tmp_path, "train2017", content)
    data = open_set(tmp_path)
    assert data.problems() == [] and data[0].boxes[0].tolist() == [30.5, 20, 40, 30]


def test_optional_and_irregular_fields_are_accepted(tmp_path):
    """Ids that repeat among different annotations, an area and an iscrowd that are null, sizes as 40.0."""
    content = coco(tmp_path, images=1)
    content["images"][0]["width"] = 40.0
    for annotation in content["annotations"]:
        annotation |= {"id": 0, "area": None, "iscrowd": None}
    write(tmp_path, "train2017", content)
    data = open_set(tmp_path)
    assert data.problems() == [] and torch.equal(data[0].areas, data[0].masks.sum((1, 2)).double())


@pytest.mark.parametrize(
    "part, change, message",
    [
        ("images", {"id": [10]}, r"images\[0\]: id cannot be \[10\]"),
        ("images", {"height": None}, "height cannot be None"),
        ("images", {"width": 0}, "width cannot be 0"),
        ("images", {"file_name": None}, "file_name cannot be None"),
        ("categories", {"id": 3}, "several categories have the category id 3"),
        ("categories", {"name": "square"}, "several categories have the class name 'square'.* classes=0,1"),
    ],
)
def test_invalid_or_ambiguous_entries_raise(tmp_path, part, change, message):
    content = coco(tmp_path)
    content[part][0] |= change
    write(tmp_path, "train2017", content)
    with pytest.raises(DataError, match=message):
        open_set(tmp_path)


def test_one_of_two_categories_of_the_same_name_can_be_chosen(tmp_path):
    content = coco(tmp_path)
    content["categories"][0]["name"] = "square"
    write(tmp_path, "train2017", content)
    data = open_set(tmp_path, classes=[1])
    assert data.classes == ("square",) and data[0].boxes.tolist() == [[20, 10, 30, 20]]


def edits():
    """Named changes, each of one value that a scene or the order of scenes depends on."""
    mask = np.zeros(SIZE, bool)
    mask[4:14, 3:13] = True

    def annotation(**change):
        return lambda content: content["annotations"][0].update(change)

    yield "box", annotation(bbox=[4, 5, 10, 9.5])
    yield "corner", annotation(segmentation=[[4, 5, 14, 5, 14, 15, 4, 14]])
    yield "cut", annotation(segmentation=[[4, 5, 14, 5, 14, 15], [4, 15, 4, 5, 14, 15]])
    yield "rle", annotation(segmentation=encode(mask))
    yield "counts", annotation(segmentation={"size": list(SIZE), "counts": [130, 7, 83, 100, 880]})
    yield "class", annotation(category_id=7)
    yield "area", annotation(area=99)
    yield "crowd", annotation(iscrowd=1)
    yield "image", annotation(image_id=11)
    yield "removed", lambda content: content["annotations"].pop()
    yield "order", lambda content: content["annotations"].reverse()
    yield "file", lambda content: content["images"][0].update(file_name="001.png")


def test_the_digest_changes_with_every_annotation(tmp_path):
    content = coco(tmp_path)
    digests = {"original": open_set(tmp_path).digest}
    for name, edit in edits():
        changed = json.loads(json.dumps(content))
        edit(changed)
        write(tmp_path, "train2017", changed)
        digests[name] = open_set(tmp_path).digest
    assert len(set(digests.values())) == len(digests) == 13
    write(tmp_path, "train2017", content)
    assert open_set(tmp_path).digest == digests["original"]
    assert create_detection_set("shapes", "val", length=2).digest == ""


def test_missing_and_unreadable_files_raise(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        open_set(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"there is no .*instances_train2017\.json"):
        open_set(tmp_path)
    coco(tmp_path)
    path = tmp_path / "annotations" / "instances_train2017.json"
    path.write_text('{"images": []}')
    with pytest.raises(DataError, match="no list of 'annotations'"):
        open_set(tmp_path)
    path.write_text('{"images": [{"id": 3}], "annotations": [], "categories": []}')
    with pytest.raises(DataError, match=r"images\[0\] has no file_name"):
        open_set(tmp_path)
    path.write_text("{")
    with pytest.raises(DataError, match="not readable as JSON"):
        open_set(tmp_path)
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="not readable as JSON"):
        open_set(tmp_path)


@pytest.mark.parametrize("part", ["images", "annotations", "categories"])
def test_an_entry_that_is_not_a_json_object_raises(tmp_path, part):
    content = coco(tmp_path)
    content[part].insert(1, None)
    write(tmp_path, "train2017", content)
    with pytest.raises(DataError, match=rf"{part}\[1\] must be a JSON object"):
        open_set(tmp_path)
