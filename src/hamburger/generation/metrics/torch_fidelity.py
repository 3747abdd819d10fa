"""The extractor of the package torch-fidelity, where it is installed: its network, its weights, its own resizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hamburger.errors import OptionError
from hamburger.generation.metrics.features import NetworkExtractor, state_digest
from hamburger.generation.metrics.resize import check_bytes

NAME, FIDELITY_FEATURES = "inception-v3-compat", "2048"
SIZE = 299


class _Bytes(nn.Module):
    """It takes bytes of any size and resizes them itself, as TensorFlow 1 did."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self.network(images)
        return features.flatten(1)


class FidelityExtractor(NetworkExtractor):
    """Labelled as torch-fidelity's: no hash here vouches for the weights that it loads."""

    def prepare(self, images: Tensor) -> Tensor:
        """As they are: all else is as for every extractor."""
        check_bytes("torch_fidelity", images)
        return images

    @property
    def label(self) -> str:
        return super().label.replace(f" {self.resizer} ", " its-own ")


def torch_fidelity() -> FidelityExtractor:
    try:
        import torch_fidelity as package  # type: ignore
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3  # type: ignore
    except ImportError:
        raise OptionError(
            "gan fid: --extractor torch-fidelity needs the package: pip install torch-fidelity; or name the weights "
            "with --extractor inception --weights FILE"
        ) from None
    made: Any = FeatureExtractorInceptionV3(NAME, [FIDELITY_FEATURES])
    network = _Bytes(made)
    return FidelityExtractor(
        network,
        "torch-fidelity_inception",
        size=SIZE,
        digest=state_digest(network),
        version=getattr(package, "__version__", None),
    )
