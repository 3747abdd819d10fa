"""The contract of every head, those of hamburger-lab included, also with options that change its structure."""

from __future__ import annotations

import copy

import pytest
import torch
from small_heads import CASES, CHANNELS, CLASSES, SIZES, build, labels, maps
from tolerances import assert_close, relative_error

from hamburger.errors import HamburgerError, OptionError, ShapeError
from hamburger.segmentation.heads.base import heads


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def leaves(head):
    """The modules that hold parameters themselves, by name."""
    return {n: m for n, m in head.named_modules() if any(True for _ in m.parameters(recurse=False))}


@pytest.mark.parametrize("b", [1, 2])
def test_logits_have_the_size_of_a_map_and_evaluation_has_nothing_else(case, b):
    head, features = build(case), maps(b)
    for mode in (True, False):
        outputs = head.train(mode)(features)
        assert outputs.logits.shape[:2] == (b, CLASSES)
        assert outputs.logits.shape[2:] in SIZES
        assert outputs.logits.isfinite().all()
        assert mode or outputs.aux == {}


def test_evaluation_runs_only_what_the_logits_need(case):
    head, features = build(case).train(), maps()
    head(features).logits.sum().backward()
    needed = {n for n, m in leaves(head).items() if any(p.grad is not None for p in m.parameters(recurse=False))}
    frozen = {n for n, m in leaves(head).items() if not any(p.requires_grad for p in m.parameters(recurse=False))}
    ran = set()
    for name, module in leaves(head).items():
        module.register_forward_hook(lambda *_, name=name: ran.add(name))
    head.eval()(features)
    assert ran and ran <= needed | frozen


def test_every_parameter_and_every_used_map_get_a_gradient(case):
    head, features = build(case).train(), maps(grad=True)
    sum(head.loss(head(features), labels()).values()).backward()
    for key, parameter in head.named_parameters():
        if not parameter.requires_grad:
            assert key == "frame.1.lower.weight" or key == "frame.1.lower.bias"  # frozen by EMANet's paper
            continue
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.norm() > 0, key
    assert features[-1].grad.norm() > 0
    for x in features:
        assert x.grad is None or x.grad.isfinite().all()


def test_one_image_trains(case):
    head, features = build(case).train(), maps(1, grad=True)
    loss = sum(head.loss(head(features), labels(1)).values())
    loss.backward()
    assert loss.isfinite() and features[-1].grad.isfinite().all()


def test_a_batch_without_labels_has_zero_loss(case):
    head, features = build(case).train(), maps(grad=True)
    terms = head.loss(head(features), torch.full((2, 33, 25), 255))
    assert all(float(term.detach()) == 0 for term in terms.values())
    sum(terms.values()).backward()
    assert all(p.grad is None or not p.grad.any() for p in head.parameters())


def test_evaluation_is_repeatable_changes_nothing_and_takes_images_one_by_one(case):
    head, features = build(case).eval(), maps(3)
    before = copy.deepcopy(head.state_dict())
    first = head(features).logits
    assert torch.equal(head(features).logits, first)
    assert_close(torch.cat([head([x[i : i + 1] for x in features]).logits for i in range(3)]), first, slack=10)
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())


def test_the_loss_of_evaluation_is_that_of_the_prediction_alone(case):
    head, features, target = build(case).eval(), maps(), labels()
    terms = head.loss(head(features), target)
    assert len(terms) == 1
    assert all(term.isfinite() for term in terms.values())


def test_state_dicts_are_complete_from_the_constructor_on(case):
    head, features = build(case), maps()
    keys = set(head.state_dict())
    head.train()(features)
    fresh = build(case)
    fresh.load_state_dict(head.state_dict(), strict=True)
    assert set(head.state_dict()) == keys
    assert torch.equal(fresh.eval()(features).logits, head.eval()(features).logits)


def test_half_precision_under_autocast_is_near_float32(case):
    head, features, target = build(case).eval(), maps(), labels()
    exact = head(features).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = head(features)
    assert relative_error(outputs.logits, exact) < 0.1
    assert all(term.dtype == torch.float32 for term in head.loss(outputs, target).values())


def test_an_extra_shallow_map_is_ignored(case):
    """Some backbones give five maps: the head takes the last, and its parameters do not change."""
    head, wide = build(case), build(case, channels=(3, *CHANNELS))
    wide.load_state_dict(head.state_dict(), strict=True)
    features = maps()
    five = [torch.randn(2, 3, 33, 25), *features]
    assert torch.equal(wide.eval()(five).logits, head.eval()(features).logits)


NEEDS = {"dfn": 4, "sanet": 4, "lightham": 3, "ocrnet": 2}  # heads that need more than the deepest map, always
AUXILIARY = ("apcnet", "cfnet", "dmnet", "encnet", "pspnet")  # and those that need a second for a loss


@pytest.mark.parametrize("name", heads.names())
def test_too_few_maps_are_counted_in_the_message(name):
    least = NEEDS.get(name, 2 if name in AUXILIARY else 1)
    build(name, channels=CHANNELS[-least:])
    with pytest.raises(OptionError, match=rf"needs at least {least} feature maps, .* \(got {least - 1}, of widths"):
        build(name, channels=CHANNELS[4 - least + 1 :])
    if name in AUXILIARY:
        build(name, channels=CHANNELS[-1:], aux_weight=0.0)


@pytest.mark.parametrize("name", heads.names())
def test_wrong_maps_and_wrong_options_are_named(name):
    head, features = build(name), maps()
    with pytest.raises(ShapeError, match="expected maps 'b c h w' of widths"):
        head(features[:-1])
    with pytest.raises(ShapeError, match="build the head with the channels of its backbone"):
        head([*features[:-1], torch.randn(2, 3, 5, 4)])
    with pytest.raises(OptionError, match="has no option 'widht'; did you mean 'width'"):
        heads.create(name, CHANNELS, CLASSES, widht=3)
    for bad in ({"width": 0}, {"width": 2.5}):
        with pytest.raises(HamburgerError, match="must be a whole number of at least"):
            build(name, **bad)
    with pytest.raises(OptionError, match="num_classes must be a whole number of at least 1"):
        heads.create(name, CHANNELS, 0)
    with pytest.raises(OptionError, match="channels"):
        heads.create(name, 2048, CLASSES)


@pytest.mark.parametrize("name", [n for n in heads.names() if n not in ("dfn",)])
@pytest.mark.parametrize("dropout", [1.0, -0.1, "much"])
def test_dropout_is_a_share(name, dropout):
    with pytest.raises(OptionError, match="at least 0 and below 1"):
        build(name, dropout=dropout)


@pytest.mark.parametrize(
    "name, option",
    [("pspnet", "aux_weight"), ("encnet", "se_weight"), ("dfn", "border_weight"), ("sanet", "dense_weight")],
)
def test_weights_are_not_negative(name, option):
    with pytest.raises(OptionError, match=f"{option} must be a finite number"):
        build(name, **{option: -1.0})
