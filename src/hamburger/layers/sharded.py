"""`shard_positions`: a Hamburger on a feature map whose positions are in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger.errors import InputError, OptionError, shorten
from hamburger.hams.base import COLUMNS
from hamburger.hams.decompose import BPTT, Truncated
from hamburger.hams.sharded import ShardedHam
from hamburger.layers.burger import Hamburger
from hamburger.layers.ham import HamLayer
from hamburger.layers.norm import CONVERTIBLE_NORMS, SyncBatchNorm, convert_sync

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Layer = TypeVar("Layer", Hamburger, HamLayer)


def shard_positions(layer: Layer, mesh: DeviceMesh) -> Layer:
    """Divide the positions of each sample among the processes of `mesh`; return the layer, changed in place.

    Each process passes its own positions and gets these back: values and gradients are those of one process with the
    whole map. The parts may differ in size and may be empty. Every process must call the layer, and its backward pass.

    >>> mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (4,))
    >>> layer = hb.shard_positions(hb.Hamburger(512), mesh)
    >>> rows = layer(rows)                              # b 512 h_i w -> b 512 h_i w; process i holds h_i of the rows

    Each step sends one all-reduce of d r + r^2 numbers for each sample (NMF; VQ and CD: d r + r), whatever the number
    of positions. Random initial bases are drawn in the first process. Batch norm uses the statistics of all positions.

    - `layer`: a `Hamburger` or `HamLayer`. Parameters and buffers of the first process are copied to the others.
    - `mesh`: a one-dimensional `DeviceMesh`, such as `mesh["rows"]` of a larger one; for a process group,
      `DeviceMesh.from_group`.

    Gradients are those of the sum of all processes' losses. Each process holds its part of a parameter's gradient: add
    the parts over the mesh, as `torch.distributed.all_reduce` does. `DistributedDataParallel` over all processes
    averages instead, which gives the gradient of the mean of the processes' losses. Call this before wrapping.

    Plain torch solves a sharded layer. It takes grad="one-step", "truncated:m" and "bptt", and norm="batch" and "none".
    """
    if not isinstance(layer, (Hamburger, HamLayer)):
        raise InputError(
            f"shard_positions: layer must be a Hamburger or a HamLayer, got {type(layer).__name__}; other layers of a "
            "network need the positions of their neighbours"
        )
    _check_mesh(mesh)
    ham = layer.ham if isinstance(layer, Hamburger) else layer
    if isinstance(layer, Hamburger):
        _check_burger(layer)
    if isinstance(ham, HamLayer):
        _check_ham(ham)
        ham.sharded = ShardedHam(rank=ham.ham.rank, ham=ham.ham, mesh=mesh)
    for parent in layer.modules():
        for name, child in parent.named_children():
            over_all = isinstance(child, nn.SyncBatchNorm) or (isinstance(child, SyncBatchNorm) and child.mesh is None)
            if isinstance(child, _BatchNorm) and not over_all:  # one over all processes remains that
                norm = convert_sync(child)
                assert isinstance(norm, SyncBatchNorm)
                norm.mesh = mesh
                setattr(parent, name, norm)
    _copy_from_first(layer, mesh)
    return layer


def _check_mesh(mesh: object) -> None:
    from torch.distributed.device_mesh import DeviceMesh  # not at the top: a build of torch may lack it

    if not isinstance(mesh, DeviceMesh):
        hint = "; for a process group pass DeviceMesh.from_group(group, device_type)"
        raise InputError(f"shard_positions: mesh must be a DeviceMesh, got {type(mesh).__name__}{hint}")
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or ("rows",)
        raise OptionError(
            f"shard_positions: mesh must have one axis, got {mesh.ndim}; pass one of them, such as mesh[{names[-1]!r}]"
        )
    if mesh.get_coordinate() is None:
        raise OptionError(f"shard_positions: process {dist.get_rank()} is not in the mesh; call this in its processes")


def _check_burger(layer: Hamburger) -> None:
    if type(layer).context is not Hamburger.context:
        raise OptionError(
            f"shard_positions: {type(layer).__name__} has a context() of its own; shard its HamLayer instead"
        )
    if layer.channel_ham is not None:
        raise OptionError(
            "shard_positions: dual=True decomposes along channels, where one dictionary spans all positions; build the "
            "layer with dual=False"
        )
    for norm in (layer.norm, None if layer.cheese is None else layer.cheese[1]):
        if norm is not None and type(norm) not in (*CONVERTIBLE_NORMS, SyncBatchNorm, nn.Identity):
            raise OptionError(
                f"shard_positions: {type(norm).__name__} may use the positions of one process alone; build the layer "
                "with norm='batch' or norm='none'"
            )


def _check_ham(layer: HamLayer) -> None:
    if layer.axis != "spatial":
        raise OptionError(f"shard_positions: axis must be 'spatial', got {layer.axis!r}; it decomposes all positions")
    if not isinstance(layer.grad, (Truncated, BPTT)):
        raise OptionError(
            f"shard_positions: grad must be 'one-step', 'truncated:m' or 'bptt', got {shorten(str(layer.grad))}; other "
            "gradients need more than sums over positions"
        )
    if layer.dictionary.init == COLUMNS:
        raise OptionError("shard_positions: init='columns' would take columns of one process alone; take init='fixed'")
    if layer.backend == "fused":
        raise OptionError("shard_positions: the fused kernels solve whole maps; build the layer with backend='auto'")


@torch.no_grad()
def _copy_from_first(layer: nn.Module, mesh: DeviceMesh) -> None:
    group = mesh.get_group()
    first = dist.get_process_group_ranks(group)[0]
    for tensor in (*layer.parameters(), *layer.buffers()):
        if mesh.size() > 1 and not tensor.is_meta:
            dist.broadcast(tensor, src=first, group=group)
