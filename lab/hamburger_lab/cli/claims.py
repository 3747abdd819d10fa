"""`ham claims` and `ham feature-maps`: verdicts on the paper's claims, and the maps that their page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hamburger.errors import InputError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from hamburger_lab.claims.tables import ClaimVerdicts


COLOURS = {"confirmed": "green", "not confirmed": "red", "inconclusive": "yellow", "not run": "dim"}


def claims(
    results: Annotated[Path, typer.Option(help="the folder of result files")] = Path("results"),
    only: Annotated[
        str, typer.Option(help="show these claims in full: ids, comma-separated; default: a table of all")
    ] = "",
    json: Annotated[
        Path | None, typer.Option(help="write the verdicts to this file, such as results/claims.json")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write a self-contained HTML page to this file")] = None,
) -> None:
    """Print verdicts on the paper's claims, computed from result files; optionally write a page with figures."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from hamburger.cli.output import parse_names, suggest
    from hamburger.files import check_writable, write_atomically
    from hamburger_lab.claims import Results
    from hamburger_lab.claims.base import MIN_STEPS
    from hamburger_lab.claims.tables import as_json, count_by_origin, format_effect, format_power, judge_all

    for target in (json, html):
        if target is not None:
            check_writable(target)
    if not results.is_dir():
        raise InputError(f"claims: no folder {results}; name a folder with *.jsonl files by --results")
    rows = Results.read(results)
    verdicts = judge_all(rows)
    console = Console()
    if only:
        _print_claims(verdicts, parse_names(only))
    else:
        # never wrap names and verdicts: --only needs the full name
        table = Table(title=count_by_origin(verdicts), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("claim", no_wrap=True)
        for heading in ("effect", "detectable", "seeds"):
            table.add_column(heading, justify="left" if heading == "effect" else "right")
        table.add_column("verdict", no_wrap=True)
        for claim, verdict in verdicts:
            seeds = str(verdict.seeds or "")
            outcome = (
                f"[{COLOURS[verdict.outcome]}]{verdict.outcome}[/]{'*' * verdict.generated}{'†' * verdict.collapsed}"
                f"{'‡' * verdict.small_scale}"
            )
            table.add_row(
                claim.id + "°" * claim.ours,
                format_effect(verdict).replace("[", r"\["),
                format_power(verdict),
                seeds,
                outcome,
            )
        notes = {
            "effects in points of mIoU unless stated": True,
            "° our question, not the paper's": any(claim.ours for claim, _ in verdicts),
            "* generated scenes alone": any(verdict.generated for _, verdict in verdicts),
            "† some trainings collapsed": any(verdict.collapsed for _, verdict in verdicts),
            f"‡ trainings of fewer than {MIN_STEPS:,} steps": any(verdict.small_scale for _, verdict in verdicts),
        }
        table.caption = "\n".join(note for note, applies in notes.items() if applies)
        console.print(table)
    if json is not None:
        write_atomically(json, as_json(verdicts).encode())
        console.print(f"wrote {json}", soft_wrap=True, highlight=False)
    if html is not None:
        from hamburger_lab.claims.page import claims_page

        write_atomically(html, claims_page(rows).encode())
        console.print(f"wrote {html}", soft_wrap=True, highlight=False)
    if not only:
        page = [] if html else ["ham claims --html claims.html"]
        suggest("ham claims --only ID (what was compared, and the command that makes its rows)", *page)


def _print_claims(verdicts: ClaimVerdicts, names: tuple[str, ...]) -> None:
    from hamburger_lab.claims.base import deciding_trials

    known = {claim.id: (claim, verdict) for claim, verdict in verdicts}
    for name in names:
        if name not in known:
            raise UnknownNameError(f"claims: no claim '{name}'{did_you_mean(name, known)}")
        claim, verdict = known[name]
        basis = f" ({verdict.basis})" if verdict.basis else ""
        typer.echo(
            f"{claim.id}: {verdict.outcome}{basis}\n  {claim.statement} ({claim.reference})\n  paper: {claim.paper}"
        )
        typer.echo(f"  test: {claim.test}")
        for trial in verdict.trials:
            remark = "" if trial in deciding_trials(verdict.trials) else " (generated scenes; photographs decide)"
            typer.echo(f"  here: {trial.text}: {trial.outcome}{remark}")
        decisive = verdict.decisive
        if decisive is not None and decisive.power:
            typer.echo(f"  detectable: {f'{decisive.power} {decisive.unit}'.strip()}, of {decisive.label}")
        typer.echo(f"  command: {claim.command}")


# -- `ham feature-maps` -----------------------------------------------------------------------------------------------


def feature_maps(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders or .safetensors files")],
    json: Annotated[Path, typer.Option(help="the file to write, such as results/feature_maps_<data>_<hardware>.json")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    images: Annotated[int, typer.Option(help="number of images, chosen by a fixed seed from the validation split")] = 2,
) -> None:
    """Write channels before and after the context, and atoms of the ham, for `ham claims --html`."""
    from json import dumps

    from hamburger.cli.output import suggest
    from hamburger.errors import check_count
    from hamburger.files import check_writable, write_atomically
    from hamburger_lab.claims.feature_maps import make_feature_maps

    check_count("feature-maps", "images", images, least=1)
    check_writable(json)
    study = make_feature_maps(runs, data, images=images)
    write_atomically(json, (dumps(study) + "\n").encode())
    typer.echo(f"wrote {json}: {len(study['entries'])} images of {study['data']}")
    suggest("ham claims --html claims.html")
