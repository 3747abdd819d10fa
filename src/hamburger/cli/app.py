"""The tree of commands; each lives in a file of its own name."""

from __future__ import annotations

import typer

from hamburger.cli import (
    ablate,
    bench,
    claims,
    compare,
    data,
    demo,
    evaluate,
    export,
    gan,
    listing,
    pictures,
    predict,
    propositions,
    recover,
    report,
    train,
)

app = typer.Typer(
    name="ham",
    help="Global context by matrix decomposition instead of attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("compare")(compare.compare)
app.command("ablate")(ablate.ablate)
app.command("claims")(claims.claims)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("pictures")(pictures.pictures)
app.command("export")(export.export)
app.command("list")(listing.listing)
app.command("recover")(recover.recover)
app.command("propositions")(propositions.propositions)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(gan.app, name="gan")
