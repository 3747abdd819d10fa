"""What `ham export` needs from a task: the inputs and outputs of the exported graph, and how to compare two outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

Outputs = tuple[Tensor, ...]


class OutputComparison(NamedTuple):
    """Two outputs compared: the largest difference of values, the largest value, and a flag per prediction that is
    the same in both."""

    difference: float
    largest: float
    same: Tensor


def compare_single_output(same: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Outputs, Outputs], OutputComparison]:
    """A comparison for networks with one output; `same` returns a flag per prediction that agrees."""

    def compare(ours: Outputs, theirs: Outputs) -> OutputComparison:
        [a], [b] = ours, theirs
        return OutputComparison(float((a - b).abs().max()), float(a.abs().max()), same(a, b))

    return compare


def same_class(ours: Tensor, theirs: Tensor) -> Tensor:
    """Whether the largest logit has the same index.   b k *spatial, twice   ->   b *spatial"""
    return ours.argmax(1) == theirs.argmax(1)


compare_classes = compare_single_output(same_class)


def identity(net: nn.Module) -> nn.Module:
    return net


def call_network(net: nn.Module, *images: Tensor) -> Any:
    return net(*images)


@dataclass(frozen=True)
class ExportSpec:
    """- `size`: default height and width of the example image
    - `inputs`, `outputs`: names; each input is b 3 h w, normalised with the mean and std of `Info`
    - `compare`: compares the outputs of torch and of the exported file
    - `values`, `agreement`: words for the report: what `difference` is of, and what `same` means
    - `predictions`: what the network makes one prediction for, in the plural; `least`: the share that must agree
    - `exported`: the module to export, from the network
    - `reference`: calls the network on the file's inputs; the file must return the same
    - `dynamic`: axes that may be dynamic, if the exporter can; `static_reason`: why the others cannot
    """

    size: tuple[int, int] = (513, 513)
    inputs: tuple[str, ...] = ("image",)
    outputs: tuple[str, ...] = ("logits",)
    compare: Callable[[Outputs, Outputs], OutputComparison] = compare_classes
    values: str = "logits"
    agreement: str = "labels agree"
    predictions: str = "pixels"
    least: float = 0.999
    exported: Callable[[nn.Module], nn.Module] = identity
    reference: Callable[..., Any] = call_network
    dynamic: tuple[str, ...] = ("batch", "height", "width")
    static_reason: str = ""


SEGMENTATION_EXPORT = ExportSpec()
