"""What a network keeps and gains when a context is inserted, and what remains when it is removed."""

from __future__ import annotations

import copy
import io
import pickle
import random

import numpy as np
import pytest
import torch
from small_networks import NETWORKS, Plain, mask_rcnn
from torch import nn

import hamburger as hb
from hamburger.insertion import InsertedContext
from hamburger.insertion.insert import POSITION_BLIND


def image():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def gates(net):
    return [module.gate for module in net.modules() if isinstance(module, InsertedContext)]


def signature(net):
    """Everything the dry run must leave alone."""
    return (
        {name: tensor.clone() for name, tensor in net.state_dict().items()},
        [(id(module), type(module), module.training, len(module._forward_hooks)) for module in net.modules()],
    )


def same(a, b):
    return a[1] == b[1] and a[0].keys() == b[0].keys() and all(torch.equal(a[0][name], b[0][name]) for name in a[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_insert_train_save_load_and_remove(name):
    net, places = NETWORKS[name]()
    before, output = signature(net), net.eval()(image())
    net.train()
    assert hb.insert_context(net, places) is net
    assert len(gates(net)) == len(places) and all(module.training for module in net.modules())
    assert set(before[0]) < set(net.state_dict()), "a checkpoint of the bare network still fits"
    assert torch.equal(net.eval()(image()), output), "the same bits until it is trained"

    # a step moves the gates first, the next one what lies behind them
    inside = copy.deepcopy([module.context for module in net.modules() if isinstance(module, InsertedContext)])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        net.train()(image()).square().mean().backward()
        optimizer.step()
    assert all(gate.item() != 0 for gate in gates(net))
    moved = [module.context for module in net.modules() if isinstance(module, InsertedContext)]
    for new, old in zip(moved, inside, strict=True):
        pairs = zip(new.parameters(), old.parameters(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs) and all(a.isfinite().all() for a in new.parameters())

    # saved, loaded strictly into a network that was built alike, copied, pickled: the same outputs
    trained = net.eval()(image())
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    fresh, places = NETWORKS[name]()
    hb.insert_context(fresh, places).load_state_dict(torch.load(file, weights_only=True), strict=True)
    for other in (fresh.eval(), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(image()), trained)
    copied = copy.deepcopy(net)
    gates(copied)[0].data.fill_(0.5)
    assert gates(net)[0].item() != 0.5, "a copy has contexts of its own"
    assert [type(a) for a in copied.modules()] == [type(a) for a in net.modules()]

    for other in (copied, net):
        assert hb.remove_contexts(other) is other
        assert list(other.state_dict()) == list(before[0])
    assert [row[:2] for row in signature(net.train())[1]] == [row[:2] for row in before[1]]
    assert all(not module._forward_hooks for module in copied.modules())


def test_mask_rcnn_with_contexts_in_backbone_and_pyramid():
    torch.manual_seed(0)
    net = mask_rcnn().eval()
    images = [torch.rand(3, 64, 48), torch.rand(3, 40, 64)]
    with torch.no_grad():
        before = net(images)
    places = {"backbone.body.layer3": "efficient", "backbone.fpn.layer_blocks.1": ("nmf", {"rank": 8})}
    places["backbone.fpn"] = ("efficient", {"output": "2", "heads": 2})
    hb.insert_context(net, places)
    with torch.no_grad():
        after = net(images)
    assert all(torch.equal(one[key], two[key]) for one, two in zip(before, after, strict=True) for key in one)

    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1]), "masks": torch.ones(1, 64, 64, dtype=torch.uint8)}
    losses = net.train()([torch.rand(3, 64, 64)], [target])
    sum(losses.values()).backward()
    assert len(gates(net)) == 3 and all(gate.grad.isfinite() and gate.grad != 0 for gate in gates(net))
    assert not gates(hb.remove_contexts(net))


def others_drawn():
    return random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002


def test_dry_run_leaves_no_trace():
    class Counts(Plain):
        """Changes a buffer and draws in evaluation too, as a dry run must not show."""

        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def train(self, mode=True):
            raise AssertionError("networks fold weights here")

        def forward(self, x):
            self.calls += 1
            self.calls = self.calls + torch.rand(()) + random.random() + np.random.random()  # noqa: NPY002
            return super().forward(x)

    net = Counts()
    net.stem[1].training = False
    buffer, before, dice = net.calls, signature(net), torch.get_rng_state()
    context = hb.create_context("efficient", 12)
    torch.set_rng_state(dice)
    others = others_drawn()
    hb.insert_context(net, {"stem": context})
    assert torch.equal(torch.get_rng_state(), dice)
    assert others_drawn() == others
    assert net.calls is buffer and not context.training == net.stem.training is False
    hb.remove_contexts(net)
    assert same(signature(net), before) and all(p.grad is None for p in net.parameters())


def test_generated_example_is_small_enough_for_quadratic_contexts():
    positions = []

    class Looks(nn.Module):
        def forward(self, x):
            positions.append(x[0, 0].numel())
            return x

    hb.insert_context(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1)), {"0": Looks()})
    assert 4 * max(positions) ** 2 < 2**30


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csc], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support is in beta", "ignore:Sparse invariant checks")
def test_dry_run_restores_sparse_buffers(layout):
    class Graph(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("edges", torch.eye(3).to_sparse(layout=layout))

        def forward(self, x):
            self.edges.mul_(2)
            return super().forward(x)

    net = hb.insert_context(Graph(), {"stem": "efficient"})
    assert net.edges.layout is layout and torch.equal(net.edges.to_dense(), torch.eye(3))


def test_dry_run_leaves_no_cached_weights():
    class Keeps(Plain):
        """As timm's LeViT: computed from the weights in evaluation and cached, dropped in training."""

        def __init__(self):
            super().__init__()
            self.scale, self.made, self.seen = torch.nn.Parameter(torch.ones(())), {}, []

        def train(self, mode=True):
            self.made = {} if mode else self.made
            return super().train(mode)

        def forward(self, x):
            self.seen.append(x)
            self.last = x
            if not self.training and "twice" not in self.made:
                self.made["twice"] = 2 * self.scale.detach()
            return super().forward(x) * (2 * self.scale if self.training else self.made["twice"])

    x = torch.rand(2, 3, 16, 16)
    trained = Keeps()
    kept = vars(trained).keys()
    hb.insert_context(trained, {"stem": "efficient"})
    assert vars(trained).keys() == kept and not trained.made and not trained.seen
    with torch.no_grad():
        trained.scale.fill_(3)
    loaded = hb.insert_context(Keeps().eval(), {"stem": "efficient"})
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(loaded(x), trained.eval()(x)) and loaded.made["twice"] == 6


def test_gates_have_their_documented_initial_effect():
    x, seen = image(), {}
    for gate in ("zero", "one", None):
        net = Plain().eval()
        net.load_state_dict(seen.setdefault("state", net.state_dict()))
        torch.manual_seed(3)
        hb.insert_context(net, {"stem": "efficient"}, gate=gate)
        seen[gate] = net.stem(x)
        assert ("stem.inserted_context.gate" in net.state_dict()) is (gate is not None)
    torch.testing.assert_close(seen["one"], seen[None])
    assert not torch.allclose(seen["zero"], seen["one"])


def test_identity_at_start_contexts_get_no_second_zero_gate():
    """Two zero factors in a row would never get a gradient."""
    for place, name in (("0", "nonlocal"), ("1", "efficient")):
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
        x = torch.rand(2, 3, 9, 9)
        before = net(x)
        hb.insert_context(net, {place: name}, example=torch.zeros(1, 3, 9, 9))
        assert torch.equal(net(x), before)
        net(x).square().sum().backward()
        inserted = net[int(place)].inserted_context
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in inserted.parameters())
        assert inserted.gate.item() == (name == "nonlocal")


@pytest.mark.parametrize(
    "context",
    [
        ("nmf", {"version": "v2+", "rank": 4}),
        ("cd", {"version": "v2+", "rank": 4}),
        nn.ReLU(),
        nn.Hardtanh(),
        nn.ReLU6(),
        nn.Dropout(0.5),
    ],
    ids=str,
)
def test_context_that_is_the_identity_only_on_the_example_gets_a_zero_gate(context):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    x = 20 * torch.randn(2, 3, 9, 9)
    before = net(x)
    hb.insert_context(net, {"0": context}, example=torch.zeros(1, 3, 9, 9))
    for training in (False, True):
        assert torch.equal(net.train(training)(x), before)
    assert net[0].inserted_context.gate.item() == 0


class CastsItself(nn.Module):
    """A network that enables autocast itself."""

    def __init__(self):
        super().__init__()
        self.net = Plain()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x)


@pytest.mark.parametrize("place", ["net.blocks.0", "net.stem.2"])  # the second has no weights of its own
def test_mixed_precision_keeps_float32_weights(place):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = hb.insert_context(Plain(), {place.removeprefix("net."): "nmf"})
    inside = hb.insert_context(CastsItself(), {place: "nmf"})
    for net in (around, inside):
        assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            net(image()).float().square().sum().backward()
    half = hb.insert_context(Plain().bfloat16(), {place.removeprefix("net."): "nmf"})
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_containers_do_not_show_inserted_contexts():
    net = Plain()
    members, tail = list(net.stem), net.stem[1:]
    hb.insert_context(net, {"stem": "efficient"})
    assert isinstance(net.stem, nn.Sequential) and len(net.stem) == 3
    assert list(net.stem) == members and net.stem[-1] is members[-1]
    assert type(net.stem[1:]) is nn.Sequential and list(net.stem[1:]) == list(tail)
    assert net.stem.inserted_context.context.channels == 12
    assert net.stem.append(nn.Identity())[3] is net.stem._modules["3"]

    class Several(nn.ModuleDict):
        def forward(self, x):
            for layer in self.values():
                x = layer(x)
            return x

    table = Several({"a": nn.Conv2d(3, 6, 1), "b": nn.Conv2d(6, 6, 1)})
    outer = hb.insert_context(nn.Sequential(table), {"0": "efficient"})
    assert [*table] == [*table.keys()] == ["a", "b"] and len(table) == 2 and len(table.items()) == 2
    assert "inserted_context" not in table and "a" in table and outer(image()).shape == (2, 6, 64, 64)


def test_containers_can_be_modified_with_contexts_inside():
    net, x = nn.Sequential(Plain().stem), image()
    hb.insert_context(net, {"0": "efficient"}, gate="one")
    stem, context = net[0], net[0].inserted_context
    relu = stem.pop(-1)
    del stem[1]
    assert isinstance(relu, nn.ReLU) and len(stem) == 1 and stem.inserted_context is context
    stem.insert(1, nn.Tanh()).extend([nn.ReLU()])
    stem[-1] = relu
    assert [type(part) for part in stem] == [nn.Conv2d, nn.Tanh, nn.ReLU] and stem[-1] is relu
    torch.testing.assert_close(net(x), context(relu(stem[0](x).tanh())))
    assert list(hb.remove_contexts(net)[0]._modules) == ["0", "1", "2"]


def test_user_hooks_may_change_the_output_after_the_context():
    net = nn.Sequential(nn.Conv2d(3, 8, 1))
    net[0].register_forward_hook(lambda module, args, output: {"features": output})
    x = image()
    before = net(x)["features"]
    assert torch.equal(hb.insert_context(net, {"0": "efficient"})(x)["features"], before)


def test_dry_run_restores_spectral_norm_state():
    from torch.nn.utils.parametrizations import spectral_norm

    net = nn.Sequential(spectral_norm(nn.Conv2d(3, 8, 3)))
    before = signature(net)
    assert same(signature(hb.remove_contexts(hb.insert_context(net, {"0": "efficient"}))), before)


def test_meta_device_network_can_get_contexts():
    with torch.device("meta"):
        empty = Plain().eval()
        hb.insert_context(empty, {"stem": "efficient", "blocks.1": ("nmf", {"rank": 4})})
    assert {tensor.device.type for tensor in empty.state_dict().values()} == {"meta"}
    full = hb.insert_context(Plain().eval(), {"stem": "efficient", "blocks.1": ("nmf", {"rank": 4})}, gate="one")
    empty.to_empty(device="cpu").load_state_dict(full.state_dict(), strict=True)
    assert torch.equal(empty(image()), full(image()))


def test_user_hooks_see_the_output_with_context():
    net, seen = Plain().eval(), []
    handle = net.stem.register_forward_hook(lambda module, args, output: seen.append(output))
    hb.insert_context(net, {"stem": "efficient"}, gate="one")
    seen.clear()
    net(image())
    bare = nn.Sequential(*net.stem)(image())
    torch.testing.assert_close(seen[0], net.stem.inserted_context(bare))
    hb.remove_contexts(net)
    assert list(net.stem._forward_hooks) == [handle.id]


@pytest.mark.parametrize(
    ("module", "shape", "layout"),
    [
        (nn.Conv2d(3, 8, 1), (1, 8, 5, 5), "channels"),
        (nn.Linear(3, 8), (1, 5, 5, 8), "tokens"),
        (nn.Linear(3, 8), (1, 5, 8), "tokens"),
        (nn.Conv1d(3, 8, 1), (1, 8, 5), "channels"),
        (nn.Conv1d(3, 8, 1), (1, 8, 8), "channels"),
        (nn.Linear(8, 8), (1, 8, 8), "tokens"),
        (nn.Conv3d(3, 8, 1), (1, 8, 4, 4, 4), "channels"),
        (nn.Identity(), (1, 8, 5, 5), "channels"),
        (nn.Identity(), (1, 5, 8), "tokens"),
    ],
)
@pytest.mark.parametrize("context", ["efficient", "nmf"])
def test_insertion_supports_every_feature_layout(module, shape, layout, context):
    class Gives(nn.Module):
        def forward(self, x):
            return x

    inner = Gives()
    inner.part = module  # what shows the channels
    net = hb.insert_context(nn.Sequential(inner), {"0": context}, gate=None, example=torch.rand(shape))
    placed = inner.inserted_context
    assert placed.adapter.layout == layout
    x = torch.randn(shape)
    y = net.eval()(x)
    maps = (x if layout == "channels" else x.movedim(-1, 1)).flatten(2).unsqueeze(3)
    expected = placed.context(maps).squeeze(3)
    torch.testing.assert_close((y if layout == "channels" else y.movedim(-1, 1)).flatten(2), expected)


def test_layout_of_a_layer_without_weights_is_inferred_from_the_network():
    net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU())
    hb.insert_context(net, {"1": "efficient"})
    assert net[1].inserted_context.adapter.layout == "channels"


def test_layout_option_overrides_the_inferred_layout():
    net = nn.Sequential(nn.Linear(8, 8))
    options = {"layout": "channels"}
    hb.insert_context(net, {"0": ("efficient", options)}, example=torch.rand(1, 6, 8))
    assert net[0].inserted_context.context.channels == 6


def test_class_token_is_a_position_unless_a_grid_is_given():
    x = torch.randn(2, 1 + 12, 8)
    with_token = hb.insert_context(nn.Sequential(nn.Linear(8, 8)), {"0": "efficient"}, gate=None, example=x).eval()
    aside = hb.insert_context(
        nn.Sequential(nn.Linear(8, 8)), {"0": ("psp", {"grid": (3, 4)})}, gate=None, example=x
    ).eval()
    bare = nn.Linear.forward
    assert not torch.equal(with_token(x)[:, 0], bare(with_token[0], x)[:, 0])
    assert torch.equal(aside(x)[:, 0], bare(aside[0], x)[:, 0])
    maps = bare(aside[0], x)[:, 1:].mT.unflatten(2, (3, 4))
    expected = aside[0].inserted_context.context(maps).flatten(2).mT
    torch.testing.assert_close(aside(x)[:, 1:], expected)


def test_modules_and_factories_can_be_inserted():
    class Own(nn.Module):
        def __init__(self, channels, scale=1.0):
            super().__init__()
            self.scale = nn.Parameter(torch.full((channels,), scale))

        def forward(self, x):  # tokens, as the network has them
            return x * self.scale

    x = torch.rand(2, 7, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    places = {"0": Own(8), "1": (Own, {"scale": 2.0}), "2": hb.Hamburger(8, rank=2, layout="tokens")}
    hb.insert_context(net, places, example=x, gate="one")
    assert net(x).shape == x.shape and net[1].inserted_context.context.scale[0] == 2
    assert net[0].inserted_context.context is places["0"]


def test_hams_by_name_have_no_final_relu():
    net = Plain()
    hb.insert_context(net, {"stem": "nmf", "blocks.0": ("nmf", {"version": "v1"})})
    assert [part.version for part in net.modules() if isinstance(part, hb.Hamburger)] == ["paper", "v1"]


def test_context_follows_dtype_and_mode_of_the_network():
    for dtype in (torch.bfloat16, torch.float64):
        net = Plain().to(dtype).eval()
        x = torch.rand(1, 3, 16, 16, dtype=dtype)
        before = net(x)
        hb.insert_context(net, {"stem": "nmf"})
        assert {p.dtype for p in net.parameters()} == {dtype} and not net.stem.inserted_context.context.training
        assert torch.equal(net(x), before)


def test_some_contexts_can_be_removed_and_inserted_again():
    net = Plain()
    hb.insert_context(net, {"stem": "efficient", "blocks.0": "efficient"})
    hb.remove_contexts(net, ["stem"])
    assert [name for name, m in net.named_modules() if isinstance(m, InsertedContext)] == ["blocks.0.inserted_context"]
    hb.insert_context(net, {"stem": "sa"})
    assert len(gates(hb.remove_contexts(hb.remove_contexts(net)))) == 0


def test_contexts_that_need_a_grid_are_known():
    """The list is compared with the registry: permuted positions must give permuted outputs."""
    x, order = torch.randn(1, 32, 6, 6), torch.randperm(36)
    for name in hb.list_contexts():
        layer = hb.create_context(name, 32).eval()
        for parameter in layer.parameters():
            if not parameter.any():
                nn.init.uniform_(parameter)
        with torch.no_grad():
            shuffled = layer(x.flatten(2)[..., order].unsqueeze(3)).flatten(2)
            close = torch.allclose(layer(x).flatten(2)[..., order], shuffled, rtol=1e-2, atol=1e-3)
        assert close is (name in POSITION_BLIND), name
