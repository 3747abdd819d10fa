"""Networks that turn images into features, each with a label that says exactly which one made a number.

A label is `name@size resizer sha256:weights`, e.g. `efficientnet_lite0@224 bilinear-antialias sha256:0f1e2d3c4b5a6978`.
Only the network of 2015-12-05 with its own weights at 299 pixels may be called FID, and without a word more only behind
its own resizer; see `distance_name`.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from hamburger.checkpoints.read import read_checkpoint
from hamburger.errors import CheckpointError, InputError, OptionError, ShapeError, check_choice, check_count
from hamburger.generation.metrics.efficientnet_lite import EfficientNetLite0
from hamburger.generation.metrics.frechet import Gaussian, Moments
from hamburger.generation.metrics.inception import FidInception
from hamburger.generation.metrics.resize import RESIZERS, resize
from hamburger.precision import full_precision

# of pt_inception-2015-12-05-6726825d.pth, whose name holds the beginning
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFICIAL = "fid_inception"
OFFICIAL_SIZE = 299
OFFICIAL_RESIZER = "bilinear-tf1"  # that of the network's own graph, which the published numbers are by
UNSAID_RESIZERS = ("bilinear-antialias", "its-own")  # an extractor's own, which its name stands for
BUILT_IN_VERSION = "1"  # of our own networks and resizers; raise it when they compute other features
SHOWN_DIGITS = 16  # of a hash, in a label
COUNTER = "num_batches_tracked"  # counts training steps; no feature depends on it
LABEL = re.compile(r"(?P<name>[\w.+-]+)@(?P<size>\d+) (?P<resizer>\S+) sha256:(?P<digest>[0-9a-f]{16})")


@runtime_checkable
class Extractor(Protocol):
    """What the distances need: images in, one row of features each out, and a label for the result."""

    @property
    def label(self) -> str: ...

    def __call__(self, images: Tensor) -> Tensor:
        """b 3 h w, uint8    ->    b d, float32"""
        ...


class NetworkExtractor:
    """A network with fixed weights behind a fixed resizer.

    The network gets float32 images in [0, 1], `b 3 size size`, and does its own normalisation; it returns b d. It is
    always in evaluation mode, without gradients, autocast, TF32 or benchmarking, so that the same images give the same
    features. `digest` identifies the weights: the SHA-256 of their file, or of the state dict (`state_digest`).

    `version` identifies the code, which no hash covers: change it whenever the network computes other features from the
    same weights. Features are cached under label and version; without a version nothing is cached.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        *,
        size: int,
        resizer: str = "bilinear-antialias",
        digest: str,
        version: str | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        check_count(type(self).__name__, "size", size, least=1)
        check_choice(type(self).__name__, "resizer", resizer, RESIZERS)
        if not re.fullmatch(r"[\w.+-]+", name):
            raise OptionError(f"{type(self).__name__}: a name has letters, digits and _ . + - only, got {name!r}")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise OptionError(f"{type(self).__name__}: digest must be a SHA-256 in 64 hex digits, got {digest!r}")
        self.layout = layout  # of the images; the weights have the same. A stranger's network may have views of them
        self.network = network.eval().requires_grad_(False).to(memory_format=layout)
        self.name, self.size, self.resizer, self.digest, self.version = name, size, resizer, digest, version

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size} {self.resizer} sha256:{self.digest[:SHOWN_DIGITS]}"

    def to(self, device: torch.device | str) -> NetworkExtractor:
        self.network.to(device)
        return self

    def prepare(self, images: Tensor) -> Tensor:
        """What the network gets of images.   b 3 h w, uint8    ->    b 3 size size in [0, 1]"""
        return resize(images, self.size, self.resizer)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        x = self.prepare(images).contiguous(memory_format=self.layout)
        self.network.eval()
        with full_precision(x.device.type), _exact(x.device.type):
            features = self.network(x)
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != x.shape[0]:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ShapeError(f"{self.label}: the network must return 'b d' for {x.shape[0]} images, got {got}")
        return features.float()


def fid_inception(
    path: str | os.PathLike[str], *, resizer: str = "bilinear-antialias", other_weights: bool = False
) -> NetworkExtractor:
    """The extractor of FID, 2048 features, from a file of its weights: `pt_inception-2015-12-05-6726825d.pth`.

    A file with another SHA-256 is refused, unless `other_weights` is set: its results are then labelled as another
    network's, never FID. That goes for the same weights in another container too, since no hash vouches for them.
    """
    digest = file_digest(path)
    if digest != OFFICIAL_SHA256 and not other_weights:
        raise CheckpointError(
            f"fid_inception: {path} has SHA-256 {digest[:SHOWN_DIGITS]}..., the weights that FID is defined by have "
            f"{OFFICIAL_SHA256[:SHOWN_DIGITS]}...; get pt_inception-2015-12-05-6726825d.pth again, or pass "
            f"other_weights=True for a result that is not called FID"
        )
    name = OFFICIAL if digest == OFFICIAL_SHA256 else f"{OFFICIAL}-other-weights"
    network = load_network(FidInception(), path)
    return NetworkExtractor(
        network,
        name,
        size=OFFICIAL_SIZE,
        resizer=resizer,
        digest=digest,
        version=BUILT_IN_VERSION,
        layout=torch.channels_last,
    )


def efficientnet_lite0(
    path: str | os.PathLike[str], *, size: int = 224, resizer: str = "bilinear-antialias"
) -> NetworkExtractor:
    """EfficientNet-Lite0 up to its pooling, 1280 features, from a file with the names of efficientnet_lite_pytorch."""
    network = load_network(EfficientNetLite0(), path)
    digest = file_digest(path)
    return NetworkExtractor(
        network,
        "efficientnet_lite0",
        size=size,
        resizer=resizer,
        digest=digest,
        version=BUILT_IN_VERSION,
        layout=torch.channels_last,
    )


def module_extractor(
    network: nn.Module, name: str, *, size: int, resizer: str = "bilinear-antialias", version: str | None = None
) -> NetworkExtractor:
    """An extractor from any module that maps float32 `b 3 size size` in [0, 1] to b d, under a name of your choice.

    The module is copied, so that further training does not change what the label stands for. The label holds a hash of
    its parameters and buffers, not of its code: give a `version` to have its features cached (see `NetworkExtractor`).
    """
    if name.startswith(OFFICIAL):
        raise OptionError(f"module_extractor: names that begin with '{OFFICIAL}' are reserved, got '{name}'")
    network = copy.deepcopy(network)
    return NetworkExtractor(network, name, size=size, resizer=resizer, digest=state_digest(network), version=version)


def distance_name(label: str, distance: str = "frechet") -> str:
    """What a result may be called: "FID" for the official extractor's Frechet distance, else `frechet[name@size]`.

    A resizer that is not the one expected is part of the name: `FID[bilinear]`, `frechet[name@size bilinear]`.
    """
    parts = LABEL.fullmatch(label)
    if parts is None:
        return f"{distance}[{label}]"
    official = (OFFICIAL, str(OFFICIAL_SIZE), OFFICIAL_SHA256[:SHOWN_DIGITS])
    if (parts["name"], parts["size"], parts["digest"]) == official:
        name = {"frechet": "FID", "kernel": "KID"}.get(distance, distance)
        return name if parts["resizer"] == OFFICIAL_RESIZER else f"{name}[{parts['resizer']}]"
    resizer = "" if parts["resizer"] in UNSAID_RESIZERS else f" {parts['resizer']}"
    return f"{distance}[{parts['name']}@{parts['size']}{resizer}]"


def features_of(batches: Iterable[Tensor], extractor: Extractor) -> Tensor:
    """Features of all images, on the CPU.   each b 3 h w, uint8    ->    n d, float32"""
    parts = [extractor(images).float().cpu() for images in batches]
    if not parts:
        raise InputError("features_of: there is no batch of images")
    return torch.cat(parts)


def gaussian_of(batches: Iterable[Tensor], extractor: Extractor, *, device: torch.device | str = "cpu") -> Gaussian:
    """Mean and covariance of the features of all images, which are not kept; for this process's images alone."""
    moments: Moments | None = None
    for images in batches:
        features = extractor(images)
        moments = moments or Moments(features.shape[1], device=device)
        moments.update(features)
    if moments is None:
        raise InputError("gaussian_of: there is no batch of images")
    return moments.gaussian()


def load_network(network: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Fill a network from a .pth (tensors only) or .safetensors file that must fit it in every entry."""
    state = read_checkpoint(path)
    wanted = network.state_dict()
    missing = [name for name in wanted if name not in state and not name.endswith(COUNTER)]
    unexpected = [name for name in state if name not in wanted and not name.endswith(COUNTER)]
    wrong = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in state and state[name].shape != value.shape
    ]
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": wrong, "not finite": broken}
    if any(problems.values()):
        told = "; ".join(f"{len(n)} {what}: {', '.join(n[:6])}" for what, n in problems.items() if n)
        raise CheckpointError(f"{path} does not fit {type(network).__name__}: {told}; nothing was loaded")
    network.load_state_dict({name: value for name, value in state.items() if name in wanted}, strict=False)
    return network


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_digest(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values of all parameters and buffers, those that are not saved included."""
    digest = hashlib.sha256()
    entries = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, value in sorted(entries, key=lambda entry: entry[0]):
        if name.endswith(COUNTER):
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def tensor_bytes(value: Tensor) -> bytes:
    """The values as they lie in memory, on any device and of any type."""
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _exact(device_type: str) -> AbstractContextManager[object]:
    """cuDNN without TF32 and without picking algorithms by their speed."""
    if device_type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
