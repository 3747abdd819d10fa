"""Numbers that the paper prints: Tables 3 to 6 and section 3.5, and why some of ours differ.

Table 3: input 1 x 512 x 128 x 128 (n = 16,384), float32, one NVIDIA TITAN Xp. Parameters in units of 2^20,
multiply-adds in units of 10^9, memory in MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBI = 2**20


@dataclass(frozen=True)
class Printed:
    params: float  # 2^20
    macs: float  # 10^9
    train_mb: float
    infer_mb: float
    train_ms: float
    infer_ms: float


TABLE3 = {
    "sa": Printed(1.00, 292.0, 5253, 2148, 242.0, 82.2),
    "da": Printed(4.82, 79.5, 2395, 2203, 72.6, 64.4),
    "a2": Printed(1.01, 25.7, 326, 165, 22.9, 8.0),
    "apc": Printed(2.03, 17.6, 458, 264, 26.5, 11.6),
    "dm": Printed(3.00, 35.1, 557, 268, 65.7, 23.3),
    "acf": Printed(0.75, 79.5, 1380, 627, 71.0, 22.6),
    "cd": Printed(0.50, 16.2, 162, 102, 20.0, 13.0),
    "nmf": Printed(0.50, 17.6, 202, 98, 15.6, 7.7),
}
SIZE, CHANNELS = 16384, 512

# Reasons for a difference above one percent in parameters or multiply-adds.
DIFFERENCES = {
    ("da", "macs"): (
        "the printed 79.5 G cannot be right: the 4.82 M printed parameters are convolution weights used at every "
        "position, which alone is 82.7 G, and the n x n products come on top. 79.5 G is the figure of the ACF row, "
        "probably copied"
    ),
}

# Table 4: mIoU in percent on the test set of PASCAL VOC, without COCO. ResNet-101, several scales.
TABLE4 = {
    **{"PSPNet": 82.6, "DFN": 82.7, "EncNet": 82.9, "DANet": 82.6, "DMNet": 84.4, "APCNet": 84.2, "CFNet": 84.2},
    **{"SpyGR": 84.2, "SANet": 83.2, "OCR": 84.3, "HamNet": 85.9},
}
# Table 5: mIoU in percent on the validation set of PASCAL-Context
TABLE5 = {
    **{"PSPNet": 47.8, "SGR": 50.8, "EncNet": 51.7, "DANet": 52.6, "EMANet": 53.1, "DMNet": 54.4, "APCNet": 54.7},
    **{"CFNet": 54.0, "SpyGR": 52.8, "SANet": 53.0, "OCR": 54.8, "HamNet": 55.2},
}
# Table 6: FID on ImageNet 128 x 128; HamGAN-baby is the best of six runs
TABLE6 = {"SNGAN-projection": 27.62, "SAGAN": 18.28, "HamGAN-baby": 16.05, "YLG": 15.94, "HamGAN-strong": 14.77}
STEPS_PER_SECOND = {"none": 1.65, "ylg": 1.31, "hamgan": 1.54}  # section 3.5, on TPUs
# the contexts of these methods, under our names
METHODS = {
    **{"PSPNet": "psp", "DFN": "dfn", "EncNet": "enc", "DANet": "da", "DMNet": "dm", "APCNet": "apc", "CFNet": "acf"},
    **{"SpyGR": "spygr", "SANet": "sanet", "OCR": "ocr", "SGR": "sgr", "EMANet": "ema", "HamNet": "nmf"},
    **{"SNGAN-projection": "none", "SAGAN": "sagan", "YLG": "ylg", "HamGAN-baby": "hamgan", "HamGAN-strong": "hamgan"},
}


def printed_by_context(*tables: dict[str, float]) -> dict[str, str]:
    """Return context -> its methods with the numbers of the tables, such as `da` -> `DANet 82.6; 52.6`."""
    texts: dict[str, list[str]] = {}
    for method in dict.fromkeys(name for table in tables for name in table):
        numbers = "; ".join(f"{table[method]}" if method in table else "-" for table in tables)
        texts.setdefault(METHODS[method], []).append(f"{method} {numbers}")
    return {context: "; ".join(parts) for context, parts in texts.items()}


def added_seconds(context: str) -> float:
    """Return the seconds that a context adds to a step, by the paper's steps per second."""
    return 1 / STEPS_PER_SECOND[context] - 1 / STEPS_PER_SECOND["none"]


def deviation(module: str, field: str, ours: float) -> float | None:
    """Return the relative difference to the printed number; None if the table has no such row."""
    if module not in TABLE3:
        return None
    printed = float(getattr(TABLE3[module], field))
    return ours / printed - 1


def notes(module: str, params: int, macs: int) -> list[str]:
    """Return a sentence for every number that differs from the printed one by more than one percent."""
    sentences = []
    for field, value in (("params", params / MEBI), ("macs", macs / 1e9)):
        off = deviation(module, field, value)
        if off is not None and abs(off) > 0.01:
            why = DIFFERENCES.get((module, field), "not explained")
            sentences.append(f"{field} {value:.3g} against a printed {getattr(TABLE3[module], field):g}: {why}")
    return sentences
