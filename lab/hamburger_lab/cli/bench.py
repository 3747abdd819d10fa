"""`ham bench`: measurements on this machine.

`BENCHMARKS` lists them. The options of a command become the fields of its plan; `run_benchmark` measures the plan,
writes its rows and prints its tables. Only `table3` has a function of its own: it also appends, writes CSV and draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, NamedTuple

import typer

from hamburger.cli.output import parse_ints, parse_names, progress_bar, suggest
from hamburger.errors import OptionError

Report = Callable[[str], object]  # called with what is measured next
Json = Annotated[Path | None, typer.Option(help="write the rows to this file, one JSON object per line")]


class BenchOption(NamedTuple):
    """An option of a benchmark. Its default also gives its type; `parse(text, call)` makes the value of the plan."""

    default: str | int | bool | None
    help: str | None = None
    parse: Callable[[str, str], Any] | None = None
    field: str | None = None  # of the plan, where it has another name than the option

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter from which typer makes the option."""
        kind: Any = str | None if self.default is None else type(self.default)
        flags = (f"--{name}",) if isinstance(self.default, bool) else ()
        annotation = Annotated[kind, typer.Option(*flags, help=self.help)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=annotation)


def names(default: str | None, help: str = "names, comma-separated", field: str | None = None) -> BenchOption:
    return BenchOption(default, help, lambda text, call: parse_names(text), field)


def numbers(option: str, default: str, help: str) -> BenchOption:
    return BenchOption(default, help, lambda text, call: parse_ints(text, call, option))


def variants(default: str, help: str) -> BenchOption:
    def parse(text: str, call: str) -> dict[str, Any]:
        from hamburger_lab.bench.common import model_options

        return {name: model_options(name) for name in parse_names(text)}

    return BenchOption(default, help, parse, "variants")


HAMS = names("nmf,vq,cd")
MODES = names("infer,train", "infer, train (forward and backward), comma-separated")
DIM, RANK, STEPS = BenchOption(512, "channels d"), BenchOption(64, "rank r"), BenchOption(6, "steps K")
CHANNELS = BenchOption(512, "channels c")
DEVICE, SEED = BenchOption("cpu", "cpu or cuda"), BenchOption(0)
AUTOCAST = BenchOption("float32", "float32 or bfloat16 (autocast)")
NETWORK_ROUNDS = BenchOption(20, "timed rounds, each a step of every network")
CONTEXTS_HELP = "comma-separated; also none, breads (no ham), sa-flash and sa-materialised"


def batch(default: int) -> BenchOption:
    return BenchOption(default, "batch size b")


def classes(default: int) -> BenchOption:
    return BenchOption(default, "number of classes")


def sizes(default: str, help: str = "values of n, comma-separated") -> BenchOption:
    return numbers("sizes", default, help)


def sides(default: str) -> BenchOption:
    return sizes(default, "height and width of the images, comma-separated")


@dataclass(frozen=True)
class Benchmark:
    """`plan` and `tables` are module:name in `hamburger_lab.bench`; the plan's module has `measure(plan, report)`.

    `total` is the property of the plan with the number of reports.
    """

    help: str
    plan: str
    total: str
    tables: tuple[str, ...]
    options: dict[str, BenchOption]
    # fields of the plan that depend on others, where their options were left out
    dependent_fields: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: {}

    def make_plan(self, call: str, values: dict[str, Any]) -> Any:
        fields = {}
        for name, option in self.options.items():
            value = values[name]
            parsed = option.parse(value, call) if option.parse and value is not None else value
            if parsed is not None:
                fields[option.field or name] = parsed
        return _import_object(self.plan)(**{**self.dependent_fields(fields), **fields})

    def measure(self, plan: Any, report: Report) -> Iterable[Any]:
        return _import_object(f"{self.plan.partition(':')[0]}:measure")(plan, report)


def _import_object(name: str) -> Any:
    """An object of a module that is imported only now: `ham --help` should not wait for it."""
    return resolve_name(f"hamburger_lab.bench.{name}")


BENCHMARKS = {
    "core": Benchmark(
        "Time the hams against the authors' code, scikit-learn's NMF and self-attention, as n grows.",
        plan="core:CorePlan",
        total="rounds",
        tables=("tables:core_times_table", "tables:core_growth_table"),
        options={
            "sizes": sizes("1024,2048,4096,8192,16384"),
            "dim": BenchOption(512, "d, a multiple of 8"),
            "rank": RANK,
            "steps": STEPS,
            "batch": batch(1),
            "dtype": BenchOption("float32", "float32 or float64"),
            "repeats": BenchOption(15, "timed rounds per size"),
            "device": DEVICE,
            "hams": HAMS,
            "seed": SEED,
        },
    ),
    "ham": Benchmark(
        "Time the ham alone, plain and fused, against its roofline: the least time for its arithmetic and bytes.",
        plan="ham:HamAlonePlan",
        total="rows",
        tables=("ham:ham_table",),
        options={
            "hams": HAMS,
            "backends": names(None, "plain, fused, comma-separated; default: both on cuda, else plain"),
            "modes": MODES,
            "sizes": sizes("16384"),
            "dim": DIM,
            "rank": RANK,
            "steps": STEPS,
            "batch": batch(1),
            "dtype": names("float32", "float32, tf32 (cuda), bfloat16, float16, comma-separated", "dtypes"),
            "repeats": BenchOption(20, "samples, each a call or a block of short calls"),
            "device": DEVICE,
            "seed": SEED,
        },
        dependent_fields=lambda fields: {"backends": ("plain", "fused") if fields["device"] == "cuda" else ("plain",)},
    ),
    "gradients": Benchmark(
        "Measure time and peak memory of forward and backward for each gradient of a ham, as K grows.",
        plan="gradients:GradientPlan",
        total="cases",
        tables=("gradients:gradients_table",),
        options={
            "hams": HAMS,
            "grads": names("one-step,truncated:1,truncated:2,bptt,implicit", field="gradients"),
            "sizes": sizes("4096"),
            "steps": numbers("steps", "6,24", "values of K, comma-separated"),
            "dim": DIM,
            "rank": RANK,
            "batch": batch(1),
            "repeats": BenchOption(10, "timed rounds, each a call of every gradient; at least 5"),
            "device": DEVICE,
            "seed": SEED,
        },
    ),
    "network": Benchmark(
        "Time a training step of HamNet with each context, in shuffled rounds: images/s and peak memory.",
        plan="network:NetworkPlan",
        total="stages",
        tables=("tables:network_table",),
        options={
            "contexts": variants(
                "baseline,breads,nmf,vq,cd,sa-flash,a2,ema,efficient,da",
                "comma-separated; also baseline, breads (no ham) and sa-flash",
            ),
            "backbone": BenchOption("resnet50"),
            "output_stride": BenchOption(16, "8, 16 or 32"),
            "num_classes": classes(21),
            "crop": BenchOption(513, "height and width of the images"),
            "batch": batch(16),
            "device": DEVICE,
            "dtype": AUTOCAST,
            "repeats": NETWORK_ROUNDS,
            "seed": SEED,
        },
    ),
    "detect": Benchmark(
        "Time a training step of Mask R-CNN with each context as the image grows: time, and memory against n.",
        plan="detect:DetectorPlan",
        total="stages",
        tables=("tables:detector_table",),
        options={
            "contexts": variants("none,sa-materialised,sa-flash,efficient,nmf", CONTEXTS_HELP),
            "sizes": sides("256,512,768,1024"),
            "backbone": BenchOption("resnet50", "a ResNet of torchvision, or tiny"),
            "after": BenchOption("p3", "where the context is inserted: layer1 ... layer4, p2 ... p5"),
            "batch": batch(4),
            "device": DEVICE,
            "dtype": AUTOCAST,
            "repeats": NETWORK_ROUNDS,
            "seed": SEED,
        },
    ),
    "classes": Benchmark(
        "Time a training step of an image classifier with each context: images/s and peak memory.",
        plan="classes:ClassifierPlan",
        total="stages",
        tables=("tables:classifier_table",),
        options={
            "contexts": variants("none,sa-flash,efficient,nmf", CONTEXTS_HELP),
            "sizes": sides("32"),
            "backbone": BenchOption("resnet18", "a ResNet of timm; others with --stem timm"),
            "stem": BenchOption("small", "small: a ResNet's, without stride or pool; timm: as it is"),
            "after": BenchOption("layer3", "the submodule that the context follows"),
            "num_classes": classes(10),
            "batch": batch(128),
            "device": DEVICE,
            "dtype": AUTOCAST,
            "repeats": NETWORK_ROUNDS,
            "seed": SEED,
        },
    ),
    "gan": Benchmark(
        "Time a training step of HamGAN and its rivals, and their modules alone, in shuffled rounds.",
        plan="gan:GanStepPlan",
        total="stages",
        tables=("tables:gan_table",),
        options={
            "contexts": names("none,sagan,ylg,ylg-fused,hamgan,efficient", "comma-separated"),
            "resolution": BenchOption(128, "32, 64 or 128"),
            "width": BenchOption(64, "channels of the widest map"),
            "num_classes": classes(1000),
            "batch": batch(64),
            "device": DEVICE,
            "dtype": AUTOCAST,
            "graph": BenchOption(False, "record calls as CUDA graphs and time their replay"),
            "repeats": BenchOption(20, "timed rounds, each a step of every GAN"),
            "seed": SEED,
        },
    ),
    "profile": Benchmark(
        "Profile the kernels of a context module on a CUDA device: launches and microseconds of a call.",
        plan="profile:ProfilePlan",
        total="stages",
        tables=("profile:profile_table",),
        options={
            "modules": names("nmf", "names of `ham bench table3`, comma-separated"),
            "sizes": sizes("16384", "values of n = h * w, comma-separated"),
            "modes": MODES,
            "channels": CHANNELS,
            "batch": batch(1),
            "dtype": BenchOption("bfloat16", "float32, tf32 or bfloat16 (autocast)"),
            "calls": BenchOption(20, "calls to average over"),
            "seed": SEED,
        },
    ),
}


# -- running them -----------------------------------------------------------------------------------------------------


app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed on this machine."""


def run_benchmark(name: str, values: dict[str, Any], json: Path | None) -> None:
    """Measure with the values of the options, write the rows, print the tables."""
    from rich.console import Console

    from hamburger.files import check_writable, write_json_lines

    benchmark = BENCHMARKS[name]
    plan = benchmark.make_plan(f"bench {name}", values)
    if json is not None:
        check_writable(json)

    def save(rows: list[Any]) -> None:
        if json is not None:
            write_json_lines(json, map(asdict, rows))

    rows = collect_rows(lambda report: benchmark.measure(plan, report), getattr(plan, benchmark.total), save)
    for table in benchmark.tables:
        Console().print(_import_object(table)(rows))
    _name_rows(f"ham bench {name}", json)


def _name_rows(command: str, json: Path | None) -> None:
    """Print the path of the rows, or how to keep them."""
    if json is None:
        suggest(f"{command} --json rows.jsonl (keeps the rows)")
    else:
        typer.echo(f"wrote {json}")
        suggest("ham claims")


def collect_rows(
    measure: Callable[[Report], Iterable[Any]], total: int, save: Callable[[list[Any]], object]
) -> list[Any]:
    """Measure with a progress bar of `total` reports; save after every row, so that an interrupted run keeps them."""
    from hamburger_lab.bench.common import WrongResultError

    rows: list[Any] = []
    # refresh between reports only: a refreshing thread would disturb the timing
    with progress_bar("measuring", total, auto_refresh=False) as update:
        try:
            for row in measure(lambda what: update(description=what, advance=1, refresh=True)):
                rows.append(row)
                save(rows)
        except WrongResultError as refusal:
            typer.echo(f"ham: {refusal}", err=True)
            raise typer.Exit(1) from None
    return rows


def _add_command(name: str, benchmark: Benchmark) -> None:
    def command(json: Path | None, **values: Any) -> None:
        run_benchmark(name, values, json)

    parameters = [option.parameter(option_name) for option_name, option in benchmark.options.items()]
    parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Json))
    # typer reads the options from the signature and the annotations
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, help=benchmark.help)(command)


for _name, _benchmark in BENCHMARKS.items():
    _add_command(_name, _benchmark)


@app.command("table3")
def table3(
    modules: Annotated[
        str, typer.Option(help="names, comma-separated; add +compile to a name to compile it; default: all")
    ] = "",
    sizes: Annotated[str, typer.Option(help="values of n = h * w, comma-separated")] = "16384",
    channels: Annotated[int, typer.Option(help="channels c")] = 512,
    batch: Annotated[int, typer.Option(help="batch size b")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, tf32 (cuda), bfloat16 (autocast), comma-separated")] = "float32",
    memory_format: Annotated[
        str | None,
        typer.Option(help="contiguous, channels_last or best (the faster); default: best on cuda, else contiguous"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="samples, each a call or a block of short calls; at least 5")] = 20,
    seconds: Annotated[
        float, typer.Option(help="time budget of one row: both modes and all candidates; at least 5 samples are taken")
    ] = 2.0,
    max_macs: Annotated[
        float, typer.Option(help="do not run modules that need more multiply-adds; only count them")
    ] = inf,
    seed: Annotated[int, typer.Option()] = 0,
    json: Json = None,
    append: Annotated[
        bool, typer.Option("--append", help="keep other rows of the file; replace rows of the same measurement")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="write the rows to this file as CSV")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw time and memory against n to this PNG file, one per dtype")
    ] = None,
) -> None:
    """Measure every context module as in the paper's Table 3: parameters, multiply-adds, memory, time."""
    from rich.console import Console

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab import rows as results
    from hamburger_lab.bench import table3 as bench
    from hamburger_lab.bench.table3_names import module_names
    from hamburger_lab.bench.table3_view import row_notes, table3_growth_table, table3_table

    plan = bench.Table3Plan(
        modules=parse_names(modules) or tuple(module_names()),
        sizes=parse_ints(sizes, "bench table3"),
        channels=channels,
        batch=batch,
        device=device,
        dtypes=parse_names(dtype),
        memory_format=memory_format,
        repeats=repeats,
        seconds=seconds,
        max_macs=max_macs,
        seed=seed,
    )
    if append and json is None:
        raise OptionError("bench table3: --append needs the file to append to; name it with --json")
    for path in (json, csv, plot):
        if path is not None:
            check_writable(path)
    earlier_rows = results.read_table3_rows(json) if append and json is not None else []

    def save(rows: list[bench.Table3Row]) -> None:
        if json is not None:
            write_json_lines(json, results.merge_table3_rows(earlier_rows, [asdict(row) for row in rows]))

    # it reports each module when it counts it, and then each row
    rows = collect_rows(lambda report: bench.measure(plan, report), len(plan.modules) + plan.rows, save)
    console = Console()
    by_dtype = {name: [row for row in rows if row.dtype == name] for name in plan.dtypes}
    for dtype_rows in by_dtype.values():
        console.print(table3_table(dtype_rows))
        if len(plan.sizes) > 1:
            console.print(table3_growth_table(dtype_rows))
    for note in row_notes(rows):
        console.print(note, markup=False, highlight=False)
    if csv is not None:
        results.write_csv(csv, [asdict(row) for row in rows])
    if plot is not None:
        from hamburger_lab.pages.table3_figure import draw_table3

        for name, dtype_rows in by_dtype.items():
            path = plot.with_stem(f"{plot.stem}_{name}") if len(by_dtype) > 1 else plot
            draw_table3([asdict(row) for row in dtype_rows], path)
            typer.echo(f"wrote {path}")
    if csv is not None:
        typer.echo(f"wrote {csv}")
    _name_rows("ham bench table3", json)
