"""Logits of the heads against the same networks in plain torch functions, in evaluation mode and float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from reference_layers import norm, randomise
from small_heads import CHANNELS, CLASSES, SIZES, build, maps
from tolerances import assert_close, relative_error


def features():
    return maps(dtype=torch.float64)


def cbr(block, x):
    kernel = block[0].weight.shape[-1]
    return norm(block[1], F.conv2d(x, block[0].weight, block[0].bias, padding=kernel // 2)).relu()


def linear(classifier, x):
    """What a classifier does where nothing is dropped."""
    return torch.einsum("kc,bchw->bkhw", classifier[1].weight[:, :, 0, 0], x) + classifier[1].bias[:, None, None]


def resized(x, size):
    return F.interpolate(x, size, mode="bilinear", align_corners=True)


def rrb(block, x, relu=True):
    (first, batch_norm, _), second = block.refine
    t = F.conv2d(x, block.project.weight)
    y = t + F.conv2d(cbr([first, batch_norm], t), second.weight, padding=1)
    return y.relu() if relu else y


def score(scorer, x):
    return F.conv2d(rrb(scorer[0], x, relu=False), scorer[1].weight, scorer[1].bias)


def test_pspnet_matches_its_formula():
    head, x = randomise(build("pspnet")), features()
    grids = [F.adaptive_avg_pool2d(x[-1], s) for s in (1, 2, 3, 6)]
    pyramid = [resized(cbr(branch, grid), SIZES[-1]) for branch, grid in zip(head.branches, grids, strict=True)]
    y = cbr(head.bottleneck, torch.cat([x[-1], *pyramid], dim=1))
    assert_close(head(x).logits, linear(head.classifier, y))


def test_cfnet_concatenates_the_mean_with_the_attention():
    head, x = randomise(build("cfnet")), features()
    u = cbr(head.reduce, x[-1])
    whole = cbr(head.whole, u.flatten(2).mean(2)[:, :, None, None]).repeat(1, 1, *SIZES[-1])
    assert_close(head(x).logits, linear(head.classifier, torch.cat([head.acf(u), whole], dim=1)))


def test_danet_classifies_the_sum_of_its_branches():
    head, x = randomise(build("danet", dropout=0.0)), features()
    for other in (head.position_classifier, head.channel_classifier):
        other.load_state_dict(head.classifier.state_dict())
    prediction, aux = head.train()(x)
    bias = head.classifier[1].bias[:, None, None]  # in both branches, and once in the sum
    assert_close(prediction, aux["position"] + aux["channel"] - bias)
    assert relative_error(aux["position"], aux["channel"]) > 0.1


def test_emanet_has_the_frame_of_hamnet():
    head, x = randomise(build("emanet")), features()
    before, unit, after = head.frame
    assert_close(head(x).logits, linear(head.classifier, cbr(after, unit(cbr(before, x[-1])))))


def test_emanet_starts_from_normal_weights_of_the_fan_out():
    head = build("emanet", width=64, out_width=32)
    for block, fan in ((head.frame[0][0], 9 * 64), (head.frame[2][0], 9 * 32)):
        assert abs(float(block.weight.detach().std()) / (2 / fan) ** 0.5 - 1) < 0.1


def test_ocrnet_takes_regions_from_the_second_deepest_map():
    head, x = randomise(build("ocrnet")), features()
    x[-2] = torch.randn(2, CHANNELS[-2], 9, 7, dtype=torch.float64)  # of another size than the deepest
    coarse = resized(linear(head.coarse[1], cbr(head.coarse[0], x[-2])), SIZES[-1])
    pixels = cbr(head.reduce, x[-1])
    assert_close(head(x).logits, linear(head.classifier, head.ocr(pixels, coarse)))
    assert head.train()(x).aux["aux"].shape == (2, CLASSES, 9, 7)


def test_sgr_has_a_node_per_class_by_default():
    assert len(build("sgr").reason[1].embeddings) == CLASSES
    words = torch.randn(7, 10)
    assert torch.equal(build("sgr", embeddings=words).reason[1].embeddings, words)
    assert len(build("sgr", adjacency=torch.ones(3, 3)).reason[1].embeddings) == 3


def test_dfn_matches_its_formula():
    head, x = randomise(build("dfn")), features()
    net = head.smooth
    y = cbr(net.whole, x[-1].mean((2, 3), keepdim=True)).expand(-1, -1, *SIZES[-1])
    scores = {}
    for i in (3, 2, 1, 0):
        low, high = rrb(net.before[i], x[i]), resized(y, SIZES[i])
        first, _, second, _ = net.attention[i].weigh
        pooled = torch.cat([low, high], dim=1).mean((2, 3))
        weights = torch.sigmoid(F.linear(F.linear(pooled, first.weight, first.bias).relu(), second.weight, second.bias))
        y = rrb(net.after[i], weights[:, :, None, None] * low + high)
        scores[f"smooth{i + 2}"] = score(head.smooth_scorers[i], y)
    assert_close(head(x).logits, scores["smooth2"])

    t = rrb(head.border.before[0], x[0])
    scores["border2"] = score(head.border_scorers[0], t)
    for i in (1, 2, 3):
        t = rrb(head.border.after[i - 1], t + resized(rrb(head.border.before[i], x[i]), SIZES[0]))
        scores[f"border{i + 2}"] = score(head.border_scorers[i], t)
    head.training = True  # the outputs of training, with the norms of evaluation
    outputs = head(x)
    assert outputs.aux.keys() == scores.keys() - {"smooth2"}
    for name, value in outputs.aux.items():
        assert_close(value, scores[name])


def test_dfn_starts_from_normal_weights_of_the_fan_in():
    block = build("dfn", width=64).smooth.after[0]
    assert abs(float(block.refine[1].weight.detach().std()) / (2 / (9 * 64)) ** 0.5 - 1) < 0.1


def test_sanet_matches_its_formula():
    head, x = randomise(build("sanet")), features()
    maps_of = []
    for stage, y in zip(head.stages, x, strict=True):
        main = cbr(stage.main[1], cbr(stage.main[0], y))
        pooled = F.avg_pool2d(y, 2, ceil_mode=True)
        attention = resized(cbr(stage.attention[1], cbr(stage.attention[0], pooled)), y.shape[2:])
        maps_of.append(attention * main + attention)
    merged = cbr(head.merge, torch.cat([resized(y, SIZES[0]) for y in maps_of], dim=1))
    assert_close(head(x).logits, linear(head.classifier, merged))
    head.training = True
    aux = head(x).aux
    for i, y in enumerate(maps_of):
        assert_close(aux[f"mask{i + 2}"], linear(head.masks[i], y))
    pooled = maps_of[-1].flatten(2).mean(2)
    assert_close(aux["cat"], F.linear(pooled, head.categories.weight, head.categories.bias))
