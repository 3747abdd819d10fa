"""Exported detectors: the graph of one image size matches torchvision's code."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from tiers import not_on_torch_2_6

from hamburger.checkpoints.weights_file import Info
from hamburger.detection.data import create_detection_set
from hamburger.detection.export import (
    OUTPUTS,
    FixedDetector,
    compare_objects,
    detector_export_spec,
    paste_masks,
    select_boxes,
)
from hamburger.detection.model import create_detector
from hamburger.errors import ExportError
from hamburger.inference.export import export
from hamburger.tasks import tasks
from hamburger.training.image_files import normalise

SIZE = (56, 80)  # resized inside, by 8 / 7
SPREADS = {"cls_score": 2.0, "bbox_pred": 0.5, "mask_fcn_logits": 2.0}


def scenes(count=3):
    """uint8   ->   count 3 h w"""
    drawn = create_detection_set("shapes", "val", size=80, length=count)
    return torch.stack([drawn[i].image[:, : SIZE[0]] for i in range(count)])


def detector(**options):
    """Untrained, but with large enough weights that scores, boxes and masks differ between positions."""
    torch.manual_seed(0)
    small = {"size": 64, "max_size": 96, "anchor": 8, "channels": 16, "hidden": 32, "proposals": 20}
    net = create_detector("tiny", num_classes=3, gate="one", **small, **options).eval()

    def rescale(module, args, output, *, spread):
        for each in (module.weight, module.bias):
            each *= spread / output.std()

    heads = {name.rpartition(".")[2]: module for name, module in net.named_modules()}
    with torch.no_grad():
        for name, spread in SPREADS.items():
            hook = heads[name].register_forward_hook(
                lambda *hook_args, spread=spread: rescale(*hook_args, spread=spread)
            )
            net([scenes()[0] / 255])
            hook.remove()
    return net


def run_net(net, image):
    with torch.no_grad():
        [objects] = net([image / 255])
    return tuple(objects[name] for name in OUTPUTS)


def load_program(path):
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()
        return lambda image: module(normalise(image)[None])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: tuple(
        map(torch.from_numpy, session.run(list(OUTPUTS), {"image": normalise(image)[None].numpy()}))
    )


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.full), "pt2"])
@not_on_torch_2_6
def test_exported_files_match_torch(format, tmp_path):
    net = detector(context="nmf", context_options={"rank": 4}, after="p3")
    noise = torch.randint(256, (3, *SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = [scenes()[0], noise, scenes()[2] // 4]
    net.net.roi_heads.score_thresh = float(run_net(net, images[2])[2].max()) + 1e-3  # nothing in the dark
    Image.fromarray(images[0].movedim(0, -1).numpy()).save(tmp_path / "a.png")
    path = tmp_path / f"net.{format}"
    made = export(net, Info(), path, format=format, size=SIZE, image=tmp_path / "a.png", spec=detector_export_spec(64))
    assert made.dynamic == () and made.size == SIZE and "--size height,width" in made.refusals[-1]
    run, counts = load_program(path), set()
    for image in images:
        ours, theirs = run_net(net, image), run(image)
        assert torch.equal(ours[1], theirs[1]) and theirs[3].shape[1:] == SIZE and theirs[3].dtype == torch.bool
        assert torch.allclose(ours[0], theirs[0], atol=1e-2) and torch.allclose(ours[2], theirs[2], atol=1e-4)
        assert (ours[3] != theirs[3]).sum() <= 2
        counts.add(len(ours[0]))
    assert len(counts) == 3 and min(counts) == 0 and max(counts) > 5
    with pytest.raises(Exception, match=r"invalid dimensions|Guard failed"):
        run(images[0][:, :48])


def test_the_default_size_is_that_of_the_network():
    assert tasks["detection"].export_spec(Info(model={"size": 64})).size == (64, 64)


@pytest.mark.parametrize("options", [{}, {"context": "efficient", "after": "p2"}, {"context": "sa", "after": "layer3"}])
def test_the_fixed_detector_matches_torchvision(options):
    net = detector(**options)
    with torch.no_grad():
        for image in scenes():
            judged = compare_objects(run_net(net, image), FixedDetector(net)(normalise(image)[None]))
            assert judged.same.all() and len(judged.same) > 5 and judged.difference < 1e-5


@pytest.mark.full
def test_an_export_without_any_object_to_compare_raises(tmp_path):
    net = detector()
    net.net.roi_heads.score_thresh = 1.0
    with torch.no_grad():
        outputs = FixedDetector(net)(normalise(scenes()[0])[None])
    assert [tuple(each.shape) for each in outputs] == [(0, 4), (0,), (0,), (0, *SIZE)]
    with pytest.raises(
        ExportError, match=r"neither torch nor the file find any objects.*photograph that has some by --image"
    ):
        export(net, Info(), tmp_path / "n.pt2", format="pt2", size=SIZE, spec=detector_export_spec(64))
    assert not list(tmp_path.iterdir())


def test_selected_boxes_match_a_loop():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 40, (60, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(-2, 20, (60, 2)).clip(0)], 1).astype(np.float32)
    scores, groups = rng.permutation(60).astype(np.float32) / 60, rng.integers(0, 3, 60)
    kept = []
    for i in np.argsort(-scores):
        w, h = boxes[i, 2:] - boxes[i, :2]
        if min(w, h) < 0.01 or scores[i] <= 0.1:
            continue
        for j in kept:
            low, high = np.maximum(boxes[i, :2], boxes[j, :2]), np.minimum(boxes[i, 2:], boxes[j, 2:])
            inside = np.prod((high - low).clip(0))
            areas = sum(np.prod(boxes[one, 2:] - boxes[one, :2]) for one in (i, j))
            if groups[i] == groups[j] and inside > 0.5 * (areas - inside):
                break
        else:
            kept.append(i)
    assert 20 < len(kept) < 50
    tensors = [torch.from_numpy(each) for each in (boxes, scores, groups)]
    for most in (10, 60, 100):
        index, ranked = select_boxes(*tensors, side=0.01, overlap=0.5, most=most, least=0.1)
        expected = kept[:most] + [-1] * (min(60, most) - len(kept[:most]))
        assert index.tolist() == expected
        assert ranked.tolist() == pytest.approx([scores[i] if i >= 0 else -1 for i in expected])


def test_pasted_masks_match_torchvision():
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    generator, (h, w) = torch.Generator().manual_seed(0), (30, 50)
    centre, half = (torch.rand(80, 2, generator=generator) * torch.tensor([w, h]) for _ in range(2))
    half = half**2 / 40  # from slivers to the whole frame
    boxes = torch.cat([centre - half, centre + half], 1).clamp(min=0)
    boxes = torch.minimum(boxes, torch.tensor([w, h, w, h]))
    masks = torch.rand(80, 28, 28, generator=generator)
    theirs = paste_masks_in_image(masks[:, None], boxes, (h, w))[:, 0]
    assert torch.allclose(paste_masks(masks, boxes, (h, w)), theirs, atol=1e-5)


def test_objects_are_compared_in_any_order():
    net = detector()
    ours = run_net(net, scenes()[0])
    turned = tuple(each.flip(0) for each in ours)
    assert compare_objects(ours, turned).same.all() and compare_objects(ours, turned).difference == 0
    for theirs in (tuple(each[1:] for each in ours), (ours[0] + 3, *ours[1:]), (*ours[:3], ~ours[3])):
        assert not compare_objects(ours, theirs).same.all() and not compare_objects(theirs, ours).same.all()
    assert not compare_objects(ours, (ours[0], (ours[1] + 1) % 3, *ours[2:])).same.any()
    none = tuple(each[:0] for each in ours)
    assert not compare_objects(ours, none).same.any() and len(compare_objects(none, none).same) == 0
