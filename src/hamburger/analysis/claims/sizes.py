"""Table 9 and Fig. 3: temperature, inner width and rank."""

from __future__ import annotations

from functools import partial

from hamburger.analysis.claims.base import Claim, Verdict
from hamburger.analysis.claims.commands import ablate
from hamburger.analysis.claims.method import Case, Pair, Source, at_least, beating, beats, compare, judge, points
from hamburger.analysis.claims.results import Results

TEMPERATURE = ablate("temperature")
LATENT = ablate("latent")


def colder(ham: str, ours: str, theirs: str) -> Source:
    return Source("ablation_temperature_", (Pair(f"{ham}-t{ours}", f"{ham}-t{theirs}"),))


def ranks(results: Results, pairs: tuple[tuple[int, int], ...], *, least: int = 1) -> Verdict:
    """r = d / a minus r = d / b at the full width, for every pair (a, b), in whatever width a file has.

    A narrow network whose r would be below `least` says nothing: the paper's r of 8 is no r of 1.
    """
    cases: list[Case] = []
    for name, rows in results.beginning("ablation_latent_").items():
        d = max(int(row["cell"][1:].partition("-")[0]) for row in rows)
        if any(d // ours < least for ours, _ in pairs):
            continue
        made = tuple(Pair(f"d{d}-r{d // ours}", f"d{d}-r{d // theirs}") for ours, theirs in pairs)
        cases += Source(name, made).cases(Results({name: rows}), points)
    return judge(cases, at_least)


CLAIMS = (
    Claim(
        id="temperature-low",
        family="temperature",
        statement="CD wants a low temperature: 0.1 scores higher than 1.",
        reference="Table 9, appendix F",
        paper="T = 1: 77.0, T = 0.1: 77.5 (means; best 77.1, 78.2)",
        test="mIoU of CD, T = 0.1 minus T = 1, above 0",
        command=TEMPERATURE,
        judge=partial(compare, sources=[colder("cd", "0.1", "1")], rule=beating(0.5)),
    ),
    Claim(
        id="temperature-lower",
        family="temperature",
        statement="Below 0.1 CD gains nothing more.",
        reference="Table 9, appendix F",
        paper="T = 0.1: 77.5, T = 0.01: 77.5 (means; best 78.2, 78.1)",
        test="mIoU of CD, T = 0.1 minus T = 0.01: no loss of half a point or more",
        command=TEMPERATURE,
        judge=partial(compare, sources=[colder("cd", "0.1", "0.01")], rule=at_least),
    ),
    Claim(
        id="temperature-vq",
        family="temperature",
        statement="VQ wants a low temperature too.",
        reference="appendix F, in words",
        paper="no numbers given",
        test="mIoU of VQ, T = 0.1 minus T = 1, above 0",
        command=TEMPERATURE,
        judge=partial(compare, sources=[colder("vq", "0.1", "1")], rule=beats),
    ),
    Claim(
        id="latent-eightfold",
        family="latent",
        statement="An inner width of eight times the rank is a good choice: no other rank is better.",
        reference="Fig. 3",
        paper="a figure without numbers; d = 512, r = 64 is used throughout",
        test="mIoU, r = d / 8 minus r = d / 64, d / 32, d / 16 and d / 4: no loss of half a point or more",
        command=LATENT,
        judge=partial(ranks, pairs=((8, 64), (8, 32), (8, 16), (8, 4))),
    ),
    Claim(
        id="latent-small-rank",
        family="latent",
        statement="A very small rank, 8 for 512 channels, already does well.",
        reference="Fig. 3",
        paper="a figure without numbers",
        test="mIoU, r = d / 64 minus r = d / 8, in networks where d / 64 is 8 or more: no loss of half a point or more",
        command=LATENT,
        judge=partial(ranks, pairs=((64, 8),), least=8),
    ),
)
