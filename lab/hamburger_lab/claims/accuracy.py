"""Claims about accuracy: Tables 4 and 5 at a small scale, hams against each other and against attention."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import Claim, ablate_command
from hamburger_lab.claims.rules import CellPair, RowSource, is_at_least, judge_miou

COMMAND = ablate_command("contexts")
SELF_ATTENTION = ("sa-flash", "sa")  # the same module; with heads so that fused kernels apply


def against(*rivals: str | tuple[str, ...]) -> list[RowSource]:
    pairs = tuple(CellPair("nmf", rival) for rival in rivals)
    return [
        *(RowSource("segmentation_", pairs, "context"), RowSource("ablation_contexts_", pairs)),
        RowSource("voc352_", pairs),  # the paper's training length
    ]


# Table 1, which the claim quotes: the three hams, under the names of its grid
TABLE_1 = RowSource("ablation_gradient_", tuple(CellPair("nmf-one-step", f"{ham}-one-step") for ham in ("vq", "cd")))

CLAIMS = (
    Claim(
        id="accuracy-nmf",
        family="accuracy",
        statement="NMF is the best of the three hams, or level with it.",
        reference="Table 1, section 3.4",
        paper="NMF 77.8, CD 77.5, VQ 77.4 (means of 5 runs)",
        test="mIoU, NMF minus VQ and CD: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=[*against("vq", "cd"), TABLE_1], rule=is_at_least),
    ),
    Claim(
        id="accuracy-self-attention",
        family="accuracy",
        statement="A Hamburger is as accurate as self-attention, or more.",
        reference="the title; Tables 4 to 6",
        paper="no self-attention row in segmentation; FID 16.05 against SAGAN's 18.28",
        test="mIoU, NMF minus self-attention in the same place: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=against(SELF_ATTENTION), rule=is_at_least),
    ),
    Claim(
        id="accuracy-danet",
        family="accuracy",
        statement="A Hamburger is as accurate as DANet's dual attention, or more.",
        reference="Tables 4 and 5",
        paper="HamNet 85.9, DANet 82.6 (VOC test); 55.2, 52.6 (PASCAL-Context)",
        test="mIoU, NMF minus DANet's module in the same place: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=against("da"), rule=is_at_least),
    ),
    Claim(
        id="accuracy-linear-attention",
        family="accuracy",
        statement="A Hamburger is as accurate as the attentions of linear cost (A2, EMA, efficient), or more.",
        reference="Table 5 (EMANet); Table 3 lists A2",
        paper="HamNet 55.2, EMANet 53.1 (PASCAL-Context)",
        test="mIoU, NMF minus each of A2, EMA and efficient attention: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=against("a2", "ema", "efficient"), rule=is_at_least),
    ),
)
