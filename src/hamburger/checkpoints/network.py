"""Build the network of a weights file that anybody may have written: the one place where all tasks load weights.

The network is built twice. First on torch's meta device, where tensors have shapes but no memory: if names, shapes or
dtypes differ from the header of the file, or the network is larger than its weights explain, nothing is allocated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hamburger.checkpoints.weights_file import SCALE, Info, check_model_options, dequantise, open_weights, uses_timm
from hamburger.errors import CheckpointError, printable

Network = TypeVar("Network", bound=nn.Module)
FLOATS = ("F16", "BF16", "F32", "F64")  # as safetensors names them; a network converts them to its own
INTEGERS = {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
# A network is built with parts that it then drops, such as the classifier of a timm encoder or the discriminator of a
# GAN: VGG's classifier has 120 million weights.
SPARE_ELEMENTS = 2**27
MAX_ELEMENTS = 2**28  # of one tensor while the network is built and run on an example
MAX_CALLS = 100_000  # of torch's operators in that time; the largest networks of timm need 8,000


def load_network(
    call: str, path: str | os.PathLike[str], task: str | None, create: Callable[..., Network]
) -> tuple[Network, Info]:
    """Return the network of a weights file, built by `create`, on the CPU in evaluation mode, and its info.

    Executes nothing in the file, opens no other file and no connection, and allocates little more than its tensors.
    Anything wrong with the file raises a CheckpointError that names it.
    """
    with open_weights(call, path, task) as (info, file):
        options = {key: value for key, value in info.model.items() if key != "task"}
        try:
            check_model_options(info.model)
        except ValueError as error:
            raise CheckpointError(f"{call}: the network of {path} cannot be built: {error}") from None
        header = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        shapes = {name: tuple(entry.get_shape()) for name, entry in header.items()}
        elements = [math.prod(shape) for shape in shapes.values()]  # a side may have more than 63 bits
        limit = BuildLimit(sum(elements), max(elements, default=0))
        if uses_timm(info.model):  # import it now: its constants must not be made on the meta device
            import timm  # noqa: F401
        with _explain_failure(call, path, limit), torch.device("meta"), limit:
            planned = create(**options).state_dict()
        problem = next(_compare(planned, {name: (shapes[name], header[name].get_dtype()) for name in header}), None)
        if problem is not None:
            raise CheckpointError(f"{call}: the tensors in {path} do not fit the network it describes: {problem}")
        # the initial weights are overwritten; keep the caller's random state
        with _explain_failure(call, path, limit), torch.random.fork_rng(devices=[]):
            net = create(**options)
        tensors = {}
        for name in planned:
            tensors[name] = file.get_tensor(name)
            if name + SCALE in header:
                tensors[name] = dequantise(name, tensors[name], file.get_tensor(name + SCALE))
            if not tensors[name].isfinite().all():
                raise CheckpointError(
                    f"{call}: {path} has NaN or infinity in the tensor '{name}'; use the weights of another step or run"
                )
        with _explain_failure(call, path, limit):
            net.load_state_dict(tensors)
    config: Any = getattr(net, "config", None)
    info = replace(info, model={**info.model, **(config or {})})
    count = info.model.get("num_classes")
    if count is not None and len(info.classes) not in (0, count):
        raise CheckpointError(f"{call}: {path} has names of {len(info.classes)} classes for a network of {count}")
    if count and not info.classes:  # the weights of somebody who gave no names
        info = replace(info, classes=tuple(map(str, range(count))))
    return net.eval(), info


@contextmanager
def _explain_failure(call: str, path: str | os.PathLike[str], limit: BuildLimit) -> Iterator[None]:
    """Raise whatever a constructor raises on unusual options as a CheckpointError of one line."""
    try:
        yield
    except Exception as error:
        text = limit.exceeded or f"{error}" or type(error).__name__
        reason = " ".join(text.split())
        raise CheckpointError(f"{call}: the network of {path} cannot be built: {reason:.500}") from error
    if limit.exceeded:  # a constructor may have caught the error
        raise CheckpointError(f"{call}: the network of {path} cannot be built: {limit.exceeded}")


class BuildLimit(TorchDispatchMode):
    """Raises when building a network creates more than its weights explain; meant for the meta device."""

    def __init__(self, stored: int, largest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's mode has no types
        self.most, self.largest = 4 * stored + SPARE_ELEMENTS, max(MAX_ELEMENTS, largest)
        self.created = self.calls = 0
        self.exceeded = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.calls += 1
        sizes = [each.numel() for each in (output if isinstance(output, (tuple, list)) else (output,)) if _is(each)]
        if not any(_is(each) for each in args):  # made from nothing: a weight, a buffer or an example
            self.created += sum(sizes)
        if self.calls > MAX_CALLS or self.created > self.most or max(sizes, default=0) > self.largest:
            self.exceeded = (
                f"it is larger than its weights explain ({self.created} numbers, {max(sizes, default=0)} of them in "
                f"one tensor, after {self.calls} operations)"
            )
            raise RuntimeError(self.exceeded)
        return output


def _is(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(_is(each) for each in value))


def _compare(planned: dict[str, Any], stored: dict[str, tuple[tuple[int, ...], str]]) -> Iterator[str]:
    """Yield the differences of the network's tensors from those of the file."""
    known = set(planned)
    for name, tensor in planned.items():
        if name not in stored:
            yield f"'{name}' is missing"
            continue
        shape, dtype = stored[name]
        if shape != tuple(tensor.shape):
            yield f"'{name}' has the shape {shape}, the network's {tuple(tensor.shape)}"
        scale = stored.get(name + SCALE)
        if scale is not None:  # int8 with a factor per output channel
            known.add(name + SCALE)
            if not tensor.is_floating_point() or dtype != "I8" or scale[0] != shape[:1] or scale[1] not in FLOATS:
                yield f"'{name}{SCALE}' {scale} does not fit '{name}' {shape, dtype} as int8 factors"
        elif dtype not in (FLOATS if tensor.is_floating_point() else (INTEGERS.get(tensor.dtype),)):
            yield f"'{name}' has the dtype {dtype}, the network's {tensor.dtype}"
    for name in stored.keys() - known:
        yield f"'{printable(name[:200])}' is unexpected"
