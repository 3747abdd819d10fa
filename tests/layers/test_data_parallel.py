"""Two gloo processes with half a batch each match one process on the global batch: random numbers and batch norms."""

from __future__ import annotations

import copy

import forkserver
import pytest
import torch
import torch.distributed as dist
from tolerances import assert_close
from torch import nn

import hamburger as hb
from hamburger.errors import InputError, OptionError
from hamburger.layers.norm import BatchNorm1d, BatchNorm2d, Dropout2d, SyncBatchNorm, convert_sync, set_bn_momentum


def burger(**options):
    return hb.Hamburger(8, rank=3, norm="none", init="random", **options)


# what is drawn in training: the first dictionaries, for each section and also along channels; dropped channels
DRAWS = {
    "nmf": lambda: burger(ham="nmf", heads=2),
    "vq": lambda: burger(ham="vq", temperature=0.5),
    "cd": lambda: burger(ham="cd", temperature=0.5),
    "dual": lambda: hb.Hamburger(8, rank=3, version="v2+", dual=True, norm="none"),
    "dropout": lambda: Dropout2d(0.5),
}
NORMS = {
    "2d": lambda: BatchNorm2d(5),
    "1d": lambda: BatchNorm1d(5),
    "cumulative": lambda: nn.BatchNorm2d(5, momentum=None),
    "stateless": lambda: nn.BatchNorm2d(5, affine=False, track_running_stats=False),
}


def drawn(name, share):
    torch.manual_seed(0)
    layer = DRAWS[name]().train()
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.constant_(parameter, 0.5)
    x = torch.randn(4, 8, 5, 6)
    torch.manual_seed(1)
    return [layer(x[share]).detach() for _ in range(2)]


def normed(name, share, sync):
    """Two training steps: outputs, gradients of the input and the parameters, buffers."""
    torch.manual_seed(0)
    norm = NORMS[name]().double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    norm = convert_sync(norm) if sync else norm
    shape = (3, 5, 7) if name == "1d" else (3, 5, 4, 3)
    outs, grads = [], []
    for _ in range(2):
        x = (torch.randn(shape, dtype=torch.float64) * 3 + 2)[share].requires_grad_()
        weight = torch.randn(shape, dtype=torch.float64)[share]
        y = norm(x)
        (y * weight).sum().backward()
        outs.append(y.detach())
        grads.append(x.grad)
    return {
        "outs": outs,
        "grads": grads,
        "weights": {n: p.grad for n, p in norm.named_parameters()},
        "state": {n: b.clone() for n, b in norm.named_buffers()},
        "eval": norm.eval()(torch.ones(shape, dtype=torch.float64)).detach(),
    }


def worker(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    half = slice(2 * rank, 2 * rank + 2)
    uneven = slice(0, 2) if rank == 0 else slice(2, 3)
    one = SyncBatchNorm(2)(torch.full((1, 2, 1, 1), float(rank)))
    results = {
        "draws": {name: drawn(name, half) for name in DRAWS},
        "norms": {name: normed(name, uneven, sync=True) for name in NORMS},
        "one": one.detach(),
    }
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    forkserver.run(worker, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("name", DRAWS)
def test_micro_batches_draw_the_numbers_of_the_global_batch(name, parts):
    first, second = (part["draws"][name] for part in parts)
    whole = drawn(name, slice(None))
    for a, b, expected in zip(first, second, whole, strict=True):
        assert_close(torch.cat([a, b]), expected)
    assert not torch.equal(whole[0], whole[1])  # the second call draws anew, still together


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_two_ranks_match_the_global_batch(name, parts):
    first, second = (part["norms"][name] for part in parts)
    whole = normed(name, slice(None), sync=False)
    for key in ("outs", "grads"):
        for a, b, expected in zip(first[key], second[key], whole[key], strict=True):
            assert_close(torch.cat([a, b]), expected)
    for key, expected in whole["weights"].items():
        assert_close(first["weights"][key] + second["weights"][key], expected)
    for key, expected in whole["state"].items():
        assert torch.equal(first["state"][key], second["state"][key])
        assert_close(first["state"][key].double(), expected.double())
    assert_close(first["eval"], whole["eval"])


def test_one_value_per_rank_counts_as_two(parts):
    assert_close(torch.cat([part["one"] for part in parts])[:, 0, 0, 0], torch.tensor([-1.0, 1.0]), slack=10)


def test_converted_network_is_unchanged_in_a_single_process():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNorm2d(4), nn.Sequential(nn.ReLU(), BatchNorm2d(4)))
    synced = convert_sync(copy.deepcopy(net))
    assert [type(m) for m in synced.modules()].count(SyncBatchNorm) == 2
    assert list(synced.state_dict()) == list(net.state_dict())
    x = torch.randn(2, 3, 8, 8)
    for mode in (True, False):
        assert torch.equal(synced.train(mode)(x), net.train(mode)(x))
    assert convert_sync(synced) is synced
    assert SyncBatchNorm(2)(torch.ones(1, 2, 1, 1)).isfinite().all()


def test_fused_activation_norms_are_kept_and_unknown_norms_raise():
    timm = pytest.importorskip("timm")
    norm = timm.layers.BatchNormAct2d(4)
    x = torch.randn(2, 4, 5, 5)
    synced = convert_sync(copy.deepcopy(norm))
    assert isinstance(synced, SyncBatchNorm) and torch.equal(synced(x), norm(x))
    assert (synced(x) >= 0).all() and list(synced.state_dict()) == list(norm.state_dict())

    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(InputError, match="Doubled is a custom batch norm"):
        convert_sync(nn.Sequential(Doubled(3)))


def test_momentum_reaches_every_norm():
    net = nn.Sequential(hb.Hamburger(8, rank=2), nn.Sequential(BatchNorm2d(8)), nn.GroupNorm(2, 8))
    set_bn_momentum(net, 3e-4)
    assert [m.momentum for m in net.modules() if hasattr(m, "momentum") and hasattr(m, "running_var")] == [3e-4] * 2
    with pytest.raises(OptionError, match="at most 1"):
        set_bn_momentum(net, 3)


def test_dropout_drops_whole_channels_and_keeps_the_mean():
    layer, x = Dropout2d(0.3), torch.ones(64, 50, 3, 2)
    y = layer(x)
    kept = y[:, :, 0, 0] != 0
    assert torch.equal(y, kept[:, :, None, None] * x / 0.7)
    assert abs(float(kept.float().mean()) - 0.7) < 0.03
    assert torch.equal(layer.eval()(x), x) and torch.equal(Dropout2d(0)(x), x)
    assert layer.train()(x.bfloat16()).dtype == torch.bfloat16
    for p in (1.0, -0.1, True, "half"):
        with pytest.raises(OptionError, match="below 1"):
            Dropout2d(p)
