"""Hamformers: values, parameters, sizes, weights, export and training."""

from __future__ import annotations

import os
import signal

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from small_run import reproducible_outputs
from torch import nn

import hamburger as hb
from hamburger.checkpoints.weights_file import Info, uses_timm
from hamburger.classification.hamformer import HAMFORMERS, Block, create_mixer, mix
from hamburger.classification.task import CLASSIFICATION
from hamburger.errors import Interrupted
from hamburger.inference.export import export
from hamburger.tasks import find_training, train
from hamburger.tasks.sweep import cells, check_grid, variants
from hamburger.training.metrics_log import StepLogged
from hamburger.training.recipe import apply

SMALL = {"embed_dim": 16, "depth": 2, "mlp_ratio": 2, "patch_size": 4}
COMPARED = (None, "nmf", "vq", "cd", "sa", "efficient", "pooling")


def create(context="nmf", *, context_options=None, **options):
    return hb.create_classifier(
        "hamformer_tiny",
        num_classes=5,
        context=context,
        context_options=context_options,
        backbone_options=SMALL | options,
    )


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


# -- the network -------------------------------------------------------------------------------------------------------


def test_attention_is_that_of_torch():
    c, heads = 128, 2
    ours, x = create_mixer("sa", c, {}), torch.randn(3, c, 4, 5)
    assert ours.heads == heads
    theirs = nn.MultiheadAttention(c, heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([layer.weight[:, :, 0, 0] for layer in (ours.queries, ours.keys, ours.values)])
        )
        theirs.out_proj.weight.copy_(ours.out.weight[:, :, 0, 0])
    tokens = x.flatten(2).mT
    expected = theirs(tokens, tokens, tokens, need_weights=False)[0].mT.view_as(x)
    assert torch.allclose(mix(ours, x), expected, atol=1e-6)


def test_the_ham_is_between_two_breads_without_norm_and_skip():
    mixer, x = create_mixer("nmf", 16, {"rank": 4}).eval(), torch.randn(2, 16, 3, 5)
    z = F.relu(mixer.lower.weight @ x.flatten(2) + mixer.lower.bias[:, None])
    expected = mixer.upper.weight @ mixer.ham(z)
    assert torch.allclose(mix(mixer, x), expected.view_as(x), atol=1e-6)


@pytest.mark.parametrize("context", ["nmf", "local", "windowed", "sa", "efficient", "pooling", "ema", "psp"])
def test_a_mixer_is_what_its_context_adds(context):
    mixer, x = create_mixer(context, 64, {}).eval(), torch.randn(2, 64, 6, 5)
    assert torch.allclose(x + mix(mixer, x), mixer(x), atol=1e-5)


def test_all_scalars_of_version_2_plus_are_used():
    mixer, x = create_mixer("nmf", 16, {"version": "v2+"}), torch.randn(2, 16, 3, 5)
    mix(mixer, x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in mixer.parameters())


def test_values_of_a_network_whose_mixer_is_pooling():
    net, images = create("pooling").net.double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)

    def normalise(x, layer):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return (x - mean) / (var + layer.eps).sqrt() * layer.weight + layer.bias

    patches = F.unfold(images, 4, stride=4).mT @ net.patches.weight.flatten(1).T + net.patches.bias  # b n c
    x = patches + net.position.flatten(2).mT
    near = (torch.arange(8)[:, None] - torch.arange(8)).abs() <= 1
    window = torch.kron(near.double(), near.double())
    pool = window / window.sum(1, keepdim=True) - torch.eye(64, dtype=torch.float64)
    for block in net.blocks:
        x = x + pool @ normalise(x, block.mixer_norm)
        first, _, second = block.mlp
        x = x + second(F.gelu(first(normalise(x, block.mlp_norm))))
    assert torch.allclose(net(images), net.head(normalise(x, net.norm).mean(1)))


def test_networks_differ_in_the_mixer_alone():
    shapes = []
    for context in COMPARED:
        state = create(context).state_dict()
        shapes.append({name: value.shape for name, value in state.items() if ".mixer" not in name})
    assert all(each == shapes[0] for each in shapes)


def test_parameter_counts():
    c, depth, hidden, patches, classes = 192, 12, 768, 64, 10
    outside = (3 * 16 * c + c) + patches * c + 2 * c + (c * classes + classes)
    block = 2 * c + (c * hidden + hidden) + (hidden * c + c)  # a norm and the MLP
    mixers = {"sa": 4 * c * c, "efficient": 4 * (c * c + c), "nmf": 2 * c * c + c, "pooling": 0}
    for context, mixer in mixers.items():
        net = hb.create_classifier("hamformer_tiny", num_classes=10, context=context)
        assert count(net) == outside + depth * (block + 2 * c + mixer), context  # 2 c: the norm before the mixer
    assert count(hb.create_classifier("hamformer_tiny", num_classes=10)) == outside + depth * block


@pytest.mark.parametrize("context", COMPARED)
def test_any_image_size_that_patches_divide(context):
    net = create(context).eval()
    for h, w in ((32, 32), (48, 40), (16, 64)):
        assert net(torch.randn(2, 3, h, w)).isfinite().all()
    with pytest.raises(hb.ShapeError, match=r"hamformer: images must be multiples of 4 pixels, .* \(got \(32, 34\)\)"):
        net(torch.randn(1, 3, 32, 34))


def test_position_is_resized_and_breaks_the_symmetry_of_tokens():
    net, image = create("nmf").eval(), torch.randn(1, 3, 4, 4).repeat(1, 1, 8, 8)
    nn.init.normal_(net.net.position)
    moved = net.net.position.detach().roll(3, 3)
    before = net(image)
    net.net.position.data = moved.flip(2)
    assert torch.allclose(net(image), before, atol=1e-4)  # patches are equal, and a mean has no order
    net.net.position.data = torch.ones(1, 16, 8, 8)
    assert torch.allclose(net(torch.cat([image, image], 3)), net(image), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backbone": "hamformer_tny"},
            "create_classifier: no classifier 'hamformer_tny'; did you mean 'hamformer_tiny'",
        ),
        ({"backbone_options": {"dpth": 3}}, "'hamformer_tiny' has no option 'dpth'; did you mean 'depth'"),
        ({"backbone_options": {"patch_size": 5}}, "patches of 5 pixels do not divide size 32"),
        ({"backbone_options": {"depth": 0}}, "depth must be a whole number of at least 1"),
        ({"context": "nfm"}, "no context 'nfm'; did you mean 'nmf'"),
        ({"after": "layer1"}, "'hamformer_tiny' has no option 'after'; leave it out"),
        ({"gate": "one"}, "'hamformer_tiny' has no option 'gate'"),
        ({"pretrained": True}, "'hamformer_tiny' has no option 'pretrained'"),
    ],
)
def test_errors(options, message):
    with pytest.raises(hb.HamburgerError, match=message):
        hb.create_classifier(**{"backbone": "hamformer_tiny", "num_classes": 5, **options})


# -- weights, export, training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [None, "nmf", "sa"])
def test_weights_round_trip(context, tmp_path):
    net, path = create(context).eval(), tmp_path / "net.safetensors"
    CLASSIFICATION.save(path, net, Info(classes=tuple("abcde")))
    loaded = hb.load(path)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(x), net(x)) and loaded.config == net.config
    assert not uses_timm(loaded.info.model) and uses_timm({"task": "classification", "backbone": "resnet18"})


@pytest.mark.full
@pytest.mark.parametrize("context", ["nmf", "sa", "pooling"])
def test_an_exported_hamformer_takes_any_batch_and_size(context, tmp_path):
    net = create(context, depth=1).eval()
    spec = CLASSIFICATION.export_spec(Info(model={"size": 32}))
    made = export(net, Info(), tmp_path / "net.onnx", format="onnx", spec=spec)
    assert made.dynamic == ("batch", "height", "width"), made.refusals
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(3, 3, 40, 24)
    [actual] = session.run(["logits"], {"image": x.numpy()})
    with torch.no_grad():
        assert (torch.from_numpy(actual) - net(x)).abs().max() < 1e-4


def small(*settings):
    few = ("data.options.length=48", "batch=8", "steps=8", "log_every=3", "eval_every=4", "checkpoint_every=4")
    return apply(find_training("hamformer-figures"), [*few, *settings])


def test_training_resumes_with_the_same_bits(tmp_path):
    values = train(small(), tmp_path / "undisturbed", accelerator="cpu").values
    assert (values["context"], values["after"], values["backbone"]) == ("nmf", None, "hamformer_tiny")

    def stop(event):
        if isinstance(event, StepLogged) and event.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 6 of 8"):
        train(small(), tmp_path / "stopped", accelerator="cpu", on_event=stop)
    train(small(), tmp_path / "stopped", accelerator="cpu", resume=True)
    assert reproducible_outputs(tmp_path / "stopped") == reproducible_outputs(tmp_path / "undisturbed")


def test_a_network_without_mixer_trains(tmp_path):
    values = train(small("model.context=none", "steps=2"), tmp_path / "run", accelerator="cpu").values
    assert values["context"] is None and 0 <= values["accuracy"] <= 1


def test_mixers_are_compared_like_contexts(tmp_path):
    names = ("none", "pooling", "efficient", "sa", "nmf")
    grid = cells("hamformer-figures", variants(names), [0, 1], ())
    check_grid(grid, tmp_path)
    assert [cell.resolved().model.context for cell in grid[:5]] == [None, *names[1:]]


def test_every_hamformer_has_the_options_of_a_weights_file():
    from hamburger.checkpoints.weights_file import TIMM_OPTIONS

    assert all(set(shape) <= TIMM_OPTIONS for shape in HAMFORMERS.values())
    assert Block(8, 16, None, {}).mixer is None
