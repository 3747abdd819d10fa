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
    "not over tokens": (("psp",), {}, hb.UnknownNameError, "known: cd, efficient, hals, learned, nmf, robust, vq"),
    "option": (("nmf",), {"rnk": 3}, hb.OptionError, "'blocks.0.attn'.*'rnk'"),
    "block": (("nmf",), {"blocks": [3]}, hb.OptionError, "numbers from -3 to 2, got 3"),
    "block twice": (("nmf",), {"blocks": [2, -1]}, hb.OptionError, "none twice"),
    "no block": (("nmf",), {"blocks": []}, hb.OptionError, "at least one block"),
    "too few": ((nn.Identity(),), {}, hb.OptionError, "3 blocks need as many different modules"),
    "options of a module": ((nn.Identity(),), {"rank": 3}, hb.OptionError, "belong to a context given by name"),
    "no module": ((3,), {}, hb.OptionError, "context must be one of nmf"),
    "neighbours": (
        (hb.Hamburger(24, ham="local", rank=4),),
        {},
        hb.OptionError,
        "call insert_context with 'grid', or take",
    ),
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
    plain = nn.Sequential(nn.Conv2d(3, 8, 1))
    with pytest.raises(hb.InputError, match=r"no block with an attention named attn, attention, .*insert_context"):
        hb.replace_attention(plain, "nmf")
    with pytest.raises(hb.InputError, match=r"no block with an attention at the path 'mixer\.attn'; .*insert_context"):
        hb.replace_attention(plain, "nmf", attention="mixer.attn")


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


# -- other libraries ---------------------------------------------------------------------------------------------------


def torchvision_vit():
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(32, 8, num_layers=3, num_heads=3, hidden_dim=24, mlp_dim=48, num_classes=5)
    nn.init.normal_(net.heads.head.weight)  # zeros at first
    return net


def encoder(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def tokens():
    return torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(2))


OTHERS = {
    "torchvision": (torchvision_vit, image, "encoder.layers.encoder_layer_2.self_attention"),
    "batch first": (lambda: encoder(True), tokens, "layers.2.self_attn"),
    "sequence first": (lambda: encoder(False), tokens, "layers.2.self_attn"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_attention_of_torch_and_torchvision_is_replaced_and_restored(name):
    build, inputs, place = OTHERS[name]
    net, x = build().eval(), inputs()
    output, keys = net(x), list(net.state_dict())
    assert hb.replace_attention(net, "nmf", blocks=[-1], rank=4, example=x) is net
    assert replaced(net) == [place]
    with torch.no_grad():  # without gradients nn.TransformerEncoderLayer would take its fused path
        after = net(x)
    assert after.shape == output.shape and not torch.allclose(after, output, atol=1e-3)
    net.train()(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.get_submodule(place).parameters())
    hb.remove_contexts(net.eval())
    torch.testing.assert_close(net(x), output)
    assert list(net.state_dict()) == keys


def test_samples_of_a_sequence_first_encoder_stay_apart():
    x = tokens()  # n = 2, b = 17
    net = hb.replace_attention(encoder(False), "efficient", example=x).eval()
    moved = x.clone()
    moved[:, 3] += 1
    changed = (net(moved) - net(x)).abs().amax((0, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == [3]
    burger = hb.replace_attention(encoder(True), [hb.Hamburger(24, rank=4) for _ in range(3)], example=tokens())
    with pytest.raises(hb.InputError, match="with more than tokens"):
        burger(tokens(), src_key_padding_mask=torch.zeros(2, 17))


class OwnSkip(nn.Module):
    """A block like those of BERT: its attention has the skip and the norm."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x, mask=None):
            return (self.norm(x + self.inner(x)),)

    def __init__(self):
        super().__init__()
        self.attention = self.Attention()

    def forward(self, x):
        return self.attention(x, None)[0]


def test_attention_with_its_own_skip_is_refused_and_a_path_chooses_its_inner_part():
    net, x = nn.Sequential(OwnSkip(), OwnSkip()), torch.randn(1, 5, 8)
    with pytest.raises(hb.InputError, match=r"'0.attention' adds its input to what it returns.*pass attention="):
        hb.replace_attention(net, "efficient", example=x)
    hb.replace_attention(net, "efficient", attention="attention.inner", example=x)
    assert replaced(net) == ["0.attention.inner", "1.attention.inner"] and net(x).shape == x.shape
