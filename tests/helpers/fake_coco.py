"""A small data set in COCO's layout, written with Pillow."""

from __future__ import annotations

import json

import fake_datasets

SIZE = (30, 40)  # h, w


def coco(root, split="train2017", images=4):
    """Every image has a square of category 3 and a triangle of category 7; categories are not in order of their ids."""
    entries, annotations = [], []
    for i in range(images):
        fake_datasets.write_image(root / split / f"{i:03d}.png", SIZE)
        entries.append({"id": 10 + i, "file_name": f"{i:03d}.png", "height": SIZE[0], "width": SIZE[1]})
        square = [4, 5, 14, 5, 14, 15, 4, 15]
        annotations.append(note(2 * i, 10 + i, 3, [4, 5, 10, 10], [square]))
        annotations.append(note(2 * i + 1, 10 + i, 7, [20, 10, 10, 10], [[20, 10, 30, 20, 20, 20]]))
    categories = [{"id": 7, "name": "triangle"}, {"id": 3, "name": "square"}]
    return write(root, split, {"images": entries, "annotations": annotations, "categories": categories})


def note(id, image, category, box, segmentation, **more):
    return {"id": id, "image_id": image, "category_id": category, "bbox": box, "segmentation": segmentation, **more}


def write(root, split, content):
    path = root / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return content
