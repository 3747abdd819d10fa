"""Refused calls: the message says what to do, and the network is unchanged."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from small_networks import Plain
from torch import nn

import hamburger as hb


class Odd(nn.Module):
    """One submodule for each reason why a place cannot take a context."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=4)
        self.twice, self.turned = nn.Identity(), nn.Identity()
        self.never = nn.Conv2d(8, 8, 1)
        self.pair, self.numbers, self.flat = Pair(), Numbers(), nn.Flatten()
        self.alias = self.conv
        self.goes_through, self.lists = GoesThrough(), Lists()

    def forward(self, x):
        x = self.conv(x)
        self.twice(x), self.twice(x[:, :4])
        self.turned(x[..., :5, :5]), self.turned(x[..., :8, :5])  # the second looks like h w c
        x, _ = self.pair(x)
        self.numbers(x)
        self.flat(x), self.lists(x)
        return self.goes_through(x)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class Lists(nn.Module):
    """As the heads of a detector: no part of it is a map."""

    def forward(self, x):
        return [x], {"loss": x.sum()}


class Numbers(nn.Module):
    def forward(self, x):
        return x.argmax(1)


class GoesThrough(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x + 1


REFUSED = {
    "unknown place": ({"covn": "efficient"}, hb.UnknownNameError, "no submodule 'covn'; did you mean 'conv'"),
    "nothing near": ({"zzzzz": "efficient"}, hb.UnknownNameError, "it has conv, twice, turned"),
    "the whole": ({"": "efficient"}, hb.OptionError, "nn.Sequential\\(model, context\\)"),
    "no name": ({3: "efficient"}, hb.OptionError, "places are names as in .*got 3"),
    "no places": ({}, hb.OptionError, "must be a dict from names"),
    "a list": (["conv"], hb.OptionError, "must be a dict from names"),
    "unknown context": (
        {"conv": "eficient"},
        hb.UnknownNameError,
        "insert_context, 'conv': .*did you mean 'efficient'",
    ),
    "unknown option": ({"conv": ("efficient", {"head": 2})}, hb.OptionError, "'conv'.*no option 'head'.*'heads'"),
    "bad option": ({"conv": ("efficient", {"heads": 3})}, hb.OptionError, "'conv'.*3 heads do not divide"),
    "no context": ({"conv": 3}, hb.OptionError, "'conv' must be given a context .*, got 3"),
    "no options": (
        {"conv": ("efficient", 2)},
        hb.OptionError,
        "'conv' must be given a context .* and its options, got",
    ),
    "options of a module": ({"conv": (nn.Identity(), {"rank": 2})}, hb.OptionError, "takes no options except"),
    "builds nothing": ({"conv": lambda c: c}, hb.OptionError, "must build a torch.nn.Module, got int"),
    "cannot build": (
        {"conv": nn.Conv2d},
        hb.OptionError,
        r"'conv': Conv2d\(8\) must build a context for 8 channels and failed \(TypeError: .*missing",
    ),
    "takes no channels": ({"conv": lambda: 3}, hb.OptionError, r"'conv': <lambda>\(8\) must build .*TypeError"),
    "fails": (
        {"conv": (lambda c, by: c / by, {"by": 0})},
        hb.OptionError,
        r"'conv': <lambda>\(8, by=0\) must build a context for 8 channels and failed \(ZeroDivisionError",
    ),
    "builds one of ours wrongly": (
        {"conv": lambda c: hb.Hamburger(c, rank=0)},
        hb.OptionError,
        "insert_context, 'conv': .*rank",
    ),
    "two widths": (
        {"twice": "efficient"},
        hb.InputError,
        r"'twice' is called 2 times in one pass and returns \(1, 8, 28, 28\) and \(1, 4, 28, 28\); .* called once$",
    ),
    "two layouts": ({"turned": "efficient"}, hb.InputError, "'turned' is called 2 times .* or pass the 'layout'$"),
    "never": ({"never": "efficient"}, hb.InputError, "'never' is not called"),
    "two names": ({"conv": "efficient", "alias": "sa"}, hb.InputError, "'conv' and 'alias' are the same module"),
    "a pair": ({"pair": "efficient"}, hb.InputError, "returns tuple, not .*option 'output', one of \\[0, 1\\]$"),
    "lists": ({"lists": "efficient"}, hb.InputError, "returns tuple, not .* name a module that returns one$"),
    "no such part": (
        {"pair": ("efficient", {"output": 2})},
        hb.OptionError,
        "returns no part 2; it has \\[0, 1\\]",
    ),
    "a part of one tensor": (
        {"conv": ("efficient", {"output": 0})},
        hb.OptionError,
        r"'conv' returns one tensor, without parts \(got output=0\); leave out 'output'",
    ),
    "whole numbers": ({"numbers": "efficient"}, hb.InputError, "returns torch.int64, not a tensor of floating"),
    "no positions": ({"flat": "efficient"}, hb.ShapeError, "returns \\(1, 6272\\); a context takes"),
    "wrong channels": ({"conv": hb.Hamburger(16, rank=2)}, hb.ShapeError, "cannot take the features .* of 'conv'"),
    "other shape": ({"conv": nn.Conv2d(8, 9, 1)}, hb.ShapeError, "must keep the shape of its input"),
    "in place": ({"conv": nn.ReLU(inplace=True)}, hb.InputError, "changes its input in place"),
    "itself": ({"goes_through": "efficient"}, hb.InputError, "loops over its children itself"),
    "grid": ({"conv": ("psp", {"grid": (99, 99)})}, hb.ShapeError, "more than the 784 positions"),
    "grid of a map": ({"conv": ("psp", {"grid": (7, 7)})}, hb.ShapeError, "a map of 28 x 28 .*; leave out 'grid'"),
    "no grid": ({"conv": ("psp", {"grid": 7})}, hb.OptionError, "grid must be \\(height, width\\)"),
    "layout": ({"conv": ("sa", {"layout": "chanels"})}, hb.OptionError, "did you mean 'channels'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_calls_raise_and_change_nothing(case):
    places, kind, message = REFUSED[case]
    net = Odd()
    before = ([id(m) for m in net.modules()], list(net.state_dict()), [type(m) for m in net.modules()])
    with pytest.raises(kind, match=message) as caught:
        # the good place comes with the bad one: neither is filled
        hb.insert_context(
            net, {"goes_through.one": "efficient", **places} if isinstance(places, dict) and places else places
        )
    assert str(caught.value).startswith(("insert_context", "no context"))
    assert before == ([id(m) for m in net.modules()], list(net.state_dict()), [type(m) for m in net.modules()])
    assert not any(module._forward_hooks for module in net.modules()) and net.training


def test_layout_option_resolves_ambiguous_calls():
    net = hb.insert_context(Odd(), {"turned": ("efficient", {"layout": "channels"})})
    assert net.turned.inserted_context.context.channels == 8


def test_output_option_selects_a_part_of_the_output():
    net = hb.insert_context(Odd(), {"pair": ("efficient", {"output": 0})}, gate="one")
    assert net(torch.rand(1, 3, 32, 32)).shape == (1, 8, 8, 8)


@pytest.mark.parametrize("name", ["stem", "stme"])
def test_name_without_its_prefix_suggests_the_full_name(name):
    net = nn.Sequential(OrderedDict(backbone=nn.Sequential(OrderedDict(body=Plain()))))
    with pytest.raises(hb.UnknownNameError, match=rf"no submodule '{name}'; did you mean 'backbone\.body\.stem'"):
        hb.insert_context(net, {name: "efficient"})


def test_suggestion_prefers_the_same_name_over_a_similar_one():
    net = nn.Sequential(OrderedDict(stem0=nn.Conv2d(3, 4, 1), body=nn.Sequential(OrderedDict(stem=nn.Conv2d(4, 4, 1)))))
    with pytest.raises(hb.UnknownNameError, match=r"no submodule 'stem'; did you mean 'body\.stem'"):
        hb.insert_context(net, {"stem": "efficient"})


def test_second_context_at_one_place_raises():
    net = hb.insert_context(Plain(), {"stem": "efficient"})
    with pytest.raises(hb.InputError, match=r"'stem' already has a context; .*remove_contexts\(model, \['stem'\]\)"):
        hb.insert_context(net, {"stem": "sa"})
    with pytest.raises(hb.UnknownNameError, match=r"no context at 'blocks.0'; there are contexts at \['stem'\]"):
        hb.remove_contexts(net, ["blocks.0"])


def test_removal_checks_all_places_first():
    net = hb.insert_context(Plain(), {"stem": "efficient", "blocks.0": "efficient"})
    with pytest.raises(hb.OptionError, match="places must be names of submodules, got 3"):
        hb.remove_contexts(net, 3)
    with pytest.raises(hb.UnknownNameError, match="no context at 'head'"):
        hb.remove_contexts(net, ["stem", "head"])
    assert hasattr(net.stem, "inserted_context")
    hb.remove_contexts(net, ["stem", "stem"])
    assert not hasattr(net.stem, "inserted_context") and hasattr(net.blocks[0], "inserted_context")


def test_one_module_at_two_places_raises():
    context = hb.create_context("efficient", 12)
    net = Plain()
    with pytest.raises(hb.InputError, match="is also used elsewhere; pass one module per place"):
        hb.insert_context(net, {"stem": context, "blocks.0": context})
    hb.insert_context(net, {"stem": context, "blocks.0": copy.deepcopy(context)})
    with pytest.raises(hb.InputError, match="is also used elsewhere"):
        hb.insert_context(net, {"blocks.1": context})


def test_neighbourhood_contexts_on_tokens_need_a_grid():
    with pytest.raises(hb.ShapeError, match=r"looks at neighbours .* \(1, 9, 8\); arrange them .*'grid': .*efficient"):
        hb.insert_context(nn.Sequential(nn.Linear(8, 8)), {"0": "psp"}, example=torch.rand(1, 9, 8))
    net = nn.Sequential(nn.Linear(8, 8))
    for name in ("local", "windowed"):
        with pytest.raises(hb.ShapeError, match=r"looks at neighbours .*'grid'"):
            hb.insert_context(net, {"0": (name, {"rank": 2})}, example=torch.rand(1, 9, 8))
        hb.insert_context(net, {"0": (name, {"rank": 2, "grid": (3, 3)})}, example=torch.rand(1, 9, 8))
        hb.remove_contexts(net)
        layer = hb.Hamburger(8, ham=name, rank=2, ham_options={"grid": (3, 3)}, layout="tokens")
        hb.insert_context(net, {"0": layer}, example=torch.rand(1, 9, 8))
        hb.remove_contexts(net)


def test_missing_or_wrong_example_raises():
    with pytest.raises(hb.InputError, match="no convolution that shows its input shape; pass example="):
        hb.insert_context(nn.Sequential(nn.Linear(8, 8)), {"0": "efficient"})
    with pytest.raises(hb.InputError, match=r"could not run on the example \(RuntimeError"):
        hb.insert_context(Plain(), {"stem": "efficient"}, example=torch.rand(1, 4, 8, 8))
    two = nn.Bilinear(4, 4, 8)
    wrapped = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(77, 2))
    with pytest.raises(hb.InputError, match="failed on every input that was tried"):
        hb.insert_context(wrapped, {"0": "efficient"})
    with pytest.raises(hb.InputError, match=r"must be a torch\.nn\.Module, got str"):
        hb.insert_context("resnet", {"0": "efficient"})
    with pytest.raises(hb.InputError, match="a lazy module"):
        hb.insert_context(nn.Sequential(nn.LazyConv2d(8, 1)), {"0": "efficient"})

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = two

        def forward(self, a, b):
            return self.two(a, b)

    tokens = torch.rand(1, 5, 4)
    for example in ((tokens, tokens), {"a": tokens, "b": tokens}):
        net = hb.insert_context(Takes(), {"two": "efficient"}, example=example)
        assert hb.remove_contexts(net)(tokens, tokens).shape == (1, 5, 8)


def test_scripted_submodules_raise_and_others_work():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), torch.jit.script(nn.Conv2d(8, 8, 1)))
    with pytest.raises(
        hb.InputError, match=r"'1' is a TorchScript module.*before torch\.jit\.trace, .*under torch\.no_grad"
    ):
        hb.insert_context(net, {"1": "efficient"})
    x = torch.rand(1, 3, 8, 8)
    before = net(x)
    assert torch.equal(hb.insert_context(net, {"0": "efficient"})(x), before)
    assert torch.equal(hb.remove_contexts(net)(x), before)


def test_unknown_gate_raises():
    with pytest.raises(hb.OptionError, match="gate must be 'zero', 'one' or None, got 0"):
        hb.insert_context(Plain(), {"stem": "efficient"}, gate=0)


class Masked(nn.Module):
    """Scores of which some are masked, and a softmax over them."""

    def __init__(self, fill, after=False):
        super().__init__()
        self.conv, self.scores, self.fill, self.after = nn.Conv2d(3, 8, 1), nn.Identity(), fill, after

    def forward(self, x):
        if self.after:  # in place, on the very tensor that the place gave
            return self.scores(self.conv(x)).masked_fill_(x[:, :1] > 0.5, self.fill).softmax(1)
        return self.scores(self.conv(x).masked_fill(x[:, :1] > 0.5, self.fill)).nan_to_num().softmax(1)


@pytest.mark.parametrize("fill", [-torch.inf, torch.nan])
def test_nonfinite_features_behind_a_gate_raise(fill):
    net, x = Masked(fill).eval(), torch.rand(2, 3, 8, 8)
    before = net(x)
    for gate in ("zero", "one"):
        with pytest.raises(hb.InputError, match=r"'scores' returns features that are not finite .* or use gate=None"):
            hb.insert_context(net, {"scores": "efficient"}, gate=gate)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert torch.equal(net(x), before)
    hb.insert_context(net, {"scores": "efficient"}, gate=None)
    late = Masked(fill, after=True).eval()
    before = late(x)
    torch.testing.assert_close(hb.insert_context(late, {"scores": "efficient"})(x), before, equal_nan=True)


def test_inference_mode_raises_around_the_call_but_not_inside_the_model():
    net, x = Plain().eval(), torch.rand(1, 3, 16, 16)
    with torch.inference_mode(), pytest.raises(hb.InputError, match=r"^insert_context: called under torch\.inference"):
        hb.insert_context(net, {"stem": "efficient"})
    with torch.inference_mode(), pytest.raises(hb.InputError, match=r"^replace_attention: called under torch\.infer"):
        hb.replace_attention(net, "nmf")
    net.forward = torch.inference_mode()(net.forward)
    before = net(x)
    assert torch.equal(hb.insert_context(net, {"stem": "efficient"}, example=x)(x), before)
