"""Commands that the lab adds to `ham`."""

from __future__ import annotations

import typer

from hamburger.cli import listing
from hamburger.cli.data import app as data_app
from hamburger.cli.gan import app as gan_app
from hamburger_lab.ablations.grids import ablations
from hamburger_lab.cli import ablate, angles, bench, claims, eval_solver, gan, prepare, studies


def register(app: typer.Typer) -> None:
    """Add the lab's commands; `ham` calls this through the entry point group `hamburger.commands`."""
    app.command("ablate")(ablate.ablate)
    app.command("angles")(angles.angles)
    app.command("eval-solver")(eval_solver.eval_solver)
    app.command("claims")(claims.claims)
    app.command("feature-maps")(claims.feature_maps)
    app.command("recover")(studies.recover)
    app.command("propositions")(studies.propositions)
    app.add_typer(bench.app, name="bench")
    gan_app.command("fid")(gan.fid)
    gan_app.command("grid")(gan.grid)
    gan_app.command("report")(gan.report)
    data_app.add_typer(prepare.app, name="prepare")
    listing.names["ablations"] = ablations.names
