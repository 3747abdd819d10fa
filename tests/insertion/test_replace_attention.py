"""Attention of a vision transformer replaced and restored."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.insertion import ReplacedAttention

timm = pytest.importorskip("timm", reason="needs timm")


def vit(**options):
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def image():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def replaced(net):
    return [name for name, module in net.named_modules() if isinstance(module, ReplacedAttention)]


@pytest.mark.parametrize("name", ["nmf", "vq", "cd", "efficient"])
def test_replace_train_save_and_restore_attention(name):
    net = vit()
    output, keys, modules = net.eval()(image()), list(net.state_dict()), list(net.modules())
    assert hb.replace_attention(net.train(), name) is net
    assert replaced(net) == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    assert not any("qkv" in key for key in net.state_dict())
    net.train()(image()).square().mean().backward()
    reached = [p.grad is not None and p.grad.isfinite().all() for p in net.blocks[0].attn.parameters()]
    assert all(reached)
    after = net.eval()(image())
    assert after.shape == output.shape and not torch.allclose(after, output)

    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    fresh = hb.replace_attention(vit(), name)
    fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    for other in (fresh.eval(), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(image()), after)
        assert torch.equal(hb.remove_contexts(other)(image()), output)
    hb.remove_contexts(net)
    assert list(net.state_dict()) == keys and all(a is b for a, b in zip(modules, net.modules(), strict=True))


def test_replaced_attention_has_no_skip_and_includes_the_class_token():
    net = hb.replace_attention(vit(), "efficient", blocks=[-1], heads=3)
    assert replaced(net) == ["blocks.2.attn"]
    layer, x = net.blocks[2].attn.eval(), torch.randn(2, 17, 24)
    maps = x.mT.unsqueeze(3)
    torch.testing.assert_close(layer(x), (layer.context(maps) - maps).squeeze(3).mT)
    moved = x.clone()
    moved[:, 1:] += torch.randn(2, 16, 24)
    assert not torch.allclose(layer(moved)[:, 0], layer(x)[:, 0]), "the class token hears of the others"
    moved = x.clone()
    moved[:, 0] += 1
    assert not torch.allclose(layer(moved)[:, 1:], layer(x)[:, 1:]), "and they of it"

    burger = hb.replace_attention(vit(), "nmf", blocks=[0], rank=4).blocks[0].attn.eval()
    torch.testing.assert_close(burger(x), burger.context.context(x.mT).mT)


def test_compiled_model_runs_the_replacement():
    """Code that was compiled before must not be used after the attention is replaced."""
    net = vit().eval()
    with torch.no_grad():
        compiled = torch.compile(net, backend="eager")
        original = compiled(image())
        hb.replace_attention(net, "efficient")
        expected = net(image())
        torch.testing.assert_close(compiled(image()), expected)
        assert not torch.allclose(expected, original)
        hb.remove_contexts(net)
        torch.testing.assert_close(compiled(image()), original)


@pytest.mark.full
def test_replaced_attention_compiles_exports_and_combines_with_insertion():
    net = hb.replace_attention(vit().eval(), "nmf", blocks=[0, 1], rank=4)
    hb.insert_context(net, {"blocks.0": "efficient", "blocks.1.attn": "efficient"}, gate="one")
    with torch.no_grad():
        output = net(image())
        torch._dynamo.reset()
        compiled = torch.compile(net, fullgraph=True, backend="aot_eager")(image())
        exported = torch.export.export(net, (image(),), strict=False).module()(image())
    torch.testing.assert_close(compiled, output)
    torch.testing.assert_close(exported, output)
    hb.remove_contexts(net)
    assert list(net.state_dict()) == list(vit().state_dict()) and torch.equal(net(image()), vit().eval()(image()))


def test_user_modules_can_replace_attention():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1, keepdim=True).expand_as(x)

    modules = [Mean(), hb.Hamburger(24, rank=4, layout="tokens")]
    net = hb.replace_attention(vit(), modules, blocks=(0, 2))
    assert [net.blocks[0].attn.context, net.blocks[2].attn.context] == modules
    assert net(image()).shape == (2, 5)


def test_restored_attention_has_the_current_dtype():
    net = hb.replace_attention(vit(), "efficient").double().eval()
    assert net(image().double()).dtype == hb.remove_contexts(net)(image().double()).dtype == torch.float64
    assert not net.blocks[0].attn.training


REFUSED = {
    "name": (("nfm",), {}, hb.UnknownNameError, "no replacement 'nfm'; did you mean 'nmf'"),
    "not over tokens": (("psp",), {}, hb.UnknownNameError, "known: cd, efficient, nmf, vq"),
    "option": (("nmf",), {"rnk": 3}, hb.OptionError, "'blocks.0.attn'.*'rnk'"),
    "block": (("nmf",), {"blocks": [3]}, hb.OptionError, "numbers from -3 to 2, got 3"),
    "block twice": (("nmf",), {"blocks": [2, -1]}, hb.OptionError, "none twice"),
    "no block": (("nmf",), {"blocks": []}, hb.OptionError, "at least one block"),
    "too few": ((nn.Identity(),), {}, hb.OptionError, "3 blocks need as many different modules"),
    "options of a module": ((nn.Identity(),), {"rank": 3}, hb.OptionError, "belong to a context given by name"),
    "no module": ((3,), {}, hb.OptionError, "context must be one of nmf"),
    "shape": ((nn.Linear(24, 25),), {"blocks": [0]}, hb.ShapeError, "must keep the shape"),
    "channels": ((hb.Hamburger(8, rank=2),), {"blocks": [0]}, hb.ShapeError, "cannot take the features"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_calls_raise_and_change_nothing(case):
    arguments, options, kind, message = REFUSED[case]
    net = vit()
    modules = list(net.modules())
    with pytest.raises(kind, match=message) as caught:
        hb.replace_attention(net, *arguments, **options)
    assert str(caught.value).startswith("replace_attention")
    assert all(a is b for a, b in zip(modules, net.modules(), strict=True))


def test_attention_is_replaced_once_and_only_where_it_exists():
    net = hb.replace_attention(vit(), "nmf", blocks=[1])
    with pytest.raises(hb.InputError, match=r"'blocks.1.attn' is already replaced; call remove_contexts"):
        hb.replace_attention(net, "nmf")
    with pytest.raises(hb.InputError, match="no block with a child 'attn'"):
        hb.replace_attention(nn.Sequential(nn.Conv2d(3, 8, 1)), "nmf")


def test_attention_masks_raise():
    net = hb.replace_attention(vit(), "efficient").eval()
    with pytest.raises(hb.InputError, match="with more than tokens"):
        net.blocks[0](torch.rand(1, 17, 24), attn_mask=torch.zeros(17, 17))


TOKENS = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
UNFIT = {
    "a class token alone": (
        ("cait_xxs24_224", TOKENS),
        r"'blocks_token_only.0.attn' returns \(1, 1, 24\) for \(1, 5, 24\).*only blocks=\[0, 1\]",
    ),
    "rotated positions": (
        ("eva02_tiny_patch14_224", {**TOKENS, "img_size": 28}),
        r"'blocks.0.attn' is called with more than tokens .*none of these blocks",
    ),
    "a mask": (
        (
            "swin_tiny_patch4_window7_224",
            {"img_size": 32, "window_size": 4, "embed_dim": 12, "depths": (2,), "num_heads": (1,), "num_classes": 5},
        ),
        r"'layers.0.blocks.1.attn' is called with more than tokens .*only blocks=\[0\]",
    ),
    "maps": (
        ("samvit_base_patch16", {**TOKENS, "num_classes": 0}),
        r"'blocks.0.attn' must return tokens \(b, n, c\), got \(1, 14, 14, 24\); none",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_blocks_that_cannot_be_replaced_are_named(case):
    (name, options), message = UNFIT[case]
    net = timm.create_model(name, **options).eval()
    modules = list(net.modules())
    with pytest.raises(hb.InputError, match=message):
        hb.replace_attention(net, "efficient")
    assert all(a is b for a, b in zip(modules, net.modules(), strict=True))


def test_block_that_reads_attention_attributes_raises():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.Linear(8, 8)

        def forward(self, x):
            return self.attn(x) * self.attn.in_features

    net, x = nn.Sequential(Asks()), torch.rand(1, 5, 8)
    with pytest.raises(
        hb.InputError, match=r"runs with its own attention but not with the replacement .*no attribute 'in_features'"
    ):
        hb.replace_attention(net, "efficient", example=x)
    assert net(x).shape == x.shape


def test_attention_is_restored_if_train_returns_none():
    class Silent(nn.Linear):
        """As the attention of timm's LeViT."""

        def train(self, mode=True):
            super().train(mode)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Silent(8, 8)

        def forward(self, x):
            return x + self.attn(x)

    net, x = nn.Sequential(Block()), torch.rand(1, 5, 8)
    before = net(x)
    hb.replace_attention(net, "efficient", example=x)
    assert torch.equal(hb.remove_contexts(net)(x), before)


def test_mixed_precision_keeps_float32_weights():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net = hb.replace_attention(vit(), "nmf")
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
