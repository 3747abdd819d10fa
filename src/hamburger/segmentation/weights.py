"""Save and load segmentation networks: .safetensors files, folders and Hugging Face repositories."""

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

__all__ = ["Info", "describe_network", "load_weights", "save_weights"]


def save_weights(
    path: str | os.PathLike[str], net: Segmenter, info: Info | None = None, *, durable: bool = True
) -> None:
    """Write the network to a file atomically, and flush it to disk.

    `info` is by default that of the network; its `model` is always the network's `config`. With durable=False the flush
    is skipped, so a power failure may lose the file.
    """
    write_weights(path, net, describe_network(net, info), durable=durable)


def describe_network(net: Segmenter, info: Info | None = None) -> Info:
    """Return the info to save with the network; raise if the network could not be rebuilt from it."""
    if not isinstance(net, Segmenter):
        raise InputError(
            f"save_weights: needs a Segmenter (got a {type(net).__name__}); for a wrapped network, pass the inner one"
        )
    info = info or net.info or Info()
    if net.config is None:
        raise CheckpointError(
            "save_weights: this network was not built by create_model, so a file could not rebuild it; use "
            "create_model, or save its state_dict() yourself"
        )
    context = net.config["context"]
    if context is not None and not isinstance(context, str):
        raise CheckpointError(
            f"save_weights: the context is a {context['module']} instance, which a file cannot rebuild; register the "
            f"class (hamburger.contexts.register) and pass its name, or save the state_dict() yourself"
        )
    for option, value in net.config.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"save_weights: {option}={value!r} cannot be written as JSON ({error}); pass a name or numbers"
            ) from None
    k = net.num_classes
    for what, values in (("class names", info.classes), ("colours", info.palette)):
        if values and len(values) != k:
            raise CheckpointError(f"save_weights: info must have {k} {what}, one per class (got {len(values)})")
    classes = info.classes or tuple(str(i) for i in range(k))
    return dataclasses.replace(info, model=net.config, classes=classes)


def load_weights(path: str | os.PathLike[str]) -> tuple[Segmenter, Info]:
    """Return the network of a file, on the CPU in evaluation mode, and its info. Executes nothing in the file."""
    info, tensors = read_weights("load_weights", path)
    return rebuild_network(info, tensors, str(path)), info


def rebuild_network(info: Info, tensors: dict[str, torch.Tensor], source: str) -> Segmenter:
    """Build the network that `info` describes and load the tensors into it."""
    try:
        with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; keep the caller's random state
            net = create_model(**info.model)
    except (HamburgerError, TypeError) as error:
        raise CheckpointError(f"load_weights: the network of {source} cannot be built: {error}") from error
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:3]]
        raise CheckpointError(
            f"load_weights: the tensors in {source} do not fit the network it describes: {' '.join(lines)}"
        ) from error
    net.info = info
    return net.eval()


# -- folders and the Hugging Face hub ----------------------------------------------------------------------------------


CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


class HubModel(ModelHubMixin):
    """A network and its info, for upload and download by the hub's mixin.

    `Segmenter` does not use the mixin itself, so that building a network does not need huggingface_hub.
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
            f"from_pretrained: the folder {name} has no {WEIGHTS}; pass one written by save_pretrained"
        )
    if Path(name).is_file():
        raise CheckpointError(f"from_pretrained: {name} is a file; pass its folder, or use load_weights")
    try:
        return HubModel.from_pretrained(str(name), **options).net
    except CheckpointError:
        raise
    except Exception as error:  # a download can fail with any exception
        why = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"from_pretrained: '{name}' is not a local folder and could not be downloaded from the hub: "
            f"{type(error).__name__}: {why}"
        ) from error


def push_to_hub(net: Segmenter, repo_id: str, *, info: Info | None, **options: Any) -> str:
    return str(HubModel(net, describe_network(net, info)).push_to_hub(repo_id, **options))


def write_model_card(info: Info) -> str:
    """Return the README.md that the hub shows."""
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

Images are RGB in [0, 1], minus the mean {list(info.mean)}, divided by {list(info.std)}.
"""
