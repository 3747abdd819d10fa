"""The evaluation protocol: at which scales, mirrored or not, and through which window a network sees an image."""

from __future__ import annotations

from dataclasses import dataclass

from hamburger.errors import OptionError, check_count, check_flag, check_positive

PAPER_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)  # the paper's test scales


@dataclass(frozen=True)
class EvaluationProtocol:
    """Class probabilities are averaged over `scales`, the mirrored image (`flip`) and the positions of a `window`.

    `str(protocol)` is reported with every score.
    """

    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    window: int | None = None  # side of a square; neighbours overlap by a third

    def __post_init__(self) -> None:
        if not self.scales:
            raise OptionError("evaluation: scales is empty; give at least one, such as 1.0")
        for scale in self.scales:
            check_positive("evaluation", "a scale", scale, most=8)
        check_flag("evaluation", "flip", self.flip)
        if self.window is not None:
            check_count("evaluation", "window", self.window, least=16)

    @property
    def stride(self) -> int | None:
        return None if self.window is None else -(-2 * self.window // 3)

    def __str__(self) -> str:
        single = len(self.scales) == 1
        listed = ",".join(f"{scale:g}" for scale in self.scales)
        parts = ["single scale" if self.scales == (1.0,) else f"scale {listed}" if single else f"scales {listed}"]
        if self.flip:
            parts.append("flip")
        if self.window is not None:
            parts.append(f"window {self.window}/{self.stride}")
        return ", ".join(parts)


SINGLE_SCALE = EvaluationProtocol()
