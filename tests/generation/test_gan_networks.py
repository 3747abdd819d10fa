"""Networks by name: parameter counts, shapes, gates, gradients, state dicts, error messages."""

from __future__ import annotations

import copy
import inspect
import json
from itertools import pairwise

import pytest
import torch
from gan_cases import CLASSES, NAMES, batch, open_gates, small
from reference_layers import count
from tolerances import assert_close

import hamburger as hb
from hamburger.errors import HamburgerError, InputError, ShapeError, UnknownNameError
from hamburger.generation.model import create_gan, list_gans
from hamburger.generation.networks.contexts import gan_contexts


def conv(i, o, k=3):
    return i * o * k * k + o


def generator_by_hand(widths, *, latent=128, classes=1000):
    total = latent * widths[0] * 16 + widths[0] * 16
    for i, o in pairwise(widths):
        total += conv(i, o) + conv(o, o) + conv(i, o, 1) + 2 * classes * (i + o)
    return total + 2 * widths[-1] + conv(widths[-1], 3)


def discriminator_by_hand(widths, *, downs, hidden, classes=1000):
    total = conv(3, widths[0]) + conv(widths[0], widths[0]) + conv(3, widths[0], 1)
    for index, (i, o) in enumerate(pairwise(widths), start=1):
        middle = i if hidden == "in" else o
        total += conv(i, middle) + conv(middle, o) + (conv(i, o, 1) if index < downs or i != o else 0)
    return total + widths[-1] + 1 + classes * widths[-1]


@pytest.mark.parametrize(
    ("name", "in_generator", "in_discriminator"),
    [("sngan", 0, 0), ("sagan", 81_921, 20_481), ("ylg", 81_921, 20_481), ("hamgan", 643_073, 32_769)],
)
def test_parameter_counts(name, in_generator, in_discriminator):
    with torch.device("meta"):
        generator, discriminator = create_gan(name)
    up, down = [1024, 1024, 512, 256, 128, 64], [64, 128, 256, 512, 1024, 1024]
    hidden = "in" if name == "sngan" else "out"
    assert (count(generator.context) if generator.context else 0) == in_generator
    assert (count(discriminator.context) if discriminator.context else 0) == in_discriminator
    assert count(generator) == generator_by_hand(up) + in_generator == 41_996_931 + in_generator
    bare = 30_041_857 if hidden == "in" else 39_443_137
    assert count(discriminator) == discriminator_by_hand(down, downs=5, hidden=hidden) + in_discriminator
    assert count(discriminator) == bare + in_discriminator


def test_the_context_follows_maps_of_32_pixels():
    with torch.device("meta"):
        generator, discriminator = create_gan("hamgan")
    assert (generator.context_block, discriminator.context_block) == (2, 1)
    assert generator.context.lower.weight.shape == generator.context.upper.weight.shape == (256, 256, 1, 1)
    assert discriminator.context.lower.weight.shape == (128, 128, 1, 1)
    assert (generator.context.ham.ham.rank, discriminator.context.ham.ham.rank) == (32, 16)
    assert generator.context.ham.steps == generator.context.ham.eval_steps == 6
    assert discriminator.context.norm is None


@pytest.mark.parametrize("resolution", [32, 64, 128])
@pytest.mark.parametrize("name", NAMES)
def test_shapes(name, resolution):
    generator, discriminator = create_gan(name, resolution=resolution, num_classes=CLASSES, width=16, context=None)
    if name != "sngan":
        generator, discriminator = small(name, resolution=resolution)
    with torch.no_grad():
        images = generator(*batch(generator, 2))
        assert images.shape == (2, 3, resolution, resolution)
        assert images.abs().max() <= 1
        assert discriminator(images, torch.tensor([0, 4])).shape == (2,)


@pytest.mark.parametrize("resolution", [32, 64])
def test_default_widths_below_128(resolution):
    with torch.device("meta"):
        generator, discriminator = create_gan("hamgan", resolution=resolution, num_classes=10)
        bare = create_gan("hamgan", resolution=resolution, num_classes=10, context=None)
    up = {32: [256] * 4, 64: [1024, 1024, 512, 256, 128]}[resolution]
    down, downs = {32: ([128] * 4, 2), 64: ([64, 128, 256, 512, 1024], 4)}[resolution]
    assert count(bare.generator) == generator_by_hand(up, classes=10)
    assert count(bare.discriminator) == discriminator_by_hand(down, downs=downs, hidden="out", classes=10)
    assert generator.config["context_at"] == discriminator.config["context_at"] == 16


@pytest.mark.parametrize("context", [*gan_contexts, *hb.list_contexts()])
def test_a_closed_gate_is_the_identity_and_an_open_one_is_not(context):
    for net in small("sagan", context=context):
        context_block = net.context
        x = torch.randn(2, 64, 16, 16)
        y = torch.tensor([0, 3]) if hasattr(net, "latent") else None
        assert torch.equal(context_block(x, y), x)
        context_block(x, y).square().sum().backward()
        assert context_block.gate.grad.abs() > 0
        context_block.gate.data.fill_(0.5)
        assert (context_block(x, y) - x).abs().max() > 1e-4


@pytest.mark.parametrize("context", ["efficient", "psp"])
def test_mixed_precision_keeps_the_digits_of_what_a_context_adds(context):
    block = small("sagan", context=context).generator.context.eval()
    torch.manual_seed(1)
    x = torch.randn(2, 64, 16, 16).bfloat16()  # exact in both, and ten times as large as the context's output
    with torch.no_grad():
        exact = block.branch(x.float(), None)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = block.branch(x, None)
    assert (mixed - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("name", NAMES)
def test_networks_start_as_networks_without_context(name):
    for net, bare in zip(small(name), small(name, context=None), strict=True):
        bare.load_state_dict({key: value for key, value in net.state_dict().items() if "context" not in key})
        inputs = batch(net)
        assert torch.equal(net.eval()(*inputs), bare.eval()(*inputs))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name):
    generator, discriminator = (open_gates(net) for net in small(name))
    z, y = batch(generator, 6)
    discriminator(generator(z, y), y).square().sum().backward()
    for net in (generator, discriminator):
        for key, parameter in net.named_parameters():
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
            # a bias before a batch norm has no effect
            assert parameter.grad.any() or key.endswith("conv1.bias"), key


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_changes_no_state(name):
    for net in small(name):
        open_gates(net).eval()
        before = copy.deepcopy(net.state_dict())
        inputs = batch(net)
        assert torch.equal(net(*inputs), net(*inputs))
        assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_restores_the_network(name, tmp_path):
    for net, other in zip(small(name), small(name), strict=True):
        open_gates(net)
        net(*batch(net))
        torch.save(net.state_dict(), tmp_path / "net.pt")
        for parameter in other.parameters():
            parameter.data.add_(0.1)
        other.load_state_dict(torch.load(tmp_path / "net.pt"))
        inputs = batch(net)
        assert torch.equal(net.eval()(*inputs), other.eval()(*inputs))
        assert torch.equal(copy.deepcopy(net)(*inputs), net(*inputs))


def test_a_config_rebuilds_the_networks():
    pair = small("ylg", context_options={"scores": "fused"}, hidden="in", norm_momentum=0.1)
    config = json.loads(json.dumps(pair.generator.config))
    again = create_gan(config.pop("name"), **config)
    for net, other in zip(pair, again, strict=True):
        assert net.config == other.config
        assert repr(net) == repr(other)


def test_networks_in_half_precision_stay_near():
    for net in small("ylg") + small("hamgan"):
        open_gates(net).eval()
        inputs = batch(net)
        with torch.no_grad():
            wide = net(*inputs)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                narrow = net(*inputs)
        assert narrow.isfinite().all()
        assert_close(narrow.float(), wide, slack=10, dtype=torch.bfloat16)  # two dozen layers, each rounded


def test_only_the_projection_depends_on_the_class():
    _, discriminator = small("sngan")
    discriminator.eval()
    x, _ = batch(discriminator, 1)
    scores = [discriminator(x, torch.tensor([k])) for k in range(2)]
    h = x
    for block in discriminator.blocks:
        h = block(h)
    h = h.clamp_min(0).sum((2, 3))
    rows = discriminator.classes.weight[:2]
    assert_close(scores[0] - scores[1], h @ (rows[0] - rows[1]), slack=10)


def test_every_option_is_explicit_and_names_are_known():
    kinds = {p.kind for p in inspect.signature(create_gan).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert list_gans() == ["hamgan", "hamgan-baby", "hamgan-strong", "sagan", "sngan", "ylg"]


def test_baby_and_strong_differ_only_in_training():
    assert [repr(net) for net in small("hamgan-baby")] == [repr(net) for net in small("hamgan-strong")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": 100}, "resolution must be a power of two, got 100"),
        ({"resolution": 8}, "resolution must be a whole number of at least 16"),
        ({"resolution": 256}, r"default widths for \[32, 64, 128\] pixels, not for 256; give generator_multipliers"),
        ({"num_classes": 0}, "num_classes must be a whole number of at least 1, got 0"),
        ({"latent": 1.5}, "latent must be a whole number"),
        ({"width": 0}, "width must be a whole number"),
        ({"generator_multipliers": [1, 2]}, "takes 4 generator_multipliers, one for the map of 4 x 4 .* got 2"),
        ({"discriminator_multipliers": 3}, "discriminator_multipliers must name at least one size"),
        ({"discriminator_downs": 5}, "discriminator_downs must be at most 4 for 4 blocks"),
        ({"context_at": 12}, r"context_at must be .* one of \[16, 8\], got 12"),
        ({"context": "hamgn"}, "no context 'hamgn'; did you mean 'hamgan'"),
        ({"context": torch.nn.Identity()}, "context must be a name or None, got Identity"),
        ({"context_options": {"rnak": 3}}, "has no option 'rnak'; did you mean 'rank'"),
        ({"context_options": {"size": 3}}, "'size' is set by the network"),
        ({"context_options": 3}, "context_options must be a mapping"),
        ({"context": None, "context_options": {"rank": 3}}, "context_options need a context"),
        ({"context": "ylg", "width": 4}, "8 heads of an eighth of the channels need a multiple of 64 channels, got 16"),
        ({"context": "ylg", "context_options": {"scores": "fuse"}}, "no scores 'fuse'; did you mean 'fused'"),
        ({"hidden": "both"}, "no hidden 'both'; did you mean 'out'. known: in, out"),
        ({"init": "xavir"}, "no init 'xavir'; did you mean 'xavier'"),
        ({"generator_spectral": "equal"}, "no generator_spectral 'equal'; did you mean 'equality'"),
        ({"norm_momentum": 2}, "norm_momentum must be a finite number at least 0 and at most 1"),
    ],
)
def test_error_messages(options, message):
    with pytest.raises(HamburgerError, match=message):
        create_gan("hamgan", **{"resolution": 32, "num_classes": 3, "width": 8, **options})


def test_unknown_name_raises():
    with pytest.raises(UnknownNameError, match="no GAN 'hamgam'; did you mean 'hamgan'"):
        create_gan("hamgam")


def test_wrong_inputs_raise():
    generator, discriminator = small("sngan")
    z, y = batch(generator)
    x, _ = batch(discriminator)
    with pytest.raises(ShapeError, match=r"Generator: z must be \(b, 12\), got \(3, 11\)"):
        generator(z[:, 1:], y)
    with pytest.raises(ShapeError, match=r"one class per sample, \(3,\), got \(2,\)"):
        generator(z, y[:2])
    with pytest.raises(InputError, match=r"whole numbers, got torch.float32; pass y.long\(\)"):
        generator(z, y.float())
    with pytest.raises(InputError, match=r"classes must lie in 0 ... 4, got .* build the networks with num_classes=10"):
        discriminator(x, torch.tensor([0, 9, 1]))
    with pytest.raises(ShapeError, match=r"the images must be \(b, 3, 32, 32\)"):
        discriminator(x[:, :, :16], y)


def test_initialisation():
    """The bound of Xavier's uniform, sqrt(6 / (fans)), and its gain in SNGAN's blocks; zero biases."""
    (sngan, _), (sagan, _) = small("sngan"), small("sagan", generator_spectral="none")
    for net, gain in ((sngan, 2**0.5), (sagan, 1.0)):
        bound = (6 / (9 * 128)) ** 0.5
        assert 0.95 * gain * bound < net.blocks[0].conv1.weight.abs().max() <= gain * bound
        assert 0.9 * (6 / 128) ** 0.5 < net.blocks[0].shortcut.weight.abs().max() <= (6 / 128) ** 0.5
        assert not net.blocks[0].conv1.bias.any()
