"""Table 9 and Fig. 3: temperature, inner width and rank."""

from __future__ import annotations

import math
import statistics
from functools import partial

from hamburger.report.study import LEVEL, PairedDifference, compare_paired, summarise, t_quantile
from hamburger_lab.claims.base import Claim, Finding, Trial, Verdict, ablate_command, combine_trials
from hamburger_lab.claims.rules import (
    MIN_RATIO,
    CellPair,
    Interval,
    RowSource,
    RunComparison,
    beats,
    beats_paper_gain,
    drop_repeated_runs,
    exceeds,
    is_at_least,
    judge_comparisons,
    judge_miou,
    miou_by_seed,
)
from hamburger_lab.rows import Results

TEMPERATURE = ablate_command("temperature")
LATENT = ablate_command("latent")


def temperature_source(ham: str, ours: str, theirs: str) -> RowSource:
    return RowSource("ablation_temperature_", (CellPair(f"{ham}-t{ours}", f"{ham}-t{theirs}"),))


def judge_ranks(results: Results, pairs: tuple[tuple[int, int, int], ...], *, least: int = 1) -> Verdict:
    """Judge rank d / a minus rank d / b for every (part, a, b), where d is the head's width divided by `part`.

    Files whose rank would be below `least` are skipped: a rank of 1 does not test the paper's rank of 8.
    """
    cases: list[RunComparison] = []
    for name, rows in results.with_prefix("ablation_latent_").items():
        full = max(int(row["cell"][1:].partition("-")[0]) for row in rows)
        sizes = [(full // part, ours, theirs) for part, ours, theirs in pairs]
        if any(d // ours < least for d, ours, _ in sizes):
            continue
        cell_pairs = tuple(CellPair(f"d{d}-r{d // ours}", f"d{d}-r{d // theirs}") for d, ours, theirs in sizes)
        cases += RowSource(name, cell_pairs).cases(Results({name: rows}), miou_by_seed)
    return judge_comparisons(cases, is_at_least)


def judge_spread(results: Results, ours: str, theirs: str) -> Verdict:
    """Judge whether the spread of scores over seeds, ours divided by theirs, is above MIN_RATIO.

    The interval is that of Pitman and Morgan for paired seeds.
    """
    label = f"{ours} / {theirs}, spread over seeds"
    cases = []
    for rows in results.with_prefix("ablation_temperature_").values():
        differences: dict[str, PairedDifference | None] = {
            label: compare_paired(miou_by_seed(rows, "cell", ours), miou_by_seed(rows, "cell", theirs))
        }
        cases.append(RunComparison(rows, differences, (ours, theirs)))
    trials = []
    cases = drop_repeated_runs(cases)
    for case in cases:
        sets = sum(other.decides == case.decides for other in cases)
        by_seed = [miou_by_seed(list(case.rows), "cell", name) for name in (ours, theirs)]
        seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
        scores = [[values[seed] for seed in seeds] for values in by_seed]
        uncorrected, corrected = (
            spread_ratio(scores[0], scores[1], 1 - (1 - LEVEL) / count / 2) for count in (1, sets)
        )
        if uncorrected is None or corrected is None:
            trials.append(Trial(case.where, (), decides=case.decides, missing=(label,)))
            continue
        (ratio, interval), (_, deciding) = uncorrected, corrected
        finding = Finding(
            label,
            ratio,
            interval,
            len(seeds),
            exceeds(deciding, deciding, limit=MIN_RATIO),
            "times",
            "{:.2f}",
            limit=MIN_RATIO,
            refuting=deciding,
            detectable=None if deciding is None else math.sqrt(deciding[1] / deciding[0]),
        )
        trials.append(Trial(case.where, (finding,), decides=case.decides, trainings=case.trainings, steps=case.key[1]))
    return combine_trials(trials)


def spread_ratio(ours: list[float], theirs: list[float], share: float) -> tuple[float, Interval] | None:
    """Return the ratio of two paired deviations and, from three pairs on, its interval; None if one of them is zero.

    With F the ratio of variances and r the correlation, the ends are F (k -+ sqrt(k^2 - 1)) where
    k = 1 + 2 (1 - r^2) t^2 / (n - 2), and t Student's of n - 2 degrees of freedom.
    """
    n = len(ours)
    a, b = (summarise(values).deviation for values in (ours, theirs))
    if not a or not b:
        return (1.0, None) if n > 1 and not a and not b else None
    if n < 3:
        return a / b, None
    means = statistics.fmean(ours), statistics.fmean(theirs)
    product = math.fsum((x - means[0]) * (y - means[1]) for x, y in zip(ours, theirs, strict=True))
    r = product / ((n - 1) * a * b)
    k = 1 + 2 * max(0.0, 1 - r * r) * t_quantile(share, n - 2) ** 2 / (n - 2)
    factor = math.sqrt(k + math.sqrt(k * k - 1))  # of deviations
    return a / b, (a / b / factor, a / b * factor)


CLAIMS = (
    Claim(
        id="temperature-low",
        family="temperature",
        statement="CD needs a low temperature: 0.1 scores higher than 1.",
        reference="Table 9, appendix F",
        paper="T = 1: 77.0, T = 0.1: 77.5 (means; best 77.1, 78.2)",
        test="mIoU of CD, T = 0.1 minus T = 1, above 0",
        command=TEMPERATURE,
        judge=partial(judge_miou, sources=[temperature_source("cd", "0.1", "1")], rule=beats_paper_gain(0.5)),
    ),
    Claim(
        id="temperature-lower",
        family="temperature",
        statement="Below 0.1 CD gains nothing more.",
        reference="Table 9, appendix F",
        paper="T = 0.1: 77.5, T = 0.01: 77.5 (means; best 78.2, 78.1)",
        test="mIoU of CD, T = 0.1 minus T = 0.01: no loss of half a point or more",
        command=TEMPERATURE,
        judge=partial(judge_miou, sources=[temperature_source("cd", "0.1", "0.01")], rule=is_at_least),
    ),
    Claim(
        id="temperature-variance",
        family="temperature",
        statement="Below 0.1 the scores of CD scatter more.",
        reference="Table 9's text, appendix F",
        paper="said to increase the variance during training; no numbers given",
        test=(
            "standard deviation of mIoU over seeds, T = 0.01 over T = 0.1, above "
            f"{MIN_RATIO:g}: rows have no scores from during the training"
        ),
        command=TEMPERATURE,
        judge=partial(judge_spread, ours="cd-t0.01", theirs="cd-t0.1"),
    ),
    Claim(
        id="temperature-vq",
        family="temperature",
        statement="VQ needs a low temperature too.",
        reference="appendix F, in words",
        paper="no numbers given",
        test="mIoU of VQ, T = 0.1 minus T = 1, above 0",
        command=TEMPERATURE,
        judge=partial(judge_miou, sources=[temperature_source("vq", "0.1", "1")], rule=beats),
    ),
    Claim(
        id="latent-eightfold",
        family="latent",
        statement="An inner width of eight times the rank is a good choice: no other rank is better.",
        reference="Fig. 3",
        paper="a figure without numbers; d = 512, r = 64 is used throughout",
        test="mIoU, r = d / 8 minus r = d / 64, d / 32, d / 16 and d / 4: no loss of half a point or more",
        command=LATENT,
        judge=partial(judge_ranks, pairs=((1, 8, 64), (1, 8, 32), (1, 8, 16), (1, 8, 4))),
    ),
    Claim(
        id="latent-eightfold-narrow",
        family="latent",
        statement="If the inner width is a half or a quarter of the head's, eight times the rank is a good choice too: "
        "no larger rank is better.",
        reference="Fig. 3",
        paper="a figure without numbers; said not to be a simple linear relation of d and r",
        test=(
            "mIoU, r = d / 8 minus r = d / 4 where d is half the head's width, and minus r = d / 2 where it is a "
            "quarter: no loss of half a point or more"
        ),
        command=LATENT,
        judge=partial(judge_ranks, pairs=((2, 8, 4), (4, 8, 2))),
    ),
    Claim(
        id="latent-small-rank",
        family="latent",
        statement="A very small rank, 8 for 512 channels, already performs well.",
        reference="Fig. 3",
        paper="a figure without numbers",
        test="mIoU, r = d / 64 minus r = d / 8, in networks where d / 64 is 8 or more: no loss of half a point or more",
        command=LATENT,
        judge=partial(judge_ranks, pairs=((1, 64, 8),), least=8),
    ),
)
