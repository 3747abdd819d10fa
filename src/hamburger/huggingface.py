"""Our segmentation networks as models of Hugging Face transformers.

>>> import hamburger.huggingface                                    # registers the classes of this module
>>> model = AutoModelForSemanticSegmentation.from_pretrained("shared")     # what `Segmenter.save_pretrained` wrote
>>> processor = AutoImageProcessor.from_pretrained("shared")
>>> pipeline("image-segmentation", model=model, image_processor=processor)(photo)

A folder may come from anybody. Its weights are loaded by `load_weights`, never by transformers: the network is built
from the checked description in `model.safetensors`, and nothing in the folder is executed (transformers itself would
run its code if you passed trust_remote_code=True, which our networks never need). Of `config.json` and
`preprocessor_config.json` only the fields below are read, with the bounds of a weights file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import VERSION, Info, check_model_options, download_weights, write_tensors
from hamburger.errors import CheckpointError, InputError, OptionError, install_extra, shorten
from hamburger.files import encode_json
from hamburger.segmentation.losses import resize_logits
from hamburger.segmentation.model import (
    MODEL_TYPE,
    WEIGHTS,
    PixelGrid,
    Segmenter,
    check_batch,
    create_model,
    describe_network,
    load_weights,
)
from hamburger.segmentation.predict import resize_labels
from hamburger.training.image_files import normalise, resized

try:
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModelForSemanticSegmentation,
        BatchFeature,
        PretrainedConfig,
        PreTrainedModel,
    )
    from transformers.image_processing_utils import BaseImageProcessor
    from transformers.modeling_outputs import SemanticSegmenterOutput
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES
except ImportError as missing:
    raise ImportError(f"hamburger.huggingface needs transformers; {install_extra('huggingface')}") from missing

__all__ = ["HamburgerConfig", "HamburgerForSemanticSegmentation", "HamburgerImageProcessor"]

# -- configuration -----------------------------------------------------------------------------------------------------

# of a config.json, which anybody may have written; the rest of the file is not read
FIELDS = ("model", "classes", "palette", "mean", "std", "side", "extra")
FOREIGN_FIELDS = ("architectures", "id2label", "label2id", "transformers_version")


class HamburgerConfig(PretrainedConfig):
    """How to build a network, and what its classes are: the content of a weights file's `Info`.

    >>> config = HamburgerConfig({"backbone": "resnet50"}, classes=("sky", "land"))
    >>> model = AutoModelForSemanticSegmentation.from_config(config)

    - `model`: keywords of `hb.create_model` except `num_classes`, which is `num_labels`
    - `classes`: a name per class; `id2label` and `num_labels` of transformers work too
    - `palette`, `mean`, `std`, `side`, `extra`: as in `hamburger.segmentation.Info`
    """

    model_type = MODEL_TYPE

    def __init__(
        self,
        model: Mapping[str, Any] | None = None,
        classes: Sequence[str] = (),
        palette: Sequence[Sequence[int]] = (),
        mean: Sequence[float] = Info.mean,
        std: Sequence[float] = Info.std,
        side: int | None = None,
        extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        _check_model(model or {})  # also bounds the number of classes
        if classes and options.get("id2label") is None:
            options["id2label"] = dict(enumerate(classes))
            options["label2id"] = {name: number for number, name in enumerate(classes)}
        elif model and "num_classes" in model and not {"id2label", "num_labels"} & options.keys():
            options["num_labels"] = model["num_classes"]
        super().__init__(**options)
        self.model = {key: value for key, value in dict(model or {}).items() if key != "num_classes"}
        self.palette, self.mean, self.std = [list(colour) for colour in palette], list(mean), list(std)
        self.side, self.extra = side, dict(extra or {})
        self.as_info()

    def as_info(self) -> Info:
        """Return the checked description of the network; raise CheckpointError on what a weights file may not hold."""
        count = self.num_labels or 0
        names = {int(number): name for number, name in (self.id2label or {}).items()}
        fields: dict[str, Any] = {
            "version": VERSION,
            "model": {**self.model, "num_classes": count},
            "classes": [names.get(number, str(number)) for number in range(count)],
            "palette": self.palette if len(self.palette) == count else [],
            "mean": self.mean,
            "std": self.std,
            "side": self.side,
            "extra": self.extra,
        }
        _check_model(fields["model"])
        return Info.from_json(encode_json(fields), "HamburgerConfig")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        known = {key: value for key, value in config_dict.items() if key in (*FIELDS, *FOREIGN_FIELDS)}
        if config_dict.get("model_type", MODEL_TYPE) != MODEL_TYPE:
            raise CheckpointError(
                f"HamburgerConfig: expected the model_type '{MODEL_TYPE}' (got {config_dict['model_type']!r:.80}); "
                "use transformers' AutoConfig"
            )
        try:
            return super().from_dict(known, **options)
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"HamburgerConfig: config.json cannot be read: {error!s:.300}") from error


def _check_model(model: Mapping[str, Any]) -> None:
    try:
        check_model_options(model)
    except ValueError as error:
        raise CheckpointError(f"HamburgerConfig: {error}") from None


# -- model -------------------------------------------------------------------------------------------------------------

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
# arguments of transformers that change nothing here: there is no remote code, no pickle and no sharded file
IGNORED_OPTIONS = frozenset(
    """
    trust_remote_code code_revision adapter_kwargs attn_implementation low_cpu_mem_usage use_safetensors weights_only
    max_shard_size safe_serialization save_function save_peft_format save_original_format variant _from_auto
    _from_pipeline _commit_hash
    """.split()  # noqa: SIM905 - a list of strings would fill a page
)


class HamburgerForSemanticSegmentation(PreTrainedModel):
    """A `Segmenter` as transformers calls it.   pixel_values b 3 h w   ->   logits b k h w, for any h and w

    With `labels` (b h w, 255 where unlabelled) the output has the `loss` that training minimises, and `Trainer` works.
    `network` is a Segmenter that was built already, whose modules this model then shares.
    """

    config_class = HamburgerConfig
    main_input_name = "pixel_values"

    def __init__(self, config: HamburgerConfig, network: Segmenter | None = None) -> None:
        super().__init__(config)
        if network is None:
            network = create_model(**config.as_info().model)
            config.model = {key: value for key, value in (network.config or {}).items() if key != "num_classes"}
        self.backbone, self.head = network.backbone, network.head  # the names of a Segmenter's tensors
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Keep the weights: `create_model` initialised them."""

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None
    ) -> SemanticSegmenterOutput | tuple[Tensor, ...]:
        check_batch("HamburgerForSemanticSegmentation", pixel_values, labels)
        grid = PixelGrid.of(self.backbone, *pixel_values.shape[-2:])
        outputs = self.head(self.backbone(grid.pad(pixel_values)))
        logits = grid.crop(resize_logits(outputs.logits, (grid.height, grid.width)))
        loss = None if labels is None else sum(self.head.loss(outputs, grid.pad_labels(labels)).values())
        if return_dict is None:
            return_dict = self.config.return_dict
        if not return_dict:
            return (logits,) if loss is None else (loss, logits)
        return SemanticSegmenterOutput(loss=loss, logits=logits)

    def as_segmenter(self) -> Segmenter:
        """Return the network as `hb.load` would, with its `info`; it shares the weights."""
        info = self.config.as_info()
        net = Segmenter(self.backbone, self.head, num_classes=self.config.num_labels, config=info.model)
        net.info = info
        return net.train(self.training)

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *arguments: Any,
        config: HamburgerConfig | None = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Any:
        """Return the network in a folder or Hugging Face repository in evaluation mode; execute nothing in it.

        With `num_labels` or `id2label` of another number of classes and ignore_mismatched_sizes=True, tensors of other
        sizes start anew. `dtype` and the options of huggingface_hub are those of transformers.
        """
        call = "from_pretrained"
        if arguments:
            raise OptionError(f"{call}: takes no further positional arguments (got {len(arguments)}); pass keywords")
        hub = {key: options.pop(key) for key in HUB_OPTIONS if options.get(key) is not None}
        dtype = _read_dtype(call, options.pop("dtype", None), options.pop("torch_dtype", None))
        if config is None:
            config, options = HamburgerConfig.from_pretrained(name, return_unused_kwargs=True, **hub, **options)
        if not isinstance(config, HamburgerConfig):
            raise InputError(f"{call}: config must be a HamburgerConfig (got {shorten(config)}); omit it")
        _refuse_options(call, options)
        folder = Path(name, hub.get("subfolder", ""))
        if folder.is_dir() and not (folder / WEIGHTS).is_file():
            raise CheckpointError(
                f"{call}: the folder {folder} has no {WEIGHTS}; pass one written by save_pretrained (other formats can "
                "execute code)"
            )
        path = folder / WEIGHTS if folder.is_dir() else download_weights(call, str(name), **hub)
        net, info = load_weights(path)
        differing = [key for key, value in config.model.items() if info.model.get(key) != value]
        if differing:
            raise CheckpointError(
                f"{call}: config and {WEIGHTS} of {name} describe different networks (model.{differing[0]}); pass "
                "files that were saved together"
            )
        config.model = {key: value for key, value in info.model.items() if key != "num_classes"}
        mismatched: list[str] = []
        if config.num_labels != net.num_classes:
            if not ignore_mismatched_sizes:
                raise CheckpointError(
                    f"{call}: {name} has {net.num_classes} classes (got num_labels={config.num_labels}); pass "
                    "ignore_mismatched_sizes=True to train the classifier anew"
                )
            net, mismatched = _replace_classes(net, config)
        model = cls(config, net).eval()
        if dtype is not None:
            model.to(dtype)
        if output_loading_info:
            keys = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": mismatched, "error_msgs": []}
            return model, keys
        return model

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> None:
        """Write what `Segmenter.save_pretrained` writes, so that `hb.load`, `ham` and transformers read the folder."""
        if push_to_hub:
            raise OptionError("save_pretrained: push_to_hub is not accepted; call model.push_to_hub(...)")
        _refuse_options("save_pretrained", {key: value for key, value in options.items() if key != "token"})
        if not is_main_process:
            return
        net = self.as_segmenter()
        net.save_pretrained(save_directory)
        if state_dict is not None:  # gathered by a Trainer that shards the model
            write_tensors(Path(save_directory) / WEIGHTS, state_dict, describe_network(net), durable=True)

    def push_to_hub(self, repo_id: str, *, revision: str | None = None, **options: Any) -> str:
        """Upload what `save_pretrained` writes; return the URL of the commit. Options as in `Segmenter.push_to_hub`."""
        passed = {key: value for key, value in options.items() if key not in IGNORED_OPTIONS}
        return self.as_segmenter().push_to_hub(repo_id, branch=revision, **passed)


def _read_dtype(call: str, *values: Any) -> torch.dtype | None:
    value = next((each for each in values if each not in (None, "auto")), None)
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(f"{call}: dtype must be a floating-point type such as torch.bfloat16 (got {shorten(value)})")
    return dtype


def _refuse_options(call: str, options: Mapping[str, Any]) -> None:
    unknown = [key for key, value in options.items() if key not in IGNORED_OPTIONS and value is not None]
    if unknown:
        raise OptionError(f"{call}: the option '{unknown[0]}' is not supported by hamburger's networks; omit it")


def _replace_classes(net: Segmenter, config: HamburgerConfig) -> tuple[Segmenter, list[str]]:
    """Return the network with the classes of `config` and the names of its new tensors; keep tensors that fit."""
    fresh = create_model(**config.as_info().model)
    tensors, stored = fresh.state_dict(), net.state_dict()
    mismatched = [name for name in tensors if stored[name].shape != tensors[name].shape]
    fresh.load_state_dict({name: tensors[name] if name in mismatched else stored[name] for name in tensors})
    return fresh, mismatched


# -- image processor ---------------------------------------------------------------------------------------------------

PROCESSOR_FIELDS = ("image_mean", "image_std", "size", "do_resize")


class HamburgerImageProcessor(BaseImageProcessor):
    """Images to `pixel_values` as `hb.Predictor` makes them, and logits back to labels of the image's size.

    - `size`: {"longest_edge": n} keeps the proportions, {"height": h, "width": w} does not; by default images keep
      their size. Images of one batch must have the same size after that.
    - `image_mean`, `image_std`: normalisation of RGB images in [0, 1]
    """

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        image_mean: Sequence[float] = Info.mean,
        image_std: Sequence[float] = Info.std,
        size: Mapping[str, int] | None = None,
        do_resize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if unknown := options.keys() - {"image_processor_type"}:
            raise OptionError(
                f"HamburgerImageProcessor: no option '{min(unknown)}'; known: {', '.join(PROCESSOR_FIELDS)}"
            )
        self.size, self.do_resize = _read_size(size), bool(do_resize)
        side = max(self.size.values(), default=None)
        described = Info(mean=tuple(image_mean), std=tuple(image_std), side=side)  # type: ignore[arg-type]
        info = Info.from_json(described.as_json(), "HamburgerImageProcessor")  # checks the numbers of a stranger's file
        self.image_mean, self.image_std = list(info.mean), list(info.std)

    @classmethod
    def from_dict(cls, image_processor_dict: dict[str, Any], **options: Any) -> Any:
        known = {key: value for key, value in image_processor_dict.items() if key in PROCESSOR_FIELDS}
        try:
            return super().from_dict(known, **options)
        except (TypeError, AttributeError) as error:
            raise CheckpointError(f"HamburgerImageProcessor: preprocessor_config.json: {error!s:.300}") from error

    def __call__(self, images: Any, segmentation_maps: Any = None, **options: Any) -> BatchFeature:
        return self.preprocess(images, segmentation_maps, **options)

    def preprocess(
        self, images: Any, segmentation_maps: Any = None, return_tensors: str | None = None, **options: Any
    ) -> BatchFeature:
        """Return `pixel_values` (b 3 h w), and `labels` (b h w) if there are `segmentation_maps`."""
        call = "HamburgerImageProcessor"
        size = _read_size(options.pop("size", self.size)) if options.pop("do_resize", self.do_resize) else {}
        _refuse_options(call, options)
        pixels = [_resize(_read_image(call, image), size) for image in _list_images(images, 3)]
        shapes = {tuple(image.shape[-2:]) for image in pixels}
        if len(shapes) > 1:
            raise InputError(
                f"{call}: images of one batch must have one size after resizing (got {sorted(shapes)}); pass "
                "size={'height': ..., 'width': ...}, or one image at a time"
            )
        data = {"pixel_values": [normalise(image, self.image_mean, self.image_std) for image in pixels]}
        if segmentation_maps is not None:
            maps = [_read_map(call, labels) for labels in _list_images(segmentation_maps, 2)]
            if len(maps) != len(pixels):
                raise InputError(f"{call}: {len(pixels)} images need as many segmentation_maps (got {len(maps)})")
            data["labels"] = [_resize_map(labels, *shape) for labels in maps for shape in shapes]
        if return_tensors == "pt":
            return BatchFeature({name: torch.stack(values) for name, values in data.items()})
        return BatchFeature({name: [value.numpy() for value in data[name]] for name in data}, return_tensors)

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: Iterable[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Return the class of each pixel, h w for each image; `target_sizes`: the images' heights and widths."""
        logits = outputs.logits
        sizes = [tuple(logits.shape[-2:])] * len(logits) if target_sizes is None else list(target_sizes)
        if len(sizes) != len(logits):
            raise InputError(
                f"post_process_semantic_segmentation: {len(logits)} images need as many target_sizes (got {len(sizes)})"
            )
        return [resize_labels(each, int(h), int(w)) for each, (h, w) in zip(logits, sizes, strict=True)]


def _read_size(size: Any) -> dict[str, int]:
    named = size is None or hasattr(size, "keys")
    fields = {key: size[key] for key in size if size[key] is not None} if size and named else {}
    if not named or fields.keys() not in ({"longest_edge"}, {"height", "width"}, set()):
        raise OptionError(
            "HamburgerImageProcessor: size must be {'longest_edge': n} or {'height': h, 'width': w} "
            f"(got {shorten(size)})"
        )
    if not all(type(value) is int and 0 < value <= 8192 for value in fields.values()):
        raise OptionError(f"HamburgerImageProcessor: size must be whole numbers from 1 to 8192 (got {shorten(size)})")
    return fields


def _list_images(images: Any, dims: int) -> list[Any]:
    if isinstance(images, (list, tuple)):
        return list(images)
    return list(images) if getattr(images, "ndim", 0) == dims + 1 else [images]


def _read_image(call: str, image: Any) -> Tensor:
    """Return a PIL image or an array (3 h w or h w 3, uint8) as 3 h w uint8."""
    tensor = _to_tensor(image.convert("RGB") if hasattr(image, "convert") else image)
    if tensor is not None and tensor.dim() == 3 and 3 not in tensor.shape[:1] and tensor.shape[2] == 3:
        tensor = tensor.movedim(2, 0)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.dim() != 3 or tensor.shape[0] != 3 or not tensor.numel():
        got = type(image).__name__ if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise InputError(f"{call}: an image must be a PIL image or a uint8 array (3, h, w) or (h, w, 3) (got {got})")
    return tensor


def _read_map(call: str, labels: Any) -> Tensor:
    """Return a palette or grey PIL image, or an array h w of whole numbers, as h w int64."""
    tensor = _to_tensor(labels)
    if tensor is None or tensor.dim() != 2 or tensor.is_floating_point() or not tensor.numel():
        got = type(labels).__name__ if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise InputError(f"{call}: a segmentation map must be an array (h, w) of whole numbers (got {got})")
    return tensor.long()


def _to_tensor(image: Any) -> Tensor | None:
    import numpy as np

    if isinstance(image, Tensor):
        return image.cpu()
    if hasattr(image, "convert") or isinstance(image, np.ndarray):  # a PIL image
        return torch.from_numpy(np.array(image))
    return None


def _resize(image: Tensor, size: Mapping[str, int]) -> Tensor:
    height, width = image.shape[-2:]
    if "longest_edge" in size:
        target = resized(height, width, size["longest_edge"])
    else:
        target = size.get("height", height), size.get("width", width)
    if target == (height, width):
        return image
    return F.interpolate(image[None], size=target, mode="bilinear", antialias=True)[0]


def _resize_map(labels: Tensor, height: int, width: int) -> Tensor:
    if labels.shape == (height, width):
        return labels
    return F.interpolate(labels[None, None].double(), size=(height, width), mode="nearest-exact")[0, 0].long()


AutoConfig.register(MODEL_TYPE, HamburgerConfig, exist_ok=True)
AutoModelForSemanticSegmentation.register(HamburgerConfig, HamburgerForSemanticSegmentation, exist_ok=True)
if "image_processor_classes" in signature(AutoImageProcessor.register).parameters:  # transformers 5
    backends: dict[str, Any] = {
        "image_processor_classes": dict.fromkeys(("pil", "torchvision"), HamburgerImageProcessor)
    }
else:
    backends = {"slow_image_processor_class": HamburgerImageProcessor}
AutoImageProcessor.register(HamburgerConfig, **backends, exist_ok=True)
# pipelines look only here before they print that a model is not supported
MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES[MODEL_TYPE] = HamburgerForSemanticSegmentation.__name__
