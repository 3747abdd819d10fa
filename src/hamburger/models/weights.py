"""A network in one .safetensors file: its tensors, and in the metadata everything needed to build and to use it."""

from __future__ import annotations

import dataclasses
import json
import os

import torch

from hamburger.errors import CheckpointError, HamburgerError, InputError
from hamburger.models.create import create_model
from hamburger.models.info import Info
from hamburger.models.segmenter import Segmenter
from hamburger.models.stored import read_stored, write_stored

__all__ = ["Info", "describe", "load_weights", "save_weights"]


def save_weights(
    path: str | os.PathLike[str], net: Segmenter, info: Info | None = None, *, durable: bool = True
) -> None:
    """Write the network to a file that is either complete or not there, and on the disk when this returns.

    `info` is that of the network by default; its `model` is always the network's own `config`. Without `durable` the
    disk is not waited for, and a loss of power may lose the file.
    """
    write_stored(path, net, describe(net, info), durable=durable)


def describe(net: Segmenter, info: Info | None = None) -> Info:
    """What is saved with the network; raises where it could not be built again from that."""
    if not isinstance(net, Segmenter):
        raise InputError(
            f"save_weights: needs a Segmenter, got a {type(net).__name__}; of a wrapped network pass the one inside"
        )
    info = info or net.info or Info()
    if net.config is None:
        raise CheckpointError(
            "save_weights: this network was put together by hand, and nothing says how to build it again; build it "
            "with create_model, or save its state_dict() yourself"
        )
    context = net.config["context"]
    if context is not None and not isinstance(context, str):
        raise CheckpointError(
            f"save_weights: the context of this network is a ready {context['module']}, which no file can build again; "
            f"register it (hamburger.contexts.register) and give its name, or save the state_dict() yourself"
        )
    for option, value in net.config.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"save_weights: {option}={value!r} cannot be written as JSON ({error}); give it by name or as numbers"
            ) from None
    k = net.num_classes
    for what, found in (("class names", info.classes), ("colours", info.palette)):
        if found and len(found) != k:
            raise CheckpointError(f"save_weights: the network has {k} classes, and info has {len(found)} {what}")
    classes = info.classes or tuple(str(i) for i in range(k))
    return dataclasses.replace(info, model=net.config, classes=classes)


def load_weights(path: str | os.PathLike[str]) -> tuple[Segmenter, Info]:
    """The network of a file, on the CPU and in evaluation mode, and what its classes mean. Runs nothing in the file."""
    info, tensors = read_stored("load_weights", path)
    return rebuild(info, tensors, str(path)), info


def rebuild(info: Info, tensors: dict[str, torch.Tensor], source: str) -> Segmenter:
    try:
        with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's draws alone
            net = create_model(**info.model)
    except (HamburgerError, TypeError) as error:
        raise CheckpointError(f"load_weights: {source} is of a network that cannot be built here: {error}") from error
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise CheckpointError(
            f"load_weights: the tensors in {source} are not those of the network it names: {' '.join(lines)}"
        ) from error
    net.info = info
    return net.eval()
