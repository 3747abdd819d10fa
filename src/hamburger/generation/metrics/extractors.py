"""Feature extractors: networks that map images to features, each with a label that identifies it in results.

A label is `name@size resizer sha256:weights`, e.g. `efficientnet_lite0@224 bilinear-antialias sha256:0f1e2d3c4b5a6978`.
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
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
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
from hamburger.generation.metrics.efficientnet_lite import EfficientNetLite0
from hamburger.generation.metrics.frechet import Gaussian, Moments
from hamburger.generation.metrics.inception import FidInception
from hamburger.generation.metrics.resize import RESIZERS, check_uint8_images, resize
from hamburger.tensors import full_precision

OFFICIAL_FILE = "pt_inception-2015-12-05-6726825d.pth"  # its name holds the first digits of its SHA-256
OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFICIAL_NAME = "fid_inception"
OFFICIAL_SIZE = 299
OFFICIAL_RESIZER = "bilinear-tf1"  # part of the original TensorFlow graph, so published numbers use it
DEFAULT_RESIZER = "bilinear-antialias"
OWN_RESIZER = "its-own"  # in a label: the network resizes by itself
UNNAMED_RESIZERS = (DEFAULT_RESIZER, OWN_RESIZER)  # not repeated in the name of a distance
BUILT_IN_VERSION = "1"  # of the networks and resizers here; change it when they compute other features
SHOWN_DIGITS = 16  # of a SHA-256, in a label
COUNTER = "num_batches_tracked"  # counts training steps; no feature depends on it
LABEL = re.compile(r"(?P<name>[\w.+-]+)@(?P<size>\d+) (?P<resizer>\S+) sha256:(?P<digest>[0-9a-f]{16})")


@runtime_checkable
class Extractor(Protocol):
    """What the distances need of an extractor: a row of features for each image, and a label."""

    @property
    def label(self) -> str: ...

    def __call__(self, images: Tensor) -> Tensor:
        """b 3 h w, uint8    ->    b d, float32"""
        ...


class NetworkExtractor:
    """A resizer and a network with fixed weights.

    The network gets float32 images in [0, 1], `b 3 size size`, normalises them itself and returns b d. It always runs
    in evaluation mode, without gradients, autocast, TF32 or cuDNN benchmarking, so that the same images give the same
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
        resizer: str = DEFAULT_RESIZER,
        digest: str,
        version: str | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        check_count(type(self).__name__, "size", size, least=1)
        check_choice(type(self).__name__, "resizer", resizer, RESIZERS)
        if not re.fullmatch(r"[\w.+-]+", name):
            raise OptionError(f"{type(self).__name__}: name may contain letters, digits and _ . + - only, got {name!r}")
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise OptionError(f"{type(self).__name__}: digest must be a SHA-256 in 64 hex digits, got {digest!r}")
        self.layout = layout  # of images and weights; a user's network may rely on contiguous tensors
        self.network = network.eval().requires_grad_(False).to(memory_format=layout)
        self.name, self.size, self.resizer, self.digest, self.version = name, size, resizer, digest, version

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size} {self.resizer} sha256:{self.digest[:SHOWN_DIGITS]}"

    def to(self, device: torch.device | str) -> NetworkExtractor:
        self.network.to(device)
        return self

    def prepare(self, images: Tensor) -> Tensor:
        """The network's input for these images.   b 3 h w, uint8    ->    b 3 size size in [0, 1]"""
        return resize(images, self.size, self.resizer)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        x = self.prepare(images).contiguous(memory_format=self.layout)
        self.network.eval()
        with full_precision(x.device.type), _deterministic_cudnn(x.device.type):
            features = self.network(x)
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != x.shape[0]:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ShapeError(f"{self.label}: the network must return 'b d' for {x.shape[0]} images, got {got}")
        return features.float()


def fid_inception(
    path: str | os.PathLike[str], *, resizer: str = DEFAULT_RESIZER, other_weights: bool = False
) -> NetworkExtractor:
    """The extractor of FID, 2048 features, from the file of its weights, `pt_inception-2015-12-05-6726825d.pth`.

    A file with another SHA-256 is refused unless `other_weights` is set; its results are then labelled as another
    network's and never called FID. That includes the same weights in another file format.
    """
    digest = file_digest(path)
    if digest != OFFICIAL_SHA256 and not other_weights:
        raise CheckpointError(
            f"fid_inception: {path} has SHA-256 {digest[:SHOWN_DIGITS]}..., the weights that FID is defined by have "
            f"{OFFICIAL_SHA256[:SHOWN_DIGITS]}...; download {OFFICIAL_FILE} again, or pass other_weights=True for a "
            f"result that is not called FID"
        )
    name = OFFICIAL_NAME if digest == OFFICIAL_SHA256 else f"{OFFICIAL_NAME}-other-weights"
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
    path: str | os.PathLike[str], *, size: int = 224, resizer: str = DEFAULT_RESIZER
) -> NetworkExtractor:
    """EfficientNet-Lite0 up to its pooling, 1280 features, from a weights file of efficientnet_lite_pytorch."""
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


def extract_features(batches: Iterable[Tensor], extractor: Extractor) -> Tensor:
    """Features of all images, on the CPU.   each b 3 h w, uint8    ->    n d, float32"""
    parts = [extractor(images).float().cpu() for images in batches]
    if not parts:
        raise InputError("extract_features: there are no images; give at least one batch")
    return torch.cat(parts)


def collect_statistics(
    batches: Iterable[Tensor], extractor: Extractor, *, device: torch.device | str = "cpu"
) -> Gaussian:
    """Mean and covariance of the features of all images, without keeping the features. Not reduced over ranks."""
    moments: Moments | None = None
    for images in batches:
        features = extractor(images)
        moments = moments or Moments(features.shape[1], device=device)
        moments.update(features)
    if moments is None:
        raise InputError("collect_statistics: there are no images; give at least one batch")
    return moments.gaussian()


def load_network(network: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """The network with weights from a .pth (tensors only) or .safetensors file, which must match it entry by entry."""
    state = read_checkpoint(path)
    expected = network.state_dict()
    missing = [name for name in expected if name not in state and not name.endswith(COUNTER)]
    unexpected = [name for name in state if name not in expected and not name.endswith(COUNTER)]
    wrong = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": wrong, "not finite": broken}
    if any(problems.values()):
        listed = "; ".join(f"{len(n)} {what}: {', '.join(n[:6])}" for what, n in problems.items() if n)
        raise CheckpointError(f"{path} does not fit {type(network).__name__}: {listed}; nothing was loaded")
    network.load_state_dict({name: value for name, value in state.items() if name in expected}, strict=False)
    return network


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_digest(network: nn.Module) -> str:
    """SHA-256 of names, types, shapes and values of all parameters and buffers, including non-persistent ones."""
    digest = hashlib.sha256()
    entries = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, value in sorted(entries, key=lambda entry: entry[0]):
        if name.endswith(COUNTER):
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()


def tensor_bytes(value: Tensor) -> bytes:
    """The values as bytes, from any device and of any data type."""
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _deterministic_cudnn(device_type: str) -> AbstractContextManager[object]:
    """cuDNN without TF32 and without benchmarking of algorithms."""
    if device_type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


# -- torch-fidelity ----------------------------------------------------------------------------------------------------

FIDELITY_NETWORK, FIDELITY_FEATURES = "inception-v3-compat", "2048"


class _FidelityNetwork(nn.Module):
    """torch-fidelity's network, which takes bytes of any size and resizes them itself, as TensorFlow 1 did."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.network(images)
        return features.flatten(1)


class FidelityExtractor(NetworkExtractor):
    """An extractor labelled as torch-fidelity's, not as FID: the package loads its weights, and we check no hash."""

    def prepare(self, images: Tensor) -> Tensor:
        """The images unchanged: the network resizes them."""
        check_uint8_images("torch_fidelity", images)
        return images

    @property
    def label(self) -> str:
        return super().label.replace(f" {self.resizer} ", f" {OWN_RESIZER} ")


def torch_fidelity() -> FidelityExtractor:
    """The Inception extractor of the package torch-fidelity, which downloads its weights."""
    try:
        import torch_fidelity as package  # type: ignore
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3  # type: ignore
    except ImportError:
        raise OptionError(
            "gan fid: --extractor torch-fidelity needs the package: pip install torch-fidelity; or use "
            "--extractor inception --weights FILE"
        ) from None
    inception: Any = FeatureExtractorInceptionV3(FIDELITY_NETWORK, [FIDELITY_FEATURES])
    network = _FidelityNetwork(inception)
    return FidelityExtractor(
        network,
        "torch-fidelity_inception",
        size=OFFICIAL_SIZE,
        digest=state_digest(network),
        version=getattr(package, "__version__", None),
    )


# -- extractors by name ------------------------------------------------------------------------------------------------

EXTRACTORS = ("inception", "efficientnet-lite0", "torch-fidelity")


def create_extractor(
    name: str,
    weights: Path | None = None,
    *,
    resizer: str | None = None,
    size: int | None = None,
    other_weights: bool = False,
) -> NetworkExtractor:
    """The extractor "inception" (FID's), "efficientnet-lite0", "torch-fidelity" (the package's) or "module:function".

    The last is your own: called without arguments, it returns a module that maps b 3 size size in [0, 1] to b d. Its
    features are cached if it has an attribute `features_version`, a string; change that whenever the code changes.
    An option that means nothing to the chosen extractor is an error; None is the extractor's default.
    """
    imported = ":" in name
    if not imported and name not in EXTRACTORS:
        raise OptionError(f"gan fid: no extractor '{name}'{did_you_mean(name, EXTRACTORS)}, or package.module:name")
    fixed = ("weights", "size", "resizer") if name == "torch-fidelity" else ("weights",) if imported else ()
    given = {"weights": weights, "size": size, "resizer": resizer}
    for option in fixed:
        if given[option] is not None:
            raise OptionError(f"gan fid: --extractor {name} brings its own {option}; leave --{option} out")
    if other_weights and name != "inception":
        raise OptionError(
            f"gan fid: --other-weights is for --extractor inception only; results of {name} are never called FID"
        )
    if name == "torch-fidelity":
        return torch_fidelity()
    resizer = DEFAULT_RESIZER if resizer is None else resizer
    if imported:
        return _import_extractor(name, size=size, resizer=resizer)
    if name == "inception" and size not in (None, OFFICIAL_SIZE):
        raise OptionError(f"gan fid: inception takes images of {OFFICIAL_SIZE} pixels, got --size {size}; leave it out")
    if weights is None:
        raise OptionError(
            f"gan fid: --extractor {name} needs --weights FILE ({OFFICIAL_FILE} for inception); without it, use "
            f"--extractor efficientnet-lite0, whose results are not called FID"
        )
    if not Path(weights).is_file():
        raise OptionError(f"gan fid: there is no file --weights {weights}; give the weights of --extractor {name}")
    if name == "inception":
        return fid_inception(weights, resizer=resizer, other_weights=other_weights)
    return efficientnet_lite0(weights, size=224 if size is None else size, resizer=resizer)


def _import_extractor(name: str, *, size: int | None, resizer: str) -> NetworkExtractor:
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
    return module_extractor(network, attribute, size=224 if size is None else size, resizer=resizer, version=version)
