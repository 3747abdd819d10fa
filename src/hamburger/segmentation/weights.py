"""Segmentation networks as .safetensors files, folders and Hugging Face repositories."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download

from hamburger.checkpoints.weights_file import Info, read_weights, write_weights
from hamburger.errors import CheckpointError, HamburgerError, InputError
from hamburger.files import write_atomically
from hamburger.segmentation.model import Segmenter, create_model

__all__ = ["Info", "describe", "load_weights", "save_weights"]


def save_weights(
    path: str | os.PathLike[str], net: Segmenter, info: Info | None = None, *, durable: bool = True
) -> None:
    """Write the network to a file that is either complete or not there, and on the disk when this returns.

    `info` is that of the network by default; its `model` is always the network's own `config`. Without `durable` the
    disk is not waited for, and a loss of power may lose the file.
    """
    write_weights(path, net, describe_network(net, info), durable=durable)


def describe_network(net: Segmenter, info: Info | None = None) -> Info:
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
    info, tensors = read_weights("load_weights", path)
    return rebuild_network(info, tensors, str(path)), info


def rebuild_network(info: Info, tensors: dict[str, torch.Tensor], source: str) -> Segmenter:
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


# ----------------------------------------------------------------------------------------------------------------------
# Networks in folders and on the Hugging Face hub: config.json, model.safetensors, README.md.


CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


class HubModel(ModelHubMixin):
    """A network and its description, in the form that the hub's mixin uploads and downloads.

    The mixin stays off `Segmenter` itself, so that building a network needs no huggingface_hub.
    """

    def __init__(self, net: Segmenter, info: Info) -> None:
        self.net, self.info = net, info

    def _save_pretrained(self, save_directory: Path) -> None:
        save_weights(save_directory / WEIGHTS, self.net, self.info)
        write_atomically(save_directory / CONFIG, (self.info.as_json(indent=2) + "\n").encode())
        if not (save_directory / CARD).exists():
            write_atomically(save_directory / CARD, write_model_card(self.info).encode())

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubModel:
        if Path(model_id).is_dir():
            return cls(*load_weights(Path(model_id) / WEIGHTS))
        return cls(*load_weights(hf_hub_download(model_id, WEIGHTS, **options)))


def save_pretrained(net: Segmenter, folder: str | os.PathLike[str], *, info: Info | None) -> None:
    HubModel(net, describe_network(net, info)).save_pretrained(Path(folder))


def from_pretrained(name: str | os.PathLike[str], **options: Any) -> Segmenter:
    if Path(name).is_dir() and not (Path(name) / WEIGHTS).is_file():
        raise CheckpointError(
            f"from_pretrained: the folder {name} has no {WEIGHTS}; was it written by save_pretrained?"
        )
    if Path(name).is_file():
        raise CheckpointError(f"from_pretrained: {name} is a file; name its folder, or use load_weights")
    try:
        return HubModel.from_pretrained(str(name), **options).net
    except CheckpointError:
        raise
    except Exception as error:  # a download fails in as many ways as there are networks
        why = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"from_pretrained: '{name}' is no folder here, and could not be had from the hub: "
            f"{type(error).__name__}: {why}"
        ) from error


def push_to_hub(net: Segmenter, repo_id: str, *, info: Info | None, **options: Any) -> str:
    return str(HubModel(net, describe_network(net, info)).push_to_hub(repo_id, **options))


def write_model_card(info: Info) -> str:
    """The page that the hub shows."""
    model = info.model
    context = f", context `{model['context']}`" if model["context"] else ""
    return f"""---
library_name: hamburger
pipeline_tag: image-segmentation
tags: [semantic-segmentation, matrix-decomposition]
---

# {model["name"]} with {model["backbone"]}{context}

Semantic segmentation into {len(info.classes)} classes: {", ".join(info.classes)}.

```python
from hamburger.segmentation.model import Segmenter

net = Segmenter.from_pretrained("...")  # this repository or a copy of it; images b 3 h w -> logits b k h w
```

Images are RGB in [0, 1], less the mean {list(info.mean)}, divided by {list(info.std)}.
"""
