"""HamNet and LightHam as models of segmentation_models_pytorch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import hamburger as hb

if importlib.util.find_spec("segmentation_models_pytorch") is None:
    pytest.skip("segmentation_models_pytorch is not installed; pip install '.[smp]'", allow_module_level=True)

import segmentation_models_pytorch as smp

from hamburger.segmentation.heads import heads
from hamburger.smp import HamNet, LightHam

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
OPTIONS = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3, "decoder_channels": 64}
MODELS = {"hamnet": HamNet, "lightham": LightHam}


def images(channels=3):
    return torch.rand(2, channels, 64, 96, generator=torch.Generator().manual_seed(0))


def build(name, **options):
    torch.manual_seed(0)
    return smp.create_model(name, **{**OPTIONS, **options})


@pytest.mark.parametrize("name", MODELS)
def test_models_are_trained_with_losses_of_smp(name):
    model, labels = build(name), torch.randint(3, (2, 64, 96))
    assert type(model) is MODELS[name] and model.name == f"{name}-resnet18"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = smp.losses.DiceLoss("multiclass")(model(images()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    # the last features of an encoder may have weights that only a classifier would use
    missing = [key for key, p in model.named_parameters() if p.grad is None]
    assert not [key for key in missing if not key.startswith("encoder.")]
    assert model.predict(images()).shape == (2, 3, 64, 96) and not model.training


@pytest.mark.parametrize("name", MODELS)
def test_decoder_is_the_head_of_this_library(name):
    model = build(name).eval()
    features = model.encoder(images())
    maps = features[-1:] if name == "hamnet" else features[-3:]
    head = heads.create(name, [x.shape[1] for x in maps], 3, width=64).eval()
    state = {key.removeprefix("decoder.head."): value for key, value in model.state_dict().items() if "head." in key}
    classifier = model.segmentation_head[0]
    state |= {"classifier.1.weight": classifier.weight, "classifier.1.bias": classifier.bias}
    head.load_state_dict({key: state[key] for key in head.state_dict()})
    torch.testing.assert_close(classifier(model.decoder(features)), head(maps).logits)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hamnet", {"encoder_output_stride": 16}),
        ("hamnet", {"encoder_output_stride": 32, "encoder_name": "tu-convnext_atto"}),
        ("hamnet", {"context": None, "in_channels": 1}),
        ("hamnet", {"context": "vq", "context_options": {"rank": 4}, "activation": "softmax2d"}),
        ("lightham", {"encoder_name": "mit_b0", "decoder_options": {"inner": 32, "rank": 8}}),
        ("lightham", {"encoder_depth": 4, "in_channels": 5}),
    ],
)
def test_options_of_smp_are_taken(name, options):
    model = build(name, **options).eval()
    scores = model(images(options.get("in_channels", 3)))
    assert scores.shape == (2, 3, 64, 96)
    if "activation" in options:
        torch.testing.assert_close(scores.sum(1), torch.ones(2, 64, 96))


def test_aux_head_frozen_encoder_and_files(tmp_path):
    model = build("lightham", aux_params={"classes": 4})
    masks, labels = model(images())
    assert masks.shape == (2, 3, 64, 96) and labels.shape == (2, 4)
    if hasattr(model, "freeze_encoder"):  # smp 0.6
        model.freeze_encoder()
        assert not any(p.requires_grad for p in model.encoder.parameters())
        assert all(p.requires_grad for p in model.decoder.parameters())
    for name in MODELS:
        model = build(name)
        model.save_pretrained(tmp_path / name)
        again = smp.from_pretrained(str(tmp_path / name))
        assert type(again) is MODELS[name] and torch.equal(again.predict(images()), model.predict(images()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hamnet", {"encoder_output_stride": 4}, r"encoder_output_stride must be 8, 16 or 32 \(got 4\)"),
        ("lightham", {"encoder_depth": 3}, r"encoder_depth must be 4 or 5, for three maps \(got 3\)"),
        ("hamnet", {"context": "nnf"}, "did you mean 'nmf'"),
        ("lightham", {"decoder_options": {"rnk": 3}}, "rnk"),
    ],
)
def test_invalid_options_are_named(name, options, message):
    with pytest.raises(hb.HamburgerError, match=message):
        build(name, **options)


def test_the_lines_of_the_page_run():
    page = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    blocks = [block for block in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "hamburger.smp" in block]
    assert blocks
    for block in blocks:
        exec(compile(block, "frameworks.md", "exec"), {})
