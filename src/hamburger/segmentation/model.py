"""Segmentation networks: backbone, head, and logits at the size of the image; their weights files and hub folders."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.backbones import Backbone, create_backbone
from hamburger.checkpoints.network import load_network
from hamburger.checkpoints.weights_file import HUB_FILES, Info, download_weights, to_plain_json, write_weights
from hamburger.errors import CheckpointError, InputError, OptionError, check_count, check_mapping
from hamburger.files import encode_json, parse_json, write_atomically
from hamburger.registry import explain_errors, options_of
from hamburger.segmentation.heads import base
from hamburger.segmentation.heads.base import Head
from hamburger.segmentation.losses import IGNORE, check_labels, resize_logits
from hamburger.tensors import check_images, check_shapes, is_exporting


class Segmenter(nn.Module):
    """b 3 h w   ->   logits b k h w, for any h and w.

    With labels (b h w, 255 where unlabelled), `forward` returns the loss terms by name instead; training minimises
    their sum. Loss and logits share one `forward` so that DDP and `torch.compile` see both. Images are padded with a
    few pixels of zeros to the right and below, so that feature maps line up with their pixels: see `PixelGrid`.

    `config` holds the keywords of `create_model` that rebuild this network, `info` describes its classes; both are None
    for networks that were not built by `create_model`.
    """

    config: dict[str, Any] | None
    info: Info | None

    def __init__(
        self, backbone: Backbone, head: Head, *, num_classes: int, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.num_classes = backbone, head, num_classes
        self.config, self.info = config, None

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        check_batch("Segmenter", x, target)
        h, w = x.shape[-2:]
        grid = PixelGrid.of(self.backbone, h, w)
        outputs = self.head(self.backbone(grid.pad(x)))
        if target is not None:
            return self.head.loss(outputs, grid.pad_labels(target))
        return grid.crop(resize_logits(outputs.logits, (grid.height, grid.width)))

    def save_pretrained(self, folder: str | os.PathLike[str], *, info: Info | None = None) -> None:
        """Write a folder for `from_pretrained`, and for transformers with `hamburger.huggingface`.

        It has `model.safetensors`, `config.json`, `preprocessor_config.json` and `README.md`; an existing README stays.
        """
        folder, info = Path(folder), describe_network(self, info)
        save_weights(folder / WEIGHTS, self, info)
        for name, fields in describe_for_transformers(info).items():
            write_atomically(folder / name, (encode_json(fields, indent=2) + "\n").encode())
        if not (folder / CARD).exists():
            write_atomically(folder / CARD, write_model_card(info).encode())

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Segmenter:
        """Return the network in a folder or Hugging Face repository in evaluation mode, with its `info`.

        `options` are passed to huggingface_hub: revision, token, cache_dir, local_files_only, force_download.
        """
        if Path(name).is_file():
            raise CheckpointError(f"from_pretrained: {name} is a file; pass its folder, or use load_weights")
        path = Path(name) / WEIGHTS
        if Path(name).is_dir() and not path.is_file():
            raise CheckpointError(
                f"from_pretrained: the folder {name} has no {WEIGHTS}; pass one written by save_pretrained"
            )
        if not path.is_file():
            path = download_weights("from_pretrained", str(name), **options)
        return load_weights(path)[0]

    def push_to_hub(
        self,
        repo_id: str,
        *,
        info: Info | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
        branch: str | None = None,
        **options: Any,
    ) -> str:
        """Upload what `save_pretrained` writes; return the URL of the commit.

        `options` are those of huggingface_hub's `upload_folder`, such as commit_message and create_pr.
        """
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        repository = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, info=info)
            return str(api.upload_folder(repo_id=repository, folder_path=folder, revision=branch, **options))


def check_batch(call: str, x: Tensor, target: Tensor | None) -> None:
    """Raise unless the images are b 3 h w and the labels, if any, b h w of int64."""
    check_images(call, "the images", x)
    if target is not None:
        check_labels(call, target)
        check_shapes(call, images=(x, "b c h w"), labels=(target, "b h w"))


DEFAULT_CONTEXT = "nmf"
models = base.heads  # a model is named by its head


@explain_errors("create_model")
def create_model(
    name: str = "hamnet",
    *,
    num_classes: int,
    backbone: str = "resnet50",
    output_stride: int = 16,
    context: str | nn.Module | None = DEFAULT_CONTEXT,
    context_options: Mapping[str, Any] | None = None,
    backbone_options: Mapping[str, Any] | None = None,
    head_options: Mapping[str, Any] | None = None,
    pretrained: str | os.PathLike[str] | None = None,
) -> Segmenter:
    """Return a segmentation network built by name.   b 3 h w   ->   logits b k h w, for any h and w

    >>> net = create_model("hamnet", backbone="resnet50", num_classes=21, context="nmf")
    >>> logits = net(images)                                            # (b, 3, h, w) -> (b, 21, h, w)

    - `name`: a head: "hamnet", "lightham", or with hamburger-lab a published head such as "pspnet"
    - `backbone`, `output_stride`, `backbone_options`: passed to `create_backbone`; `timm:<name>` is any timm encoder
    - `context`, `context_options`: the context in HamNet's head: a name, a module, or None for the paper's baseline.
      Other heads have their own context and accept neither.
    - `head_options`: further options of the head
    - `pretrained`: weights for the backbone: a file, or "timm" to download them
    """
    call = f"create_model('{name}')"
    constructor = models[name]
    check_count(call, "num_classes", num_classes, least=1)
    options = check_mapping(call, "head_options", head_options)
    for option in ("context", "context_options"):
        if option in options:
            raise OptionError(f"{call}: pass {option} directly, not inside head_options")
    requested_options = check_mapping(call, "context_options", context_options)
    if "context" in options_of(constructor):
        options |= {"context": context, "context_options": requested_options}
    elif requested_options or context not in (None, DEFAULT_CONTEXT):
        raise OptionError(
            f"{call}: this head has its own context and accepts neither context nor context_options; omit them, or use "
            f"the context in 'hamnet'"
        )
    encoder = create_backbone(
        backbone,
        output_stride=output_stride,
        pretrained=pretrained,
        **check_mapping(call, "backbone_options", backbone_options),
    )
    config = {
        "name": name,
        "num_classes": num_classes,
        "backbone": backbone,
        "output_stride": output_stride,
        "context": {"module": type(context).__name__} if isinstance(context, nn.Module) else context,
        "context_options": to_plain_json(requested_options),
        "backbone_options": to_plain_json(backbone_options or {}),
        "head_options": to_plain_json(head_options or {}),
    }
    head = models.create(name, encoder.channels, num_classes, **options)
    return Segmenter(encoder, head, num_classes=num_classes, config=config)


# -- pixel grid --------------------------------------------------------------------------------------------------------
#
# How to pad an image so that its logits, resized with aligned corners, line up with its pixels.
#
# With convolutions padded on both sides, position j of a map of stride s is centred on pixel s j. Resizing a map of f
# positions with aligned corners puts position j on pixel j (h - 1) / (f - 1). Both agree if h = s (f - 1) + 1, as in
# the usual crops of 321 and 513 pixels. At any other size the prediction would be stretched, by up to s - 1 pixels at
# the right edge. So images are padded to the next size that fits, and the logits are cropped back.


class PixelGrid(NamedTuple):
    """`height` x `width`: the padded size for an image of h x w, to which logits are resized with aligned corners."""

    h: int
    w: int
    height: int
    width: int
    stride: int
    before: int = 0  # zeros above and to the left
    after: int = 0  # zeros below and to the right, beyond height x width

    @classmethod
    def of(cls, backbone: Backbone, h: int, w: int) -> PixelGrid:
        stride = max(backbone.strides)
        if backbone.corners is None:  # an encoder for images of one size: no padding possible
            return cls(h, w, h, w, stride)
        height, width = h + (1 - h) % stride, w + (1 - w) % stride
        if backbone.corners:
            return cls(h, w, height, width, stride)
        # Patches: padding by half a stride before the image moves patch centres onto the corners, up to half a pixel;
        # one more patch at the end covers the last corner.
        before = stride // 2
        return cls(h, w, height, width, stride, before, stride - 1 - before)

    def pad(self, x: Tensor) -> Tensor:
        """Pad with zeros, the mean colour of normalised images.   b 3 h w   ->   b 3 h' w'"""
        before, after = self.before, self.after
        right, bottom = after + self.width - self.w, after + self.height - self.h
        if is_exporting():
            # An exported graph must not branch on whether padding is needed, so it always pads and crops.
            padded = F.pad(x, (before, after + self.stride, before, after + self.stride))
            return padded[..., : self.h + before + bottom, : self.w + before + right]
        if not (before or right or bottom):
            return x
        return F.pad(x, (before, right, before, bottom))

    def pad_labels(self, labels: Tensor) -> Tensor:
        """Pad with unlabelled pixels to the size of the logits.   b h w   ->   b height width"""
        return F.pad(labels, (0, self.width - self.w, 0, self.height - self.h), value=IGNORE)

    def crop(self, logits: Tensor) -> Tensor:
        """Crop logits to the image.   b k height width   ->   b k h w"""
        if is_exporting():
            logits = F.pad(logits, (0, 1, 0, 1))
        return logits[..., : self.h, : self.w]


# -- weights files -----------------------------------------------------------------------------------------------------


CONFIG, WEIGHTS = HUB_FILES
CARD = "README.md"
PROCESSOR = "preprocessor_config.json"
MODEL_TYPE = "hamburger"  # in config.json; hamburger/huggingface.py registers it with transformers


def save_weights(
    path: str | os.PathLike[str],
    net: Segmenter,
    info: Info | None = None,
    *,
    durable: bool = True,
    int8: bool = False,
) -> None:
    """Write the network to a file atomically, and flush it to disk.

    `info` is by default that of the network; its `model` is always the network's `config`. With durable=False the flush
    is skipped, so a power failure may lose the file. `int8` rounds large weights to 8 bits with a factor per output
    channel, for a file of a quarter of the size.
    """
    write_weights(path, net, describe_network(net, info), durable=durable, int8=int8)


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
            encode_json(value)
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


def describe_for_transformers(info: Info) -> dict[str, dict[str, Any]]:
    """Return the JSON files of a folder by name, with the fields that transformers and the hub look for."""
    names = {
        "model_type": MODEL_TYPE,
        "architectures": ["HamburgerForSemanticSegmentation"],
        "id2label": {str(number): name for number, name in enumerate(info.classes)},
        "label2id": {name: number for number, name in enumerate(info.classes)},
    }
    processor = {
        "image_processor_type": "HamburgerImageProcessor",
        "image_mean": info.mean,
        "image_std": info.std,
        "size": {"longest_edge": info.side} if info.side else None,
    }
    return {CONFIG: {**parse_json(info.as_json()), **names}, PROCESSOR: processor}


def load_weights(path: str | os.PathLike[str]) -> tuple[Segmenter, Info]:
    """Return the network of a file, on the CPU in evaluation mode, and its info. Executes nothing in the file."""
    net, info = load_network("load_weights", path, None, create_model)
    net.info = info
    return net, info


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
from hamburger.segmentation import Segmenter

net = Segmenter.from_pretrained("...")  # this repository or a copy of it; images b 3 h w -> logits b k h w
```

Images are RGB in [0, 1], minus the mean {list(info.mean)}, divided by {list(info.std)}.
"""
