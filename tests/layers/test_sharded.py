"""Positions in several gloo processes: values and gradients are those of one process with the whole map."""

from __future__ import annotations

import copy
import functools
import itertools
from datetime import timedelta

import forkserver
import pytest
import torch
import torch.distributed as dist
from tiers import GLOO_AVERAGES, full_except
from tolerances import assert_close
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hamburger as hb
from hamburger.hams.decompose import solve_ham
from hamburger.hams.sharded import ShardedHam
from hamburger.layers.norm import SyncBatchNorm, convert_sync

ROWS = {2: (8, 1), 4: (4, 0, 4, 1)}  # of a map of height 9, by the number of processes
SOFT = {"temperature": 0.5}  # at the default of 0.01 a solve amplifies rounding
HAMS = {"nmf": {"ham": "nmf"}, "vq": {"ham": "vq", **SOFT}, "cd": {"ham": "cd", **SOFT}}
CASES = {
    **{f"{name}-{grad}": {**ham, "grad": grad} for name, ham in HAMS.items() for grad in ("one-step", "bptt")},
    **{f"{name}-truncated": {**ham, "grad": "truncated:2"} for name, ham in HAMS.items()},
    **{f"{name}-as-printed": {**HAMS[name], "final_update": False} for name in ("nmf", "vq")},
    "nmf-cosine": {"codes_init": "cosine", "grad": "bptt"},
    "vq-constant-norms": {**HAMS["vq"], "constant_norms": True},
    "cd-beta-0": {**HAMS["cd"], "beta": 0},  # in a process with 5 positions, where the rank is 6
    "hals": {"ham": "hals", "grad": "bptt"},
    "fixed": {"init": "fixed"},
    "learned": {"init": "learned"},
    "online": {"init": "online"},
    "heads": {"heads": 2, "rank": 3},
    "no-steps": {"steps": 0},
    "v1": {"version": "v1", "norm": "none"},
    "cheese": {"version": "v2+"},
    "tokens": {"layout": "tokens"},
    "ham-alone": {},
}
QUICK = ("nmf-one-step", "vq-bptt", "cd-truncated")


def build(case):
    torch.manual_seed(0)
    options = {"rank": 6, "steps": 3, **CASES[case]}
    if case == "ham-alone":
        return hb.HamLayer(hb.VQ(rank=6, temperature=0.5), 8, steps=3).double()
    layer = hb.Hamburger(8, **options).double()
    for parameter in layer.parameters():
        if parameter.dim() < 2:  # with a scale of zero nothing reaches the ham
            torch.nn.init.uniform_(parameter, 0.2, 0.8)
    return layer


def draw_map(case, seed):
    x = torch.randn(2, 8, 9, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.flatten(2) if case == "ham-alone" else x.flatten(2).mT if case == "tokens" else x


def take(case, x, rows):
    """The rows of a map, in the layout of the case."""
    if case == "tokens":
        return x[:, rows.start * 5 : rows.stop * 5]
    return x[:, :, rows.start * 5 : rows.stop * 5] if case == "ham-alone" else x[:, :, rows]


def join(case, parts):
    return torch.cat(parts, dim=1 if case == "tokens" else 2)


def train(layer, case, rows, seed):
    """Two SGD steps: outputs, gradients of input and parameters; then buffers, and an output in evaluation."""
    torch.manual_seed(seed)
    result = {"outs": [], "inputs": [], "parameters": []}
    for step in range(2):
        z = take(case, draw_map(case, step), rows).clone().requires_grad_()
        out = layer.train()(z)
        layer.zero_grad()
        (out * take(case, draw_map(case, 10 + step), rows)).sum().backward()
        result["outs"].append(out.detach())
        result["inputs"].append(z.grad)
        result["parameters"].append({name: p.grad.clone() for name, p in layer.named_parameters()})
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.01 * p.grad / p.grad.norm().clamp_min(1)
    result["buffers"] = {name: b.clone() for name, b in layer.named_buffers()}
    with torch.no_grad():
        result["outs"].append(layer.eval()(take(case, draw_map(case, 5), rows)))
    return result


def share(rank, sizes):
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def start_group(rank, world, folder):
    patience = timedelta(minutes=5)  # of a process whose peer has failed
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=patience)


def worker(rank, sizes, cases, folder):
    start_group(rank, len(sizes), folder)
    mesh = init_device_mesh("cpu", (len(sizes),), mesh_dim_names=("rows",))
    results = {}
    for case in cases:
        layer = build(case)
        if rank:  # what the first process has is copied to the others
            for parameter in layer.parameters():
                torch.nn.init.zeros_(parameter)
        layer = hb.shard_positions(layer, mesh)
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(functools.partial(add_parts, mesh.get_group()))
        results[case] = train(layer, case, share(rank, sizes), seed=rank)
    for name in HAMS:
        results[name] = decompose(name, share(rank, sizes), mesh)
    results["messages"] = {grad: list_messages(grad, share(rank, sizes), mesh) for grad in ("one-step", "bptt")}
    results["dtensor"] = run_on_dtensor(mesh)
    modes = ("eager", "checkpointed", "compiled") if len(sizes) == 4 else ("eager", "checkpointed")
    results["modes"] = [run_in(mode, share(rank, sizes), mesh) for mode in modes]
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def add_parts(group, parameter):
    """Make the gradient of a parameter whole: each process has its part."""
    dist.all_reduce(parameter.grad, group=group)


def decompose(name, rows, mesh=None):
    x, bases = torch.rand(2, 2, 8, 45, generator=torch.Generator().manual_seed(0))
    ham = hb.hams.create(name, rank=6, **{k: v for k, v in HAMS[name].items() if k != "ham"})
    ham = ham if mesh is None else ShardedHam(rank=6, ham=ham, mesh=mesh)
    part = x[:, :, rows.start * 5 : rows.stop * 5]
    return solve_ham(part, ham, steps=6, grad=hb.one_step, bases=bases[:, :, :6])._asdict()


def list_messages(grad, rows, mesh):
    """The sizes of all-reduces in a forward pass, and in its backward pass."""
    sizes, all_reduce = [], dist.all_reduce
    layer = hb.shard_positions(hb.Hamburger(8, rank=6, steps=3, grad=grad, norm="none"), mesh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lambda x, **options: (sizes.append(x.numel()), all_reduce(x, **options))[1])
        out = layer(draw_map("", 0)[:, :, rows].float())
        forward = list(sizes)
        out.sum().backward()
    return forward, sizes[len(forward) :]


def run_on_dtensor(mesh):
    """The output on a map that is a DTensor, and the gradient of the map."""
    layer = hb.shard_positions(build("nmf-bptt"), mesh).eval()
    z = distribute_tensor(draw_map("", 0), mesh, [Shard(2)]).requires_grad_()
    out = DTensor.from_local(layer(z.to_local()), mesh, [Shard(2)], shape=z.shape, stride=z.stride())
    out.square().sum().backward()
    return {"out": out.full_tensor().detach(), "input": z.grad.full_tensor()}


def run_in(mode, rows, mesh):
    """Output, gradients and buffers of a training step."""
    layer = hb.shard_positions(build("nmf-bptt"), mesh)
    call = torch.compile(layer, backend="aot_eager") if mode == "compiled" else layer
    if mode == "checkpointed":
        call = functools.partial(checkpoint, layer, use_reentrant=False)
    z = draw_map("", 0)[:, :, rows].clone().requires_grad_()
    torch.manual_seed(0)
    out = call(z)
    out.square().sum().backward()
    return [out.detach(), z.grad, *(p.grad for p in layer.parameters()), *(b.double() for b in layer.buffers())]


@functools.cache
def run(world, folder):
    forkserver.run(worker, ROWS[world], list(CASES), str(folder), processes=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {world: tmp_path_factory.mktemp("processes") for world in ROWS}


@pytest.mark.parametrize("world", full_except([2], ROWS))
@pytest.mark.parametrize("case", full_except(QUICK, CASES))
def test_processes_with_uneven_rows_match_one_process_with_the_map(case, world, folders):
    parts = [results[case] for results in run(world, folders[world])]
    whole = train(build(case), case, slice(0, 9), seed=0)
    for key in ("outs", "inputs"):
        for step, expected in enumerate(whole[key]):
            assert_close(join(case, [part[key][step] for part in parts]), expected)
    for step, gradients in enumerate(whole["parameters"]):
        for name, expected in gradients.items():
            assert_close(parts[0]["parameters"][step][name], expected)
    for name, expected in whole["buffers"].items():
        assert_close(parts[0]["buffers"][name].double(), expected.double())
        assert all(torch.equal(part["buffers"][name], parts[0]["buffers"][name]) for part in parts)


@pytest.mark.parametrize("world", full_except([2], ROWS))
@pytest.mark.parametrize("name", HAMS)
def test_all_processes_have_the_same_bases_to_the_bit(name, world, folders):
    parts = [results[name] for results in run(world, folders[world])]
    whole = decompose(name, slice(0, 9))
    assert all(torch.equal(part["bases"], parts[0]["bases"]) for part in parts)
    assert_close(parts[0]["bases"], whole["bases"])
    for key in ("codes", "reconstruction"):
        assert_close(torch.cat([part[key] for part in parts], dim=2), whole[key])


def test_a_step_sends_one_message_and_the_one_step_gradient_none(folders):
    for results in run(2, folders[2]):
        step = 2 * (8 * 6 + 6 * 6)  # of two samples: d r and r^2 numbers
        assert results["messages"] == {"one-step": ([step] * 3, []), "bptt": ([step] * 3, [step] * 3)}


@pytest.mark.parametrize("world", full_except([2], ROWS))
def test_checkpointing_and_compilation_change_nothing(world, folders):
    for results in run(world, folders[world]):
        eager, *others = results["modes"]
        for tensors in others:
            for actual, expected in zip(tensors, eager, strict=True):
                assert_close(actual, expected)


@pytest.mark.parametrize("world", full_except([2], ROWS))
def test_the_local_part_of_a_dtensor_is_a_shard(world, folders):
    """Nine rows over four processes: DTensor leaves the last one none."""
    z = draw_map("", 0).requires_grad_()
    out = build("nmf-bptt").eval()(z)
    out.square().sum().backward()
    for results in run(world, folders[world]):
        assert_close(results["dtensor"]["out"], out)
        assert_close(results["dtensor"]["input"], z.grad)


# -- with data parallelism ---------------------------------------------------------------------------------------------

WRAPPERS = {"ddp": DistributedDataParallel} | ({"fsdp": fully_shard} if GLOO_AVERAGES else {})


def data_parallel_worker(rank, folder):
    start_group(rank, 4, folder)
    results = {}
    for axes in (("data", "rows"), ("rows", "data")):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
        sample, part = mesh["data"].get_local_rank(), mesh["rows"].get_local_rank()
        apart = hb.shard_positions(build("fixed"), mesh["rows"])  # each sample has its own batch statistics
        z, weight = (draw_map("", seed)[sample : sample + 1, :, share(part, ROWS[2])] for seed in (0, 1))
        for name, wrap in WRAPPERS.items():
            layer = convert_sync(hb.shard_positions(build("nmf-bptt"), mesh["rows"]))
            wrapped = wrap(layer)
            torch.manual_seed(0)
            out = wrapped(z)
            ((out * weight).sum() * 4).backward()  # both average over 4 processes
            gradients = {name: p.grad for name, p in layer.named_parameters()}
            gradients = {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in gradients.items()}
            results[axes[0], name] = {"out": out.detach(), "parameters": gradients, "at": (sample, part)}
            results[axes[0], name]["apart"] = apart(z).detach()
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.full
def test_samples_and_rows_over_four_processes_under_ddp_and_fsdp(tmp_path):
    forkserver.run(data_parallel_worker, str(tmp_path), processes=4)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)]
    layer = build("nmf-bptt")
    torch.manual_seed(0)
    out = layer(draw_map("", 0))
    (out * draw_map("", 1)).sum().backward()
    for key in itertools.product(("data", "rows"), WRAPPERS):
        for result in (rank[key] for rank in ranks):
            sample, part = result["at"]
            assert_close(result["out"], out[sample : sample + 1, :, share(part, ROWS[2])])
            apart = build("fixed")(draw_map("", 0)[sample : sample + 1])
            assert_close(result["apart"], apart[:, :, share(part, ROWS[2])])
            for name, parameter in layer.named_parameters():
                assert_close(result["parameters"][name], parameter.grad)


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_sharded_layer_can_be_copied_and_keeps_its_state_dict(mesh):
    layer = build("nmf-one-step")
    keys, z = list(layer.state_dict()), draw_map("", 0)
    layer.eval()
    expected = layer(z)
    assert hb.shard_positions(layer, mesh) is layer
    assert list(layer.state_dict()) == keys and "processes=1" in layer.ham.extra_repr()
    assert isinstance(layer.norm, SyncBatchNorm) and layer.norm.mesh is mesh
    for each in (layer, copy.deepcopy(layer)):
        assert_close(each(z), expected)
    assert hb.shard_positions(layer, other := init_device_mesh("cpu", (1,))).norm.mesh is other
    assert convert_sync(layer).norm.mesh is None
    assert hb.shard_positions(layer, mesh).norm.mesh is None  # over all processes already


class OwnStep(hb.NMF):
    def step(self, x, factors):
        return factors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "v2+", "dual": True}, "dual=True decomposes along channels"),
        ({"norm": lambda c: torch.nn.GroupNorm(2, c)}, "GroupNorm may use the positions of one process"),
        ({"codes_init": "uniform"}, "codes_init='uniform' draws a number for every position"),
        ({"grad": "implicit"}, "grad must be 'one-step', .*got 'implicit'"),
        ({"backend": "fused"}, "the fused kernels solve whole maps"),
        ({"init": "columns"}, "init='columns' would take columns of one process alone"),
        ({"ham": OwnStep(rank=2)}, "OwnStep does not define update_codes"),
    ],
)
def test_what_cannot_be_sharded_raises_and_changes_nothing(options, message, mesh):
    layer = hb.Hamburger(8, **{"rank": 2, **options} if "ham" not in options else options)
    modules = list(layer.modules())
    with pytest.raises(hb.OptionError, match=message):
        hb.shard_positions(layer, mesh)
    assert all(a is b for a, b in zip(layer.modules(), modules, strict=True)) and layer.ham.sharded is None


def test_the_fused_kernels_are_never_asked(mesh, monkeypatch):
    layer = hb.shard_positions(hb.Hamburger(8, rank=2), mesh)
    monkeypatch.setenv("HAM_BACKEND", "fused")
    with pytest.raises(hb.OptionError, match="there is no kernel for ShardedHam"):
        layer(torch.randn(1, 8, 3, 3))


def test_other_layers_and_meshes_raise(mesh):
    with pytest.raises(hb.InputError, match="must be a Hamburger or a HamLayer, got Conv2d"):
        hb.shard_positions(torch.nn.Conv2d(1, 1, 1), mesh)
    with pytest.raises(hb.InputError, match=r"must be a DeviceMesh, got ProcessGroup; .*DeviceMesh.from_group"):
        hb.shard_positions(hb.Hamburger(8), mesh.get_group())
    square = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "rows"))
    with pytest.raises(hb.OptionError, match=r"must have one axis, got 2; .*mesh\['rows'\]"):
        hb.shard_positions(hb.Hamburger(8), square)
    with pytest.raises(hb.OptionError, match="axis must be 'spatial', got 'channel'"):
        hb.shard_positions(hb.HamLayer("vq", 8, axis="channel"), mesh)
