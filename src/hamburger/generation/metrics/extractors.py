"""Feature extractors: networks that map images to features, each with a label that identifies it in results.

A label is `name@size resizer sha256:weights`, e.g. `fid_inception@299 bilinear-tf1 sha256:6726825d0af5f729`.
Only the Inception network of 2015-12-05 with its original weights gives a distance called FID, and with another resizer
than TensorFlow 1's the name says so; see `distance_name`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.read import read_checkpoint
from hamburger.errors import (
    CheckpointError,
    InputError,
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    did_you_mean,
)
from hamburger.tensors import full_precision

OFFICIAL_FILE = "pt_inception-2015-12-05-6726825d.pth"  # its name holds the first digits of its SHA-256
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFICIAL_NAME = "fid_inception"
OFFICIAL_SIZE = 299
OFFICIAL_RESIZER = "bilinear-tf1"  # part of the original TensorFlow graph, so published numbers use it
DEFAULT_RESIZER = "bilinear-antialias"
OWN_RESIZER = "its-own"  # in a label: the network resizes by itself
UNNAMED_RESIZERS = (DEFAULT_RESIZER, OWN_RESIZER)  # not repeated in the name of a distance
INCEPTION_VERSION = "1"  # of network and resizers; change it when they compute other features
SHOWN_DIGITS = 16  # of a SHA-256, in a label
COUNTER = "num_batches_tracked"  # counts training steps; no feature depends on it
LABEL = re.compile(r"(?P<name>[\w.+-]+)@(?P<size>\d+) (?P<resizer>\S+) sha256:(?P<digest>[0-9a-f]{16})")


class NetworkExtractor:
    """A resizer and a network with fixed weights; maps images, b 3 h w, uint8, to features, b d, float32.

    The network gets float32 images in [0, 1], `b 3 size size`, normalises them itself and returns b d. With the
    resizer "its-own" it gets the bytes. It always runs in evaluation mode, without gradients, autocast, TF32 or cuDNN
    benchmarking, so that the same images give the same features. `digest` identifies the weights: the SHA-256 of their
    file, or of the state dict (`state_digest`).

    `version` identifies the code, which no hash covers: change it whenever the network computes other features from the
    same weights. Features are cached under label and version; without a version nothing is cached.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        *,
        size: int,
        resizer: str = DEFAULT_RESIZER,
        digest: str,
        version: str | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        check_count("NetworkExtractor", "size", size, least=1)
        check_choice("NetworkExtractor", "resizer", resizer, (*RESIZERS, OWN_RESIZER))
        if not re.fullmatch(r"[\w.+-]+", name):
            raise OptionError(f"NetworkExtractor: name may contain letters, digits and _ . + - only, got {name!r}")
        self.layout = layout  # of images and weights; a user's network may rely on contiguous tensors
        self.network = network.eval().requires_grad_(False).to(memory_format=layout)
        self.name, self.size, self.resizer, self.digest, self.version = name, size, resizer, digest, version

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size} {self.resizer} sha256:{self.digest[:SHOWN_DIGITS]}"

    def to(self, device: torch.device | str) -> NetworkExtractor:
        self.network.to(device)
        return self

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        x = resize(images, self.size, self.resizer)
        self.network.eval()
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with full_precision(x.device.type), exact:
            features = self.network(x.contiguous(memory_format=self.layout))
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != x.shape[0]:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ShapeError(f"{self.label}: the network must return 'b d' for {x.shape[0]} images, got {got}")
        return features.float()


def fid_inception(path: str | os.PathLike[str], *, resizer: str = DEFAULT_RESIZER) -> NetworkExtractor:
    """The extractor of FID, 2048 features, from the file of its weights, `pt_inception-2015-12-05-6726825d.pth`.

    A file with another SHA-256 is refused, even if it has the same weights in another format.
    """
    digest = file_digest(path)
    if digest != OFFICIAL_SHA256:
        raise CheckpointError(
            f"fid_inception: {path} has SHA-256 {digest[:SHOWN_DIGITS]}..., the weights that FID is defined by have "
            f"{OFFICIAL_SHA256[:SHOWN_DIGITS]}...; download {OFFICIAL_FILE} again, or use your own network with "
            f"--extractor package.module:function"
        )
    from hamburger.generation.metrics.networks import FidInception

    network = load_network(FidInception(), read_checkpoint(path), path)
    options: dict[str, Any] = {"version": INCEPTION_VERSION, "layout": torch.channels_last}
    return NetworkExtractor(network, OFFICIAL_NAME, size=OFFICIAL_SIZE, resizer=resizer, digest=digest, **options)


def module_extractor(
    network: nn.Module, name: str, *, size: int, resizer: str = DEFAULT_RESIZER, version: str | None = None
) -> NetworkExtractor:
    """An extractor from any module that maps float32 `b 3 size size` in [0, 1] to b d, under a name of your choice.

    The module is copied, so that further training does not change what the label stands for. The label holds a hash of
    its parameters and buffers, not of its code: give a `version` to have its features cached (see `NetworkExtractor`).
    """
    if name.startswith(OFFICIAL_NAME):
        raise OptionError(f"module_extractor: names that begin with '{OFFICIAL_NAME}' are reserved, got '{name}'")
    network = copy.deepcopy(network)
    return NetworkExtractor(network, name, size=size, resizer=resizer, digest=state_digest(network), version=version)


def distance_name(label: str, distance: str = "frechet") -> str:
    """The name of a result: "FID" for the official extractor's Frechet distance, else `frechet[name@size]`.

    A resizer other than the usual one is part of the name: `FID[bilinear]`, `frechet[name@size bilinear]`.
    """
    parts = LABEL.fullmatch(label)
    if parts is None:
        return f"{distance}[{label}]"
    official = (OFFICIAL_NAME, str(OFFICIAL_SIZE), OFFICIAL_SHA256[:SHOWN_DIGITS])
    if (parts["name"], parts["size"], parts["digest"]) == official:
        name = {"frechet": "FID", "kernel": "KID"}.get(distance, distance)
        return name if parts["resizer"] == OFFICIAL_RESIZER else f"{name}[{parts['resizer']}]"
    resizer = "" if parts["resizer"] in UNNAMED_RESIZERS else f" {parts['resizer']}"
    return f"{distance}[{parts['name']}@{parts['size']}{resizer}]"


def load_network(network: nn.Module, state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> nn.Module:
    """The network with the weights in `state`, which must match it entry by entry; `path` is for errors."""
    try:
        missing, unexpected = network.load_state_dict(state, strict=False)
    except RuntimeError as error:  # entries of another shape
        raise CheckpointError(f"{path} does not fit: {error}") from None
    missing = [name for name in missing if not name.endswith(COUNTER)]
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    problems = {"missing": missing, "unexpected": unexpected, "not finite": broken}
    if any(problems.values()):
        listed = "; ".join(f"{len(n)} {what}: {', '.join(n[:6])}" for what, n in problems.items() if n)
        raise CheckpointError(f"{path} does not fit {type(network).__name__}: {listed}")
    return network


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_digest(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values of all parameters and buffers, including non-persistent ones."""
    entries = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    digest = hashlib.sha256()
    for name, tensor in sorted(dict(entries).items()):
        if not name.endswith(COUNTER):
            value = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# -- resizers ----------------------------------------------------------------------------------------------------------


RESIZERS = (
    "bilinear-antialias",  # averages where it shrinks; where it enlarges it is "bilinear"
    "bilinear",  # the package pytorch-fid; aliases where it shrinks
    "bilinear-tf1",  # TensorFlow 1, hence TF-GAN and the first published numbers
)


def resize(images: Tensor, size: int, resizer: str = DEFAULT_RESIZER) -> Tensor:
    """Images as float32 in [0, 1], resized and clamped, not rounded again.   b 3 h w, uint8    ->    b 3 size size

    The aspect ratio is not kept: crop before. Images that already have the size are only divided by 255. With the
    resizer "its-own" the images are returned as they are.
    """
    check_choice("resize", "resizer", resizer, (*RESIZERS, OWN_RESIZER))
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"resize: images must be uint8, 0 to 255, so that real and generated ones are rounded alike (got {got}); "
            f"convert a generator's output in [-1, 1] with to_bytes(images)"
        )
    if images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ShapeError(f"resize: images must be 'b 3 h w', got {tuple(images.shape)}")
    if resizer == OWN_RESIZER:
        return images
    x = images.float() / 255
    if x.shape[2:] == (size, size):
        return x
    if resizer == "bilinear-tf1":
        return _resize_as_tensorflow1(x, size).clamp(0, 1)
    antialias = resizer == "bilinear-antialias"
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=antialias).clamp(0, 1)


def _resize_as_tensorflow1(x: Tensor, size: int) -> Tensor:
    """TensorFlow 1's bilinear resize: output pixel i is at i * (input / output), which ignores pixel centres."""
    for axis in (2, 3):
        position = torch.arange(size, device=x.device, dtype=torch.float32) * (x.shape[axis] / size)
        low = position.floor().long()
        high = (low + 1).clamp_max(x.shape[axis] - 1)
        weight = (position - low).unflatten(0, (-1, 1) if axis == 2 else (1, -1))
        x = torch.lerp(x.index_select(axis, low), x.index_select(axis, high), weight)
    return x


# -- torch-fidelity ----------------------------------------------------------------------------------------------------


class _FidelityNetwork(nn.Module):
    """torch-fidelity's network, which takes bytes of any size and resizes them itself, as TensorFlow 1 did."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.network(images)
        return features.flatten(1)


def torch_fidelity() -> NetworkExtractor:
    """The Inception extractor of the package torch-fidelity, which downloads its weights.

    It is labelled as torch-fidelity's, not as FID: the package loads its weights, and we check no hash.
    """
    try:
        import torch_fidelity as package  # type: ignore
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3  # type: ignore
    except ImportError:
        raise OptionError(
            "gan fid: --extractor torch-fidelity needs the package: pip install torch-fidelity; or use "
            "--extractor inception --weights FILE"
        ) from None
    network = _FidelityNetwork(FeatureExtractorInceptionV3("inception-v3-compat", ["2048"]))
    return NetworkExtractor(
        network,
        "torch-fidelity_inception",
        size=OFFICIAL_SIZE,
        resizer=OWN_RESIZER,
        digest=state_digest(network),
        version=getattr(package, "__version__", None),
    )


# -- extractors by name ------------------------------------------------------------------------------------------------

EXTRACTORS = ("inception", "torch-fidelity")


def create_extractor(
    name: str, weights: Path | None = None, *, resizer: str | None = None, size: int | None = None
) -> NetworkExtractor:
    """The extractor "inception" (FID's), "torch-fidelity" (the package's) or "module:function".

    The last is your own: called without arguments, it returns a module that maps b 3 size size in [0, 1] to b d. Its
    features are cached if it has an attribute `features_version`, a string; change that whenever the code changes.
    An option that means nothing to the chosen extractor is an error; None is the extractor's default.
    """
    imported = ":" in name
    if not imported and name not in EXTRACTORS:
        raise OptionError(f"gan fid: no extractor '{name}'{did_you_mean(name, EXTRACTORS)}, or package.module:name")
    fixed = {"inception": ("size",), "torch-fidelity": ("weights", "size", "resizer")}.get(name, ("weights",))
    given = {"weights": weights, "size": size, "resizer": resizer}
    for option in fixed:
        if given[option] is not None:
            raise OptionError(f"gan fid: --extractor {name} brings its own {option}; leave --{option} out")
    if name == "torch-fidelity":
        return torch_fidelity()
    resizer = DEFAULT_RESIZER if resizer is None else resizer
    if imported:
        return _import_extractor(name, size=224 if size is None else size, resizer=resizer)
    if weights is None:
        raise OptionError(
            f"gan fid: --extractor inception needs --weights {OFFICIAL_FILE}; without it, use --extractor "
            f"torch-fidelity, whose results are not called FID"
        )
    if not Path(weights).is_file():
        raise OptionError(f"gan fid: there is no file --weights {weights}; give the weights of --extractor {name}")
    return fid_inception(weights, resizer=resizer)


def _import_extractor(name: str, *, size: int, resizer: str) -> NetworkExtractor:
    """The extractor around the module that `package.module:function` returns."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # an installed command does not search the current folder, `python -m` does
        sys.path.append(here)
    try:
        network = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise OptionError(f"gan fid: --extractor {name}: {error}; give package.module:function") from None
    if not isinstance(network, nn.Module):
        raise OptionError(f"gan fid: --extractor {name} must return a torch module, got {type(network).__name__}")
    version = getattr(network, "features_version", None)
    if version is not None and not isinstance(version, str):
        raise OptionError(f"gan fid: --extractor {name}: features_version must be a string, got {version!r}")
    return module_extractor(network, attribute, size=size, resizer=resizer, version=version)
