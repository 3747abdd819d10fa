"""Drawings that fit a page: sizes, colours, names of their parts."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from hamburger.report.gallery import overlay_map
from hamburger.report.html import BASELINE, INK, colourise, encode_image, render_svg, shrink
from hamburger.report.page import line_style
from hamburger.report.study import RunGroup, Study
from hamburger.segmentation.task import SEGMENTATION


def opened(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


def test_an_encoded_image_keeps_its_pixels():
    image = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    assert np.array_equal(opened(encode_image(image)), image.movedim(0, 2).numpy())
    assert encode_image(image, photo=True).startswith("data:image/jpeg;base64,")


def test_large_images_shrink_and_labels_are_never_mixed():
    image = torch.full((3, 720, 480), 100, dtype=torch.uint8)
    assert shrink(image).shape == (3, 360, 240)
    assert shrink(image).unique().tolist() == [100]
    label = torch.randint(0, 2, (500, 900)).to(torch.uint8) * 255
    assert shrink(label, labels=True).shape == (200, 360)
    assert set(shrink(label, labels=True).unique().tolist()) == {0, 255}
    assert shrink(label[:9, :9]).shape == (9, 9)


def test_colours_brighten_with_the_value():
    brightness = colourise(torch.tensor([[0.0, 1.0, 2.0, 4.0]]), signed=False).mean(0)[0]
    assert (brightness.diff() > 0).all()
    below, zero, above = colourise(torch.tensor([[-2.0, 0.0, 2.0]]), signed=True).unbind(2)
    assert zero.min() > 0.9
    assert below[2] > below[1] and above[0] > above[2]  # purple, orange
    assert torch.isfinite(colourise(torch.zeros(2, 2), signed=False)).all()


def test_a_map_covers_its_blocks_of_the_image():
    drawn = overlay_map(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert drawn.shape == (3, 8, 8)
    bright = drawn.float().mean(0) > drawn.float().mean(0)[0, 0]
    assert bright[:4, 4:].all() and bright.sum() == 16


def test_figures_take_the_colour_of_the_text_and_share_no_ids():
    texts = [render_svg(name, lambda axes: axes.plot([1, 2], [3, 1], "o-"), alt="a line") for name in ("one", "two")]
    ids = [{part.split('"')[0] for part in text.split(' id="')[1:]} for text in texts]
    assert all(ids) and not ids[0] & ids[1]
    for text in texts:
        assert INK not in text and "currentColor" in text and "http" not in text
        assert text.startswith("<svg role") and text.rstrip().endswith("</svg>")
    assert render_svg("one", lambda axes: axes.plot([1, 2], [3, 1], "o-"), alt="a line") == texts[0]


@pytest.mark.parametrize("count", [1, 12])
def test_groups_have_distinct_styles(count):
    groups = (RunGroup("baseline", "baseline", ()), *(RunGroup(str(i), "rival", ()) for i in range(count)))
    looks = [tuple(line_style(Study(SEGMENTATION, groups, groups[0], ()), group).values()) for group in groups]
    assert looks[0][0] == BASELINE
    assert len(set(looks)) == len(groups)
