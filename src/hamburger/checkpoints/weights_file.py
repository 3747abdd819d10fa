"""Our weights format: one .safetensors file per network, with its constructor keywords and classes as metadata.

Large weights may be stored as int8 with one float32 factor per output channel under the name `<name>.scale`.

A file may come from anybody. Nothing in it is executed, and its metadata may only hold plain values of bounded size:
`Info.from_json` and `check_model_options` refuse the rest. `checkpoints/network.py` builds the network.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import CheckpointError
from hamburger.files import encode_json, parse_json, write_atomically, write_durably

VERSION = 1  # of the metadata; a reader refuses newer ones
KEY = "hamburger"  # of the metadata in the file
HUB_FILES = ("config.json", "model.safetensors")  # of a folder or repository in the layout of the Hugging Face hub
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Info:
    """What weights need to be useful: how to build their network and what its outputs mean.

    - `model`: the keywords that build the network, for example those of `create_model`
    - `classes`, `palette`: a name and a colour per class, in the order of the logits
    - `mean`, `std`: normalisation of RGB images in [0, 1]
    - `side`: the longer side of the images seen in training; None where photos should keep their size
    - `extra`: anything else that JSON can hold
    """

    model: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    palette: tuple[Colour, ...] = ()
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    side: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        return encode_json({"version": VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str, source: str) -> Info:
        """Return the info in metadata that anybody may have written; raise CheckpointError on what it may not hold."""
        try:
            if len(text) > MAX_METADATA:
                raise ValueError(f"the metadata have {len(text)} characters, at most {MAX_METADATA} are allowed")
            fields = parse_json(text)
            version = fields.pop("version")
            if version > VERSION:
                raise CheckpointError(
                    f"{source} was written by a newer version of hamburger (format {version!r:.20}); upgrade to read it"
                )
            for name in ("model", "extra"):
                if not isinstance(fields[name], dict):
                    raise ValueError(f"{name} must be an object")
            check_plain("model", fields["model"])
            check_plain("extra", fields["extra"], bounds={}, largest=2**63)
            info = cls(
                model=fields["model"],
                classes=tuple(_read_class_name(name) for name in fields["classes"]),
                palette=tuple(_read_colour(colour) for colour in fields["palette"]),
                mean=_read_rgb("mean", fields["mean"], least=-255.0),
                std=_read_rgb("std", fields["std"], least=1e-6),
                side=_read_side(fields.get("side")),  # older files have none
                extra=fields["extra"],
            )
            if info.palette and len(info.palette) != len(info.classes):
                raise ValueError(f"{len(info.palette)} colours for {len(info.classes)} classes")
            return info
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{source} does not describe a network of this library ({type(error).__name__}: {error!s:.200}); "
                f"save it with hamburger.segmentation.save_weights"
            ) from error


def _read_class_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isprintable() or len(name) > MAX_TEXT:
        raise ValueError(f"a class name must be at most {MAX_TEXT} printable characters (got {name!r:.40})")
    return name


def _read_colour(colour: Any) -> Colour:
    red, green, blue = colour
    if not all(type(value) is int and 0 <= value <= 255 for value in (red, green, blue)):
        raise ValueError(f"a colour must be three whole numbers from 0 to 255 (got {colour!r:.40})")
    return red, green, blue


def _read_rgb(name: str, values: Any, *, least: float) -> tuple[float, float, float]:
    red, green, blue = values
    if not all(type(value) in (int, float) and least <= value <= 255 for value in (red, green, blue)):
        raise ValueError(f"{name} must be three numbers from {least:g} to 255 (got {values!r:.60})")
    return float(red), float(green), float(blue)


def _read_side(side: Any) -> int | None:
    if side is not None and not (type(side) is int and MIN_SIDE <= side <= MAX_SIDE):
        raise ValueError(f"side must be a whole number from {MIN_SIDE} to {MAX_SIDE} (got {side!r:.40})")
    return side


# -- what metadata may hold --------------------------------------------------------------------------------------------

MAX_METADATA = 2**22  # characters
MAX_TEXT = 1000  # characters of a text
MIN_SIDE, MAX_SIDE = 16, 8192  # pixels of an image that is resized before a prediction
MAX_DEPTH = 6
MAX_ENTRIES = 2000  # of all lists and objects together
LARGEST = 2**16  # of a number in `Info.model`, except for these:
LARGEST_OF = {
    "num_classes": 2**20,
    "seed": 2**63 - 1,
    # these change no tensor of the file, so that only this bound limits the time and memory of a prediction
    **dict.fromkeys(("steps", "eval_steps"), 1000),
    **dict.fromkeys(("size", "max_size"), 4096),
    "max_disparity": 1024,  # time and memory of stereo are proportional to it
    **dict.fromkeys(("img_size", "context_at", "resolution"), 8192),
    **dict.fromkeys(("depth", "depths", "layers"), 256),
    **dict.fromkeys(("multigrid", "output_stride", "anchor"), 1024),
    **dict.fromkeys(("scales", "bins", "sizes"), 64),  # of pooled maps and of kernels
    "proposals": 2**13,
}
# Options of `timm.create_model` that shape the network. Others may name a source of weights: pretrained_cfg, cache_dir.
TIMM_OPTIONS = frozenset(
    """
    aa_layer act_layer always_partition attn_drop_rate attn_layer avg_down base_width block_reduce_first
    cardinality channels class_token conv_mlp depth depths dims down_kernel_size drop_block_rate drop_path_rate
    drop_rate dynamic_img_pad dynamic_img_size embed_dim embed_dims fc_norm feature_size final_norm fix_stem
    global_pool growth_rate head_dim head_init_scale hidden_dims img_size init_values kernel_sizes layers
    ls_init_value mlp_ratio mlp_ratios no_embed_class norm_eps norm_layer num_heads out_indices output_stride
    pad_type patch_norm patch_size patch_stride pos_drop_rate pos_embed pre_norm proj_drop_rate qk_norm qkv_bias
    reg_tokens replace_stem_pool se_layer stem_chs stem_size stem_stride stem_type stem_width strict_img_size
    swiglu_mlp use_grn width width_factor window_size zero_init_last
    """.split()  # noqa: SIM905 - a list of strings would fill a page
)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")  # of a backbone: neither an address nor a path
TIMM = "timm:"
HAMFORMER = "hamformer"  # the names of classifiers that are not timm's begin with it


def check_plain(name: str, value: Any, *, bounds: Mapping[str, int] = LARGEST_OF, largest: int = LARGEST) -> None:
    """Raise ValueError unless the value is made of texts, flags, finite numbers, lists and objects of bounded size.

    `bounds`: the largest number under a key; `largest`: under any other.
    """
    pending, entries = [(name, value, 0)], 0
    while pending:
        name, value, depth = pending.pop()
        entries += 1
        if entries > MAX_ENTRIES or depth > MAX_DEPTH:
            raise ValueError(f"{name:.80}: more than {MAX_ENTRIES} values, or nested more than {MAX_DEPTH} deep")
        if isinstance(value, (list, tuple)):
            pending += [(name, item, depth + 1) for item in value]
        elif isinstance(value, Mapping):
            if not all(isinstance(key, str) and len(key) <= MAX_TEXT for key in value):
                raise ValueError(f"{name:.80}: keys must be texts of at most {MAX_TEXT} characters")
            pending += [(f"{name}.{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, str):
            if len(value) > MAX_TEXT or not value.isprintable():
                raise ValueError(f"{name:.80} must be at most {MAX_TEXT} printable characters (got {value!r:.40})")
        elif isinstance(value, (int, float)):
            bound = bounds.get(name.rpartition(".")[2], largest)
            if not abs(value) <= bound:  # NaN is not
                raise ValueError(f"{name:.80} must be a number of at most {bound:g} (got {value!r:.40})")
        elif value is not None:
            raise ValueError(f"{name:.80} must be a text, a number, a list or an object (got a {type(value).__name__})")


def check_model_options(model: Mapping[str, Any]) -> None:
    """Raise ValueError on keywords of a network that a weights file may not hold: above all sources of weights.

    Saving and loading both call this, so that every file that was written can be read.
    """
    check_plain("model", model)
    for option, value in model.items():
        if isinstance(value, Mapping) and not option.endswith("_options"):
            raise ValueError(f"{option} must not be an object")
    if model.get("pretrained") not in (None, False):
        raise ValueError(
            f"pretrained must be empty, since the weights are in the file (got {model['pretrained']!r:.80})"
        )
    backbone = model.get("backbone")
    if backbone is None:
        return
    if not isinstance(backbone, str) or not NAME.fullmatch(backbone.removeprefix(TIMM)):
        raise ValueError(
            f"backbone must be the name of an architecture, not of a source of weights (got {backbone!r:.80})"
        )
    options = model.get("backbone_options")
    if uses_timm(model) and isinstance(options, Mapping):
        for option in options.keys() - TIMM_OPTIONS:
            raise ValueError(f"backbone_options.{option:.80} is not an option of timm that a weights file may hold")


def uses_timm(model: Mapping[str, Any]) -> bool:
    """Return whether the network with these keywords contains one of timm."""
    backbone = str(model.get("backbone"))
    return backbone.startswith(TIMM) or (model.get("task") == "classification" and not backbone.startswith(HAMFORMER))


# -- files -------------------------------------------------------------------------------------------------------------


def write_weights(
    path: str | os.PathLike[str], net: nn.Module, info: Info, *, durable: bool = True, int8: bool = False
) -> None:
    """Write the network and `info` to a file atomically, and flush it to disk.

    With durable=False the flush is skipped, so a power failure may lose the file. `int8` makes the file about four
    times smaller: see `quantise`.
    """
    try:
        check_model_options(info.model)
    except ValueError as error:
        raise CheckpointError(f"save_weights: a weights file cannot describe this network: {error}") from None
    tensors = net.state_dict()
    if int8:
        for name in [name for name, value in net.named_parameters() if value.dim() > 1 and value.numel() >= MIN_INT8]:
            tensors[name], tensors[name + SCALE] = quantise(tensors[name])
    write_tensors(path, tensors, info, durable=durable)


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: Info, *, durable: bool) -> None:
    """Write tensors and `info` as `write_weights` does."""
    from safetensors.torch import save

    write = write_durably if durable else write_atomically
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write(Path(path), save(plain, metadata={KEY: info.as_json()}))


SCALE = ".scale"  # ending of the name of the factors of an int8 tensor
MIN_INT8 = 1024  # parameters with fewer numbers stay float; so do norms, biases and all buffers, such as dictionaries


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and a float32 factor per output channel: symmetric, rounded to the nearest.   o ...  ->  o"""
    flat = weight.float().flatten(1)
    scale = (flat.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (flat / scale[:, None]).round().to(torch.int8).view_as(weight), scale


def dequantise(name: str, values: Tensor, scale: Tensor) -> Tensor:
    """Return int8 `values` times their factors; raise CheckpointError unless there is one per output channel."""
    if scale.shape != values.shape[:1] or not scale.is_floating_point():
        raise CheckpointError(
            f"weights: {name}{SCALE} must have one factor for each of the {values.shape[0] if values.dim() else 0} "
            f"output channels of {name} (got {scale.dtype}, shape {tuple(scale.shape)})"
        )
    return values.float() * scale.float().reshape(-1, *[1] * (values.dim() - 1))


@contextmanager
def open_weights(call: str, path: str | os.PathLike[str], task: str | None = None) -> Iterator[tuple[Info, Any]]:
    """Open what `write_weights` wrote, yield its info and the open file; refuse a file of another task."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{call}: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise CheckpointError(
                    f"{call}: {path} has no hamburger metadata, so it was not written by save_weights; pass weights of "
                    f"a backbone to create_model(..., pretrained='{path}')"
                )
            info = Info.from_json(metadata[KEY], f"{call}: {path}")
            file_task = info.model.get("task")
            if file_task != task:
                got, expected = (name or "segmentation" for name in (file_task, task))
                raise CheckpointError(
                    f"{call}: expected weights of the task '{expected}' (got {got!r:.80} in {path}); "
                    f"hamburger.tasks.task_of_weights finds the task of a file"
                )
            yield info, file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{call}: {path} ({path.stat().st_size} bytes) is not a readable .safetensors file: {error}"
        ) from error


def read_task_name(path: str | os.PathLike[str]) -> object:
    """Return the "task" entry of a weights file: None for segmentation, and for files that cannot be loaded."""
    from safetensors import SafetensorError

    try:
        return Info.from_json(read_metadata(path)[KEY], str(path)).model.get("task")
    except (SafetensorError, OSError, KeyError, CheckpointError):
        return None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of any .safetensors file."""
    from safetensors import safe_open

    if not Path(path).is_file():  # opening a pipe would block
        raise FileNotFoundError(f"there is no file {path}")
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def to_plain_json(value: Any) -> Any:
    """Convert tuples and sets to lists, recursively; values JSON cannot hold stay and are refused when saved."""
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain_json(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_plain_json(item) for item in value]
    return value


def download_weights(call: str, repository: str, **options: Any) -> Path:
    """Return the weights file of a Hugging Face repository; `options` go to huggingface_hub."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, HUB_FILES[1], **options))
    except Exception as error:  # a download can fail with any exception
        reason = (str(error).strip().splitlines() or [""])[0]
        raise CheckpointError(
            f"{call}: '{repository}' is not a local path and could not be downloaded from the hub "
            f"({type(error).__name__}: {reason})"
        ) from error
