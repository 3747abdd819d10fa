"""`ham train --strategy fsdp`: each process keeps a part of every parameter, of its gradient and optimizer state.

torch's FSDP2 gathers a module's parameters while it runs and frees them afterwards. Checkpoints hold whole tensors, so
their format does not depend on the strategy, and a run can be resumed with another one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError
from hamburger.layers.burger import Hamburger
from hamburger.tensors import map_tensors

UNIT = 2**18  # parameters of a module that is gathered on its own; smaller ones are gathered with the network


def shard(net: nn.Module, device: torch.device) -> None:
    """Shard the parameters of `net` over all processes, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, parameter in net.named_parameters() if parameter.dim() == 0]
    if scalars:
        raise OptionError(
            f"train: --strategy fsdp cannot shard scalars (got {', '.join(scalars[:3])}); use --strategy ddp, or "
            "contexts without gate and version v2+"
        )
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for module in list_units(net):
        fully_shard(module, mesh=mesh)
    fully_shard(net, mesh=mesh)


def list_units(net: nn.Module) -> list[nn.Module]:
    """The modules that are gathered on their own: every Hamburger, whose kernels read all its weights, large layers."""
    units: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in net.modules():
        if module is net or module in inside:
            continue
        large = sum(parameter.numel() for parameter in module.parameters(recurse=False)) >= UNIT
        if isinstance(module, Hamburger) or (large and not list(module.children())):
            units.append(module)
            inside.update(module.modules())
    return units


def gather(state: Any) -> Any:
    """Return a state dict with whole tensors, on the CPU, instead of parts; all processes must call this together."""
    return map_tensors(_gather_tensor, state)


def _gather_tensor(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def load_whole(net: nn.Module, state: dict[str, Tensor]) -> None:
    """Load whole tensors into a sharded network."""
    net.load_state_dict({name: _part(state[name], like) for name, like in net.state_dict().items()})


def load_whole_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load whole tensors into the optimizer of a sharded network."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = {
        index: {name: _part(value, parameters[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": parts})


def _part(value: Any, like: Tensor) -> Any:
    """This process's part of a tensor that is divided as `like`; anything else is returned as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
