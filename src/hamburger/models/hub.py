"""Networks in folders and on the Hugging Face hub: config.json, model.safetensors, README.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, hf_hub_download

from hamburger.errors import CheckpointError
from hamburger.files import write_atomically
from hamburger.models.info import Info
from hamburger.models.segmenter import Segmenter
from hamburger.models.weights import describe, load_weights, save_weights

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


class Shared(ModelHubMixin):
    """A network and its description, in the form that the hub's mixin uploads and downloads.

    The mixin stays off `Segmenter` itself, so that building a network needs no huggingface_hub.
    """

    def __init__(self, net: Segmenter, info: Info) -> None:
        self.net, self.info = net, info

    def _save_pretrained(self, save_directory: Path) -> None:
        save_weights(save_directory / WEIGHTS, self.net, self.info)
        write_atomically(save_directory / CONFIG, (self.info.as_json(indent=2) + "\n").encode())
        if not (save_directory / CARD).exists():
            write_atomically(save_directory / CARD, card(self.info).encode())

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Shared:
        if Path(model_id).is_dir():
            return cls(*load_weights(Path(model_id) / WEIGHTS))
        return cls(*load_weights(hf_hub_download(model_id, WEIGHTS, **options)))


def save_pretrained(net: Segmenter, folder: str | os.PathLike[str], *, info: Info | None) -> None:
    Shared(net, describe(net, info)).save_pretrained(Path(folder))


def from_pretrained(name: str | os.PathLike[str], **options: Any) -> Segmenter:
    if Path(name).is_dir() and not (Path(name) / WEIGHTS).is_file():
        raise CheckpointError(
            f"from_pretrained: the folder {name} has no {WEIGHTS}; was it written by save_pretrained?"
        )
    if Path(name).is_file():
        raise CheckpointError(f"from_pretrained: {name} is a file; name its folder, or use load_weights")
    try:
        return Shared.from_pretrained(str(name), **options).net
    except CheckpointError:
        raise
    except Exception as error:  # a download fails in as many ways as there are networks
        why = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"from_pretrained: '{name}' is no folder here, and could not be had from the hub: "
            f"{type(error).__name__}: {why}"
        ) from error


def push_to_hub(net: Segmenter, repo_id: str, *, info: Info | None, **options: Any) -> str:
    return str(Shared(net, describe(net, info)).push_to_hub(repo_id, **options))


def card(info: Info) -> str:
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
from hamburger.models.segmenter import Segmenter

net = Segmenter.from_pretrained("...")  # this repository or a copy of it; images b 3 h w -> logits b k h w
```

Images are RGB in [0, 1], less the mean {list(info.mean)}, divided by {list(info.std)}.
"""
