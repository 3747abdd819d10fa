"""Feature extractors: networks that map images to features, each with a label that identifies it in results.

A label is `name@size resizer sha256:weights`, e.g. `fid_inception@299 bilinear-tf1 sha256:6726825d0af5f729`. Only the
Inception network of 2015-12-05 with its original weights gives a distance called FID; see `distance_name`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.errors import CheckpointError, InputError, OptionError, ShapeError, check_count, did_you_mean
from hamburger.tensors import full_precision

OFFICIAL_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
OFFICIAL_NAME = "fid_inception"
OFFICIAL_SIZE = 299
OFFICIAL_RESIZER = "bilinear-tf1"  # TensorFlow 1's, part of the original graph
RESIZER = "bilinear-antialias"  # averages where it shrinks
SHOWN_DIGITS = 16  # of a SHA-256, in a label
COUNTER = "num_batches_tracked"  # counts training steps; no feature depends on it


class NetworkExtractor:
    """A network with fixed weights; maps images, b 3 h w, uint8, to features, b d, float32.

    The network gets float32 images in [0, 1], `b 3 size size`, normalises them itself and returns b d. One that resizes
    by itself (`own_resizer`, its name in the label) gets the bytes. It always runs in evaluation mode, without
    gradients, autocast, TF32 or cuDNN benchmarking, so that the same images give the same features. `digest` identifies
    the weights: the SHA-256 of their file, or of the state dict (`state_digest`).

    `version` identifies the code, which no hash covers: change it whenever the network computes other features from the
    same weights. Features are cached under label and version; without a version nothing is cached.
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        *,
        size: int,
        digest: str,
        version: str | None = None,
        own_resizer: str | None = None,
    ) -> None:
        check_count("NetworkExtractor", "size", size, least=1)
        if not re.fullmatch(r"[\w.+-]+", name):
            raise OptionError(f"NetworkExtractor: name may contain letters, digits and _ . + - only, got {name!r}")
        self.network = network.eval().requires_grad_(False)
        self.name, self.size, self.digest, self.version, self.own_resizer = name, size, digest, version, own_resizer

    @property
    def label(self) -> str:
        return f"{self.name}@{self.size} {self.own_resizer or RESIZER} sha256:{self.digest[:SHOWN_DIGITS]}"

    def to(self, device: torch.device | str) -> NetworkExtractor:
        self.network.to(device)
        return self

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        check_bytes(images)
        x = images if self.own_resizer else resize(images, self.size)
        self.network.eval()
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with full_precision(x.device.type), exact:
            features = self.network(x)
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != x.shape[0]:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ShapeError(f"{self.label}: the network must return 'b d' for {x.shape[0]} images, got {got}")
        return features.float()


def check_bytes(images: Tensor) -> None:
    """Raise unless the images are b 3 h w, uint8."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"extractor: images must be uint8, so that real and generated ones are rounded alike (got {got}); pass "
            f"to_bytes(images) of a generator's output in [-1, 1]"
        )
    if images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ShapeError(f"extractor: images must be 'b 3 h w', got {tuple(images.shape)}")


def resize(images: Tensor, size: int) -> Tensor:
    """Images as float32 in [0, 1], resized and clamped, not rounded again.   b 3 h w, uint8    ->    b 3 size size

    The aspect ratio is not kept: crop before. Images that already have the size are only divided by 255.
    """
    x = images.float() / 255
    if x.shape[2:] == (size, size):
        return x
    return F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=True).clamp(0, 1)


def distance_name(label: str, distance: str = "frechet") -> str:
    """The name of a result: "FID" for the official extractor's Frechet distance, else `frechet[name@size]`."""
    official = f"{OFFICIAL_NAME}@{OFFICIAL_SIZE} {OFFICIAL_RESIZER} sha256:{OFFICIAL_SHA256[:SHOWN_DIGITS]}"
    if label == official:
        return {"frechet": "FID", "kernel": "KID"}.get(distance, distance)
    return f"{distance}[{label.partition(' ')[0]}]"


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


# -- FID's network, from the package torch-fidelity --------------------------------------------------------------------


class _FidInception(nn.Module):
    """torch-fidelity's network, which takes bytes of any size and resizes them as TensorFlow 1 did."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.network(images)
        return features.flatten(1)


def fid_inception(weights: str | os.PathLike[str] | None = None) -> NetworkExtractor:
    """The extractor of FID, 2048 features: torch-fidelity's network with the weights that FID is defined by.

    Without a file, they are downloaded to torch's hub folder. A file with another SHA-256 is refused.
    """
    try:
        import torch_fidelity as package  # type: ignore
        from torch_fidelity.feature_extractor_inceptionv3 import (  # type: ignore
            URL_INCEPTION_V3,
            FeatureExtractorInceptionV3,
        )
    except ImportError:
        raise OptionError("gan fid: --extractor inception needs a package: pip install torch-fidelity") from None
    path = Path(torch.hub.get_dir(), "checkpoints", Path(URL_INCEPTION_V3).name) if weights is None else Path(weights)
    if weights is None and not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(URL_INCEPTION_V3, str(path), hash_prefix=OFFICIAL_SHA256)
    # before the package reads it, by an unpickler that can execute what a file says
    if (digest := file_digest(path)) != OFFICIAL_SHA256:
        raise CheckpointError(
            f"fid_inception: {path} has SHA-256 {digest[:SHOWN_DIGITS]}..., the weights that FID is defined by have "
            f"{OFFICIAL_SHA256[:SHOWN_DIGITS]}...; download {Path(URL_INCEPTION_V3).name} again"
        )
    network = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(path))
    return NetworkExtractor(
        _FidInception(network),
        OFFICIAL_NAME,
        size=OFFICIAL_SIZE,
        digest=digest,
        version=f"torch-fidelity {package.__version__}",
        own_resizer=OFFICIAL_RESIZER,
    )


# -- extractors by name ------------------------------------------------------------------------------------------------


def create_extractor(name: str, weights: Path | None = None, *, size: int | None = None) -> NetworkExtractor:
    """The extractor "inception", which is FID's, or "package.module:function".

    The second is your own: called without arguments, it returns a module that maps b 3 size size in [0, 1] to b d. Its
    features are cached if it has an attribute `features_version`, a string; change that whenever the code changes.
    """
    imported = ":" in name
    if not imported and name != "inception":
        raise OptionError(f"gan fid: no extractor '{name}'{did_you_mean(name, ['inception'])}, or package.module:name")
    option, value = ("weights", weights) if imported else ("size", size)
    if value is not None:
        raise OptionError(f"gan fid: --extractor {name} brings its own {option}; leave --{option} out")
    if imported:
        return _import_extractor(name, size=224 if size is None else size)
    if weights is not None and not Path(weights).is_file():
        raise OptionError(f"gan fid: there is no file --weights {weights}; leave it out to download the weights")
    return fid_inception(weights)


def _import_extractor(name: str, *, size: int) -> NetworkExtractor:
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
    return module_extractor(network, attribute, size=size, version=version)


def module_extractor(network: nn.Module, name: str, *, size: int, version: str | None = None) -> NetworkExtractor:
    """An extractor from any module that maps float32 `b 3 size size` in [0, 1] to b d, under a name of your choice.

    The module is copied, so that further training does not change what the label stands for. The label holds a hash of
    its parameters and buffers, not of its code: give a `version` to have its features cached (see `NetworkExtractor`).
    """
    if name.startswith(OFFICIAL_NAME):
        raise OptionError(f"module_extractor: names that begin with '{OFFICIAL_NAME}' are reserved, got '{name}'")
    network = copy.deepcopy(network)
    return NetworkExtractor(network, name, size=size, digest=state_digest(network), version=version)
