"""Claims about image generation: Table 6 at a small scale, and the times of section 3.5."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_CONFIRMED,
    Claim,
    Finding,
    Trial,
    Verdict,
    combine_trials,
)
from hamburger_lab.claims.rules import MIN_RATIO, CellPair, RowSource, judge_ratios
from hamburger_lab.paper import STEPS_PER_SECOND, TABLE6, added_seconds
from hamburger_lab.rows import Results, Row

GRID = (
    "ham gan grid cifar10 --data DIR --out runs/cifar --jobs 8 --set graph=true --set steps=2000 "
    "--set sample_every=2000 --set checkpoint_every=2000 --set model.width=32 "
    "--set 'model.options.discriminator_multipliers=[4,4,4,4]' --set model.options.discriminator_downs=2 "
    "--extractor efficientnet-lite0 --weights FILE --samples 10000 --compared 5000 "
    "--json results/gan_cifar10_h200.jsonl"
)
BENCH = (
    "ham bench gan --device cuda --dtype bfloat16 --repeats 10 --graph --json results/ganspeed_graph_h200.jsonl; "
    "without --graph: results/ganspeed_h200.jsonl"
)
OURS, RIVAL, BASE = "hamgan", "ylg", "none"
STEP_RATIO = STEPS_PER_SECOND[OURS] / STEPS_PER_SECOND[RIVAL]
MODULE_RATIO = added_seconds(RIVAL) / added_seconds(OURS)

Range = tuple[float, float]


def judge_times(results: Results, *, least: float, added: bool) -> Verdict:
    """Judge whether YLG's time is `least` times ours or more: of the step, or of what the context adds to it."""
    trials = []
    for rows in results.with_prefix("ganspeed_").values():
        by_context = {row["context"]: row for row in rows}
        if not {OURS, RIVAL, BASE} <= by_context.keys():
            continue
        ours, theirs, base = (by_context[name] for name in (OURS, RIVAL, BASE))
        low, high = _ratio_range(*(_quartiles(row, base if added else None) for row in (theirs, ours)))
        outcome = CONFIRMED if low >= least else NOT_CONFIRMED if high < least else INCONCLUSIVE
        field = "added_ms" if added else "step_ms"
        shown = ("times", "{:.2f}", False, "sample", least)
        finding = Finding(
            f"{RIVAL} / {OURS}",
            theirs[field] / ours[field],
            None,
            min(ours["repeats"], theirs["repeats"]),
            outcome,
            *shown,
        )
        launched = "replayed as CUDA graphs" if ours.get("graph") else "launched kernel by kernel"
        note = f"from quartiles: {low:.2f} to {high:.2f}"
        trials.append(Trial(f"{ours['hardware']}, {launched}", (finding,), note=note))
    return combine_trials(trials)


def _quartiles(row: Row, base: Row | None) -> Range:
    """Return the quartiles of a step's time, less those of the step without a context."""
    low, high = (row["step_ms"] + side * row["step_ms_iqr"] / 2 for side in (-1, 1))
    if base is None:
        return low, high
    least, most = _quartiles(base, None)
    return low - most, high - least


def _ratio_range(theirs: Range, ours: Range) -> Range:
    """Return the range of theirs / ours; without an upper end where ours may be zero."""
    return theirs[0] / ours[1], theirs[1] / ours[0] if ours[0] > 0 else float("inf")


def distance_claim(rival: str, statement: str, printed: tuple[str, str], remark: str = "") -> Claim:
    theirs, ours = printed
    return Claim(
        id=f"generation-{rival}",
        family="generation",
        statement=statement,
        reference="Table 6",
        paper=f"FID: {ours} {TABLE6[ours]:g}, {theirs} {TABLE6[theirs]:g} (ImageNet 128 x 128){remark}",
        test=f"Fréchet distance, {rival} over {OURS} with the same budget: above {MIN_RATIO:g}",
        command=GRID,
        judge=partial(
            judge_ratios,
            sources=[RowSource("gan_", (CellPair(rival, OURS),), "context")],
            field="frechet",
            device="cuda",
        ),
    )


CLAIMS = (
    distance_claim(
        "sagan",
        "Images of a GAN with a Hamburger are closer to real ones than those with self-attention.",
        ("SAGAN", "HamGAN-baby"),
        "; best of six runs",
    ),
    distance_claim(
        "ylg",
        "Images of a GAN with a Hamburger are closer to real ones than those with the local attention of YLG.",
        ("YLG", "HamGAN-strong"),
    ),
    distance_claim(
        "none",
        "Images of a GAN with a Hamburger are closer to real ones than those without a context.",
        ("SNGAN-projection", "HamGAN-baby"),
        "; SNGAN differs in its training too",
    ),
    Claim(
        id="generation-step",
        family="generation",
        statement="A training step of HamGAN takes 15 % less time than one of YLG.",
        reference="section 3.5",
        paper=f"{STEPS_PER_SECOND[OURS]} and {STEPS_PER_SECOND[RIVAL]} steps per second on TPUs: {STEP_RATIO:.2f}",
        test=f"time of YLG's step over HamGAN's, at least {STEP_RATIO:.2f}",
        command=BENCH,
        judge=partial(judge_times, least=STEP_RATIO, added=False),
    ),
    Claim(
        id="generation-module",
        family="generation",
        statement="What a Hamburger adds to a training step is 3.6 times shorter than what YLG's attention adds.",
        reference="section 3.5",
        paper=f"{STEPS_PER_SECOND[BASE]} steps per second without a context, on TPUs: {MODULE_RATIO:.2f}",
        test=f"time that YLG's attention adds over that of the Hamburger, at least {MODULE_RATIO:.2f}",
        command=BENCH,
        judge=partial(judge_times, least=MODULE_RATIO, added=True),
    ),
)
