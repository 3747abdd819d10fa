"""The short answers of README, docs/claims.md and docs/design/unconfirmed.md, with every number from the rows."""

from __future__ import annotations

from collections import Counter

from hamburger_lab.claims.base import MIN_STEPS, NOT_CONFIRMED, OUTCOMES, Finding, Trial, Verdict, deciding_trials
from hamburger_lab.claims.cost import HAMS, judge_over_rival
from hamburger_lab.claims.registry import FAMILIES
from hamburger_lab.claims.tables import (
    EFFECT_HEADER,
    SMALL_SCALE_NOTE,
    ClaimVerdicts,
    count_verdicts,
    format_effect,
    heading_anchor,
    judge_all,
    split_by_origin,
)
from hamburger_lab.markdown import collapsed, markdown_table
from hamburger_lab.paper import SIZE
from hamburger_lab.rows import Results

DATA = {"camvid-short": "CamVid", "voc-animals": "animals of VOC", "voc-352": "all of VOC"}  # by recipe
USUAL_SEEDS = 3  # docs/claims.md says so; other numbers are stated
COMPARISONS = {  # claim -> what NMF is compared with
    "accuracy-self-attention": "self-attention",
    "accuracy-danet": "DANet's module",
    "parts-whole": "no context",
    "parts-ham": "the breads without the ham",
}


# -- is it as good as attention? ---------------------------------------------------------------------------------------


def attention_answer(results: Results) -> str:
    """Return the answer to "is it as good as attention?" in five sentences."""
    verdicts = {claim.id: verdict for claim, verdict in judge_all(results)}
    claim = verdicts["accuracy-self-attention"]
    attention = compared_trainings(claim)
    nothing = compared_trainings(verdicts["parts-whole"])
    signs = Counter(_sign(trial.findings[0]) for trial in attention)
    worst = min(attention, key=lambda trial: trial.findings[0].effect)
    time, memory = (judge_over_rival(results, "sa-flash", unit, ("bfloat16",), HAMS).trials for unit in ("ms", "mb"))
    return "\n".join(
        f"{number}. {sentence}"
        for number, sentence in enumerate(
            (
                f"**Accuracy**: “as accurate as self-attention” is {claim.outcome}. Put in place of self-attention "
                f"in the same network, NMF is ahead on {signs[1]} of {len(attention)} sets of photographs, behind on "
                f"{signs[-1]}, and undecided on {signs[0]}.",
                f"**Worst case**: {_describe_difference(worst, 'self-attention')}.",
                f"**Longest training**: {_describe_difference(longest(attention), 'self-attention')}.",
                f"**Gain**: {_describe_difference(longest(nothing), 'the same network without a context')}.",
                f"**Cost** at n = {SIZE:,}: fused self-attention takes {_range(time)} times as long as a ham and needs "
                f"{_range(memory)} times the memory ({time[0].where.partition(',')[0]}, bfloat16).",
            ),
            start=1,
        )
    )


def attention_table(results: Results) -> str:
    """Return the differences in mIoU between NMF and its rivals, for every set of photographs."""
    verdicts = {claim.id: verdict for claim, verdict in judge_all(results)}
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for claim, rival in COMPARISONS.items():
        for trial in compared_trainings(verdicts[claim]):
            cells.setdefault((_data(trial), trial.steps or 0), {})[rival] = _format_difference(trial.findings[0])
    lines = [
        [data, f"{steps:,}", *(differences.get(rival, "") for rival in COMPARISONS.values())]
        for (data, steps), differences in sorted(cells.items(), key=lambda cell: -cell[0][1])
    ]
    header = ["data", "steps", *(f"minus {rival} (points)" for rival in COMPARISONS.values())]
    return markdown_table(header, lines)


def compared_trainings(verdict: Verdict) -> list[Trial]:
    """Return the sets of trainings on photographs that have rows."""
    return [trial for trial in deciding_trials(verdict.trials) if trial.findings and trial.steps]


def longest(trials: list[Trial]) -> Trial:
    """Return the trial with the longest trainings."""
    return max(trials, key=lambda trial: trial.steps or 0)


def _data(trial: Trial) -> str:
    """Return what a trial trains on, in words."""
    recipe = trial.where.partition(",")[0]
    return DATA.get(recipe, recipe)


def _sign(finding: Finding) -> int:
    """Return 1 or -1 if the interval is above or below zero, else 0."""
    low, high = finding.interval or (0.0, 0.0)
    return (low > 0) - (high < 0)


def _describe_difference(trial: Trial, rival: str) -> str:
    """Return a sentence, such as `on CamVid NMF is 3.16 points of mIoU behind self-attention (600 steps, ...)`."""
    finding = trial.findings[0]
    if finding.interval is None:
        certainty = "too few for an interval"
    else:
        certainty = "95 % interval of the difference {:+.2f} to {:+.2f}".format(*finding.interval)
    side = "ahead of" if finding.effect > 0 else "behind"
    return (
        f"on {_data(trial)} NMF is {abs(finding.effect):.2f} points of mIoU {side} {rival} ({trial.steps:,} steps, "
        f"{finding.n} seeds, {certainty})"
    )


def _format_difference(finding: Finding) -> str:
    numbers = finding.text.removeprefix(finding.label).strip()
    return numbers if finding.n == USUAL_SEEDS else f"{numbers} ({finding.n} seeds)"


def _range(trials: tuple[Trial, ...]) -> str:
    """Return the smallest and largest effect of all trials."""
    effects = [finding.effect for trial in trials for finding in trial.findings]
    return f"{min(effects):.1f} to {max(effects):.1f}"


# -- counts ------------------------------------------------------------------------------------------------------------


def topic_counts(results: Results) -> str:
    """Return the number of verdicts of each kind, the paper's claims and our questions apart; by topic, collapsed."""
    verdicts = judge_all(results)
    parts = split_by_origin(verdicts)
    counts = [Counter(verdict.outcome for _, verdict in part) for part in parts]
    outcomes = [outcome for outcome in OUTCOMES if any(found[outcome] for found in counts)]
    lines = [[outcome, *(str(found[outcome]) for found in counts)] for outcome in outcomes]
    lines.append(["**all**", *(f"**{len(part)}**" for part in parts)])
    table = markdown_table(["verdict", "on the paper's claims", "on our questions"], lines)
    topics = []
    for family, title in FAMILIES.items():
        members = split_by_origin([pair for pair in verdicts if pair[0].family == family])
        link = f"[{title}](generated/claims.md#{heading_anchor(title)})"
        topics.append([link, *(count_verdicts(part) for part in members)])
    by_topic = collapsed("By topic", markdown_table(["topic", "on the paper's claims", "on our questions"], topics))
    return f"{table}\n\n{caution(verdicts)}\n\n{by_topic}"


def caution(verdicts: ClaimVerdicts) -> str:
    """Return how many verdicts rest on weak evidence, or on the same sentence of the paper."""
    few = [len([pair for pair in part if pair[1].small_scale]) for part in split_by_origin(verdicts)]
    collapses = sum(verdict.collapsed for _, verdict in verdicts)
    generated = sum(verdict.generated for _, verdict in verdicts)
    claims, in_two_readings = count_claims(verdicts)
    return (
        f"{few[0]} verdicts on the paper's claims and {few[1]} on our questions rest on trainings of fewer than "
        f"{MIN_STEPS:,} steps; {collapses} compare with trainings that collapsed; {generated} on generated scenes "
        f"alone. The verdicts on the paper are on {claims} claims: {in_two_readings} have a verdict for each of two "
        f"readings of Eq. 13. At 95 %, about {round(0.05 * len(verdicts))} of {len(verdicts)} may be wrong by chance."
    )


def count_claims(verdicts: ClaimVerdicts) -> tuple[int, int]:
    """Return the number of the paper's claims, and how many have a verdict for each of two readings of Eq. 13."""
    ids = {claim.id for claim, _ in split_by_origin(verdicts)[0]}
    in_two_readings = sum(f"{name}-{reading}" in ids for name in ids for reading in ("equation", "code"))
    return len(ids) - in_two_readings, in_two_readings


def readme_claims(results: Results) -> str:
    """Return the sentence of README about the verdicts."""
    verdicts = judge_all(results)
    paper, ours = split_by_origin(verdicts)
    claims, in_two_readings = count_claims(verdicts)
    return (
        f"[{claims} claims of the paper](docs/claims.md), {in_two_readings} of them in two readings, have {len(paper)} "
        f"verdicts computed from [`results/`](results): {count_verdicts(paper)} "
        f"([what we could not reproduce](docs/design/unconfirmed.md)). {len(ours)} questions of our own are counted "
        "apart."
    )


# -- what was not reproduced -------------------------------------------------------------------------------------------


def unconfirmed_table(results: Results) -> str:
    """Return the claims that the rows contradict, with the comparison that decides: the paper's, then ours."""
    paper, ours = split_by_origin(judge_all(results))
    parts = [f"Not confirmed: {_contradicted(paper)} of the {len(paper)} verdicts on the paper's claims."]
    for family, title in FAMILIES.items():
        members = [pair for pair in paper if pair[0].family == family]
        if _contradicted(members):
            summary = f"{title}: {_contradicted(members)} of {len(members)}"
            parts.append(collapsed(summary, _unconfirmed_lines(members), opened=family == "accuracy"))
    parts.append(f"Of our own {len(ours)} questions, {_contradicted(ours)} have the answer no:")
    parts.append(collapsed("Our questions", _unconfirmed_lines(ours)))
    parts.append(f"{SMALL_SCALE_NOTE} A cosine of 1 is the same direction.")
    return "\n\n".join(parts)


def _contradicted(verdicts: ClaimVerdicts) -> int:
    return sum(verdict.outcome == NOT_CONFIRMED for _, verdict in verdicts)


def _unconfirmed_lines(verdicts: ClaimVerdicts) -> str:
    lines = [
        [f"{claim.statement} ({claim.reference})", format_effect(verdict), verdict.basis]
        for claim, verdict in verdicts
        if verdict.outcome == NOT_CONFIRMED
    ]
    return markdown_table(["claim", EFFECT_HEADER, "caution"], lines)
