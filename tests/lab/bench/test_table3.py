"""`ham bench table3`: counts, peak memory, correctness check, timing, command."""

from __future__ import annotations

import collections
import gc
import itertools
import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from hamburger.errors import OptionError
from hamburger_lab import paper, rows
from hamburger_lab.bench import autotune, footprint, module_under_test, table3, table3_names, timed_module, timing

SHAPE = (1, 512, 128, 128)


def counts(module):
    build = next(iter(table3_names.builders(module, 512).values()))
    return footprint.count_params_and_macs(build, SHAPE)


@pytest.mark.parametrize("module", paper.TABLE3)
def test_counts_match_the_paper_within_one_percent_or_have_a_reason(module):
    params, macs = counts(module)
    assert abs(paper.deviation(module, "params", params / 2**20)) < 0.01
    if (module, "macs") in paper.DIFFERENCES:
        assert macs / 1e9 == pytest.approx(245.9, rel=1e-3)  # both convolutions, both branches' products
        assert any("cannot be right" in note for note in paper.notes(module, params, macs))
    else:
        assert abs(paper.deviation(module, "macs", macs / 1e9)) < 0.01
        assert paper.notes(module, params, macs) == []


def test_unexplained_difference_is_noted():
    assert "not explained" in paper.notes("nmf", 525_824, 30_000_000_000)[0]
    assert paper.notes("ema", 1, 1) == []


@pytest.mark.parametrize(
    ("module", "p"),
    [("sa", 2), ("da", 2), ("acf", 2), ("nonlocal", 2)]
    + [(m, 1) for m in ("nmf", "vq", "cd", "a2", "apc", "dm", "ema")],
)
def test_multiply_adds_grow_as_the_paper_says(module, p):
    build = next(iter(table3_names.builders(module, 512).values()))
    small, large = (footprint.count_params_and_macs(build, (1, 512, side, side))[1] for side in (512, 1024))
    assert large / small == pytest.approx(4**p, rel=0.03)  # the rest of the layer is linear


def test_peak_memory_matches_a_known_call():
    x = torch.zeros(256, 1024)  # 1 MiB

    def call():
        a = x + 1  # 1 MiB
        b = a * 2  # 2 MiB
        del a
        return b.sum()

    assert footprint.peak_mib(call, [x], "cpu") == pytest.approx(3.0, abs=0.01)
    assert footprint.peak_mib(lambda: x.sum(), [x, x.view(-1)], "cpu") == pytest.approx(1.0, abs=0.01)


def test_attention_stores_no_matrix_unless_materialised():
    builds, shape = table3_names.builders("sa", 16), (1, 16, 32, 32)
    fused, held = (
        timed_module.TimedModule(timed_module.BenchSetting("cpu", "float32"), builds[name], shape)
        for name in ("fused", "materialised")
    )
    assert held.peak("infer") - fused.peak("infer") > 3.9  # 1024 x 1024 float32
    assert len({footprint.count_params_and_macs(build, shape) for build in builds.values()}) == 1


class Wrong(nn.Module):
    """A module that is right in float64 only."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale * (2 if x.dtype == torch.float64 else 3)


def test_wrong_results_are_not_timed(monkeypatch):
    monkeypatch.setitem(table3_names.VARIANTS, "wrong", {"": lambda c: Wrong()})
    (row,) = table3.measure(table3.Table3Plan(modules=("wrong",), sizes=(64,), channels=8, repeats=1))
    assert row.note.startswith("refused: contiguous differs from float64 by 1")
    assert row.infer_ms is None and row.train_mb is None


def test_fastest_build_and_format_are_chosen():
    times = {
        ("heads=2", "contiguous"): 3.0,
        ("heads=2", "channels_last"): 1.0,
        ("heads=8", "contiguous"): 2.0,
        ("heads=8", "channels_last"): 4.0,
    }
    builds, formats = {"heads=2": None, "heads=8": None}, tuple(timed_module.FORMATS)
    assert autotune.find_fastest(builds, formats, lambda *key: times[key]) == (("heads=2", "channels_last"), 1.0)


def test_long_calls_skip_the_second_format_and_failing_builds_are_dropped():
    tried = []

    def probe(way, laid):
        tried.append((way, laid))
        if way == "broken":
            raise torch.OutOfMemoryError("no room")
        return 60.0

    formats = tuple(timed_module.FORMATS)
    assert autotune.find_fastest({"broken": 0, "slow": 0}, formats, probe) == (("slow", "contiguous"), 60.0)
    assert tried == [("broken", "contiguous"), ("slow", "contiguous")]
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        autotune.find_fastest({"broken": 0}, formats, probe)


def test_choices_are_named_once_or_per_mode():
    assert table3._join_choices(["heads=2", "heads=2"]) == table3._join_choices(["heads=2"]) == "heads=2"
    assert table3._join_choices(["heads=2", "heads=8"]) == "inference: heads=2; training: heads=8"
    assert table3._join_choices([]) == ""


def test_channels_last_inputs_are_used():
    setting = timed_module.BenchSetting("cpu", "float32")
    laid = timed_module.TimedModule(
        setting, table3_names.builders("dfn", 8)[""], (2, 8, 4, 4), memory_format="channels_last"
    )
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in (*laid.inputs, laid.cotangent))
    assert laid.module.before.refine[1].weight.is_contiguous(memory_format=torch.channels_last)
    laid.warm("train")
    assert laid.probe("train") > 0


@pytest.mark.parametrize(
    ("options", "module", "formats"),
    [
        ({}, "nmf", ("contiguous",)),
        ({"memory_format": "best"}, "nmf", ("contiguous", "channels_last")),
        ({"memory_format": "best"}, "nmf+compile", ("contiguous",)),
        ({"memory_format": "channels_last"}, "nmf+compile", ("channels_last",)),
    ],
)
def test_formats_depend_on_device_and_option(options, module, formats):
    assert table3.Table3Plan(modules=(module,), **options).formats(module) == formats


def test_cuda_tries_both_formats_by_default(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert table3.Table3Plan(modules=("nmf",), device="cuda").formats("nmf") == ("contiguous", "channels_last")


@pytest.mark.parametrize(
    ("ms", "seconds", "samples", "block"),
    [
        (0.01, 2, 20, 100),
        (0.5, 2, 20, 40),
        (4, 2, 20, 5),
        (4, 0.2, 10, 5),
        (5, 2, 20, 1),
        (20, 0.2, 10, 1),
        (500, 0.2, 5, 1),
        (1, 0, 5, 20),
        (1, -3, 5, 20),  # all is spent already
        (5001, 0.2, 2, 1),
        (5001, 20, 3, 1),
    ],
)
def test_short_calls_run_in_blocks_with_a_minimum_of_samples(ms, seconds, samples, block):
    assert timed_module.BenchSetting("cpu", "float32", repeats=20).samples(ms, seconds) == samples
    assert timed_module.calls_per_sample(ms) == block


def test_mode_and_gradients_are_reset_before_timing(monkeypatch):
    seen = []

    def clock(run, args, device):
        seen.append((one.module.training, any(p.grad is not None for p in one.module.parameters())))
        run(*args)
        return 1.0

    monkeypatch.setattr(timed_module, "time_call", clock)
    one = timed_module.TimedModule(
        timed_module.BenchSetting("cpu", "float32"), table3_names.builders("nmf", 8)[""], (1, 8, 8, 8)
    )
    one.samples("train", 3)
    one.samples("infer", 3)
    assert seen == [(True, False)] * 3 + [(False, False)] * 3


@pytest.mark.parametrize(
    ("times", "ms"),
    [
        ([900], 900),  # nothing that disturbs lasts as long: no more of them
        ([60, 55], 55),
        ([60, 7, 8, 6], 6),  # one at a time
        ([60, 7, 8, 1], 1),  # a short call that was disturbed
        ([60, 1, 1.5, 2], 1.5),  # two blocks
    ],
)
def test_probe_is_the_minimum_of_a_few_calls(monkeypatch, times, ms):
    one = timed_module.TimedModule(
        timed_module.BenchSetting("cpu", "float32"), table3_names.builders("nmf", 8)[""], (1, 8, 8, 8)
    )
    result = iter(times)
    monkeypatch.setattr(one, "once", lambda mode, calls=1: next(result))
    assert one.probe("infer") == ms
    assert next(result, None) is None


def test_block_alternates_inputs_and_drops_gradients(monkeypatch):
    seen = []
    one = timed_module.TimedModule(
        timed_module.BenchSetting("cpu", "float32"), table3_names.builders("nmf", 8)[""], (1, 8, 8, 8)
    )
    train = one.train

    def spy(x):
        seen.append((x, any(p.grad is not None for p in one.parameters)))
        train(x)

    monkeypatch.setattr(one, "train", spy)
    monkeypatch.setattr(timed_module, "time_call", lambda run, args, device: (run(*args), 12.0)[1])
    assert one.samples("train", 2, calls=4) == [3.0, 3.0]  # of one call
    assert [any(x is expected for expected in one.inputs) for x, _ in seen] == [True] * 8
    assert all(a is not b for (a, _), (b, _) in itertools.pairwise(seen))
    assert not any(grad for _, grad in seen)
    assert all(p.grad is not None for p in one.parameters)  # of the last, after the clock has stopped


def test_module_that_cannot_be_built_gets_an_empty_row():
    plan = table3.Table3Plan(modules=("lightham", "nmf"), sizes=(64,), channels=48, repeats=1, seconds=0)
    refused, run = table3.measure(plan)
    assert refused.note.startswith("refused: create_context: LightHam: 32 groups do not divide channels=48")
    assert refused.params is refused.macs is refused.infer_ms is refused.memory_format is None
    assert run.infer_ms > 0 and run.note == ""


@pytest.mark.parametrize("module", ["sa", "nonlocal"])
def test_fused_and_materialised_builds_are_tried(module):
    plan = table3.Table3Plan(modules=(module, f"{module}-materialised"), sizes=(64,), channels=64, repeats=1, seconds=0)
    free, held = table3.measure(plan)
    assert set(free.note.replace("inference: ", "").replace("training: ", "").split("; ")) <= {"fused", "materialised"}
    assert held.note == ""
    assert (free.params, free.macs) == (held.params, held.macs)


def test_modules_are_built_counted_and_checked_once(monkeypatch):
    done = collections.Counter()

    class Counted(nn.Conv2d):
        def __init__(self, channels):
            super().__init__(channels, channels, 1)
            done["built", self.weight.device.type] += 1

        def forward(self, x):
            done[self.weight.dtype] += 1
            return super().forward(x)

    check_values = module_under_test.Float64Reference.check_values
    monkeypatch.setitem(table3_names.VARIANTS, "counted", {"": Counted})
    monkeypatch.setattr(
        module_under_test.Float64Reference,
        "check_values",
        lambda *args: (done.update(["checked"]), check_values(*args)),
    )
    dtypes, sizes = ("float32", "bfloat16"), (64, 256)
    plan = table3.Table3Plan(modules=("counted",), sizes=sizes, channels=8, dtypes=dtypes, repeats=1, seconds=0)
    assert [row.note for row in table3.measure(plan)] == [""] * 4
    assert done["built", "cpu"] == 1 and done["built", "meta"] == len(sizes)
    assert done["checked"] == len(dtypes)
    assert done[torch.float64] == 1


def test_copy_is_measured_and_the_original_unchanged():
    one = module_under_test.ModuleUnderTest("ema", 16, "cpu", seed=3)
    (build,) = one.builds.values()
    before = {name: value.clone() for name, value in build().state_dict().items()}
    measured = timed_module.TimedModule(
        timed_module.BenchSetting("cpu", "float32"), build, (1, 16, 8, 8), memory_format="channels_last"
    )
    measured.once("train")
    assert any(not torch.equal(value, before[name]) for name, value in measured.module.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in build().state_dict().items())
    torch.manual_seed(3)
    fresh = table3_names.builders("ema", 16)[""]().state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in before.items())


def test_time_budget_covers_the_whole_row(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def clock(run, args, device):
        now[0] += 0.00999 * len(args[1])  # a little less, so that no rounding decides
        return 10.0 * len(args[1])

    monkeypatch.setattr(timed_module, "time_call", clock)
    monkeypatch.setattr(timed_module.TimedModule, "peak", lambda *args: 1.0)
    setting = timed_module.BenchSetting("cpu", "float32", repeats=100, seconds=1.0)
    infer, train = autotune.measure_fastest(
        setting, table3_names.builders("sa", 8), tuple(timed_module.FORMATS), (1, 8, 4, 4)
    )
    # a first call and four to choose by, for both builds in both formats: 0.2 s a mode
    assert (infer.repeats, train.repeats) == (20, 40)
    assert now[0] == pytest.approx(1.0, abs=0.01)
    setting = timed_module.BenchSetting("cpu", "float32", repeats=100, seconds=0.1)
    few = autotune.measure_fastest(setting, table3_names.builders("sa", 8), tuple(timed_module.FORMATS), (1, 8, 4, 4))
    assert [one.repeats for one in few] == [timed_module.MIN_SAMPLES] * 2


@pytest.fixture
def compiled(monkeypatch):
    """Record what is compiled, without compiling it."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    through = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **options: through(module, backend=backend, **options))
    return graphs


@pytest.mark.full
def test_compiled_modules_are_compiled_in_every_row(compiled):
    sizes = tuple(range(16, 28))  # more than the compiler takes for one class before it gives up
    plan = table3.Table3Plan(modules=("external+compile", "external"), sizes=sizes, channels=8, repeats=1, seconds=0)
    result = list(table3.measure(plan))
    assert [(row.module, row.compiled) for row in result[:2]] == [("external+compile", True), ("external", False)]
    assert all(row.infer_ms and row.train_ms and not row.note for row in result)
    assert len(compiled) >= 2 * len(sizes)  # for inference and for training


@pytest.mark.full
def test_compilation_does_not_count_in_the_time_budget(monkeypatch, compiled):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def warm(self, mode):
        now[0] += 30.0

    monkeypatch.setattr(timed_module.TimedModule, "warm", warm)
    monkeypatch.setattr(timed_module.TimedModule, "once", lambda self, mode, calls=1: 10.0)
    setting = timed_module.BenchSetting("cpu", "float32", repeats=12, seconds=1.0)
    builds = table3_names.builders("external", 8)
    measured = list(autotune.measure_fastest(setting, builds, ("contiguous",), (1, 8, 4, 4), compiled=True))
    assert [one.repeats for one in measured] == [12, 12]


def test_garbage_collector_is_restored():
    plan = table3.Table3Plan(modules=("a2",), sizes=(64, 256), channels=8, repeats=1, seconds=0)
    assert len(list(table3.measure(plan))) == 2
    assert gc.get_freeze_count() == 0 and gc.isenabled()


def test_each_dtype_has_its_row():
    plan = table3.Table3Plan(
        modules=("a2",), sizes=(1024,), channels=16, dtypes=("bfloat16", "float32"), repeats=2, max_macs=1e9
    )
    half, full = table3.measure(plan)
    assert (half.dtype, full.dtype) == ("bfloat16", "float32")
    assert half.infer_mb < full.infer_mb
    assert full.max_macs == 1e9 and full.memory_format == "contiguous"
    assert full.infer_repeats >= timed_module.MIN_SAMPLES and full.train_repeats >= timed_module.MIN_SAMPLES
    assert full.infer_block >= 1 and full.train_block >= 1
    assert full.infer_ms_iqr is not None and full.train_ms_iqr is not None


def row(module, n=64, **fields):
    key = {"module": module, "n": n, "dtype": "float32", "batch": 1, "channels": 8, "device": "cpu"}
    return key | {"infer_ms": None} | fields


def test_append_replaces_equal_rows_in_place(tmp_path):
    old = [row("sa-flash", note="not run"), row("nmf"), row("nmf", dtype="tf32")]
    new = [row("sa-flash", infer_ms=1.0), row("nmf", n=256)]
    assert rows.merge_table3_rows(old, new) == [new[0], old[1], old[2], new[1]]
    assert rows.read_table3_rows(tmp_path / "none.jsonl") == []
    (tmp_path / "other.jsonl").write_text(json.dumps(old[0]) + '\n{"ham": "nmf"}\n')
    with pytest.raises(OptionError, match=r"line 2 of .*other.jsonl is not a row of this benchmark"):
        rows.read_table3_rows(tmp_path / "other.jsonl")


def test_rows_have_the_documented_fields():
    plan = table3.Table3Plan(modules=("nmf", "authors-nmf"), sizes=(1024,), channels=16, repeats=2, seconds=0.1)
    for row in map(asdict, table3.measure(plan)):
        assert {
            "module",
            "n",
            "params",
            "macs",
            "device",
            "dtype",
            "hardware",
            "torch",
            "commit",
            "date",
            "seed",
        } <= set(row)
        assert all(row[field] > 0 for field in ("infer_ms", "train_ms", "infer_mb", "train_mb", "params", "macs"))
        assert row["train_mb"] >= row["infer_mb"]


def test_rows_have_the_backend_of_the_environment(monkeypatch):
    plan = table3.Table3Plan(modules=("nmf",), sizes=(64,), channels=8, max_macs=1)
    monkeypatch.delenv("HAM_BACKEND", raising=False)
    assert [row.backend for row in table3.measure(plan)] == ["auto"]
    monkeypatch.setenv("HAM_BACKEND", "plain")
    assert [row.backend for row in table3.measure(plan)] == ["plain"]


def test_modules_above_max_macs_are_counted_but_not_run():
    plan = table3.Table3Plan(modules=("sa",), sizes=(1024,), channels=16, max_macs=1e6)
    (row,) = table3.measure(plan)
    assert row.macs > 1e6 and row.infer_ms is None
    assert "not run" in row.note


@pytest.mark.parametrize(("n", "hw"), [(16384, (128, 128)), (2048, (32, 64)), (97, (1, 97)), (12, (3, 4))])
def test_image_shape_is_as_square_as_possible(n, hw):
    assert table3.image_shape(n) == hw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ("nfm",)}, "did you mean 'nmf'"),
        ({"modules": ()}, "at least one value of modules"),
        ({"dtypes": ()}, "at least one value of dtypes"),
        ({"modules": ("nmf", "a2", "nmf")}, "modules has 'nmf' more than once"),
        ({"sizes": (64, 64)}, "sizes has 64 more than once"),
        ({"dtypes": ("float32", "float32")}, "dtypes has 'float32' more than once"),
        ({"memory_format": "nhwc"}, "no memory format 'nhwc'"),
        ({"max_macs": float("nan")}, "max_macs"),
        ({"sizes": (3,)}, "a size must be a whole number of at least 16"),
        ({"dtypes": ("fp32",)}, "no dtype 'fp32'"),
        ({"dtypes": ("tf32",)}, "tf32 is a mode of CUDA devices"),
        ({"seed": -1}, "seed"),
        ({"seconds": float("nan")}, "seconds"),
    ],
)
def test_messages(options, message):
    with pytest.raises(OptionError, match=message):
        table3.Table3Plan(**({"modules": ("nmf",)} | options))


def command(monkeypatch, *arguments):
    from hamburger import cli

    monkeypatch.setattr(
        "sys.argv", ["ham", "bench", "table3", "--repeats", "1", "--seconds", "0.1", *map(str, arguments)]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_command_writes_rows_and_a_figure(tmp_path, monkeypatch, capsys):
    result, plot = tmp_path / "rows.jsonl", tmp_path / "deep" / "plot.png"
    sizes = ("--modules", "nmf,a2", "--sizes", "64,256", "--channels", 16)
    files = ("--json", result, "--plot", plot, "--csv", tmp_path / "rows.csv")
    assert command(monkeypatch, *sizes, *files) == 0
    assert [line["module"] for line in lines(result)] == ["nmf", "a2"] * 2
    header, *rest = (tmp_path / "rows.csv").read_text().splitlines()
    assert header.startswith("module,n,params,macs,infer_ms") and len(rest) == 4
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "a2" in shown and "growth" in shown


def test_interrupted_run_keeps_its_rows(tmp_path, monkeypatch):
    result = tmp_path / "rows.jsonl"
    through = table3._row

    def row(plan, setting, module, n, environment):
        if module.name == "sgr" and n == 256:
            raise KeyboardInterrupt
        return through(plan, setting, module, n, environment)

    monkeypatch.setattr(table3, "_row", row)
    assert command(monkeypatch, "--modules", "a2,sgr", "--sizes", "64,256", "--channels", 16, "--json", result) != 0
    assert [(line["module"], line["n"]) for line in lines(result)] == [("a2", 64), ("sgr", 64), ("a2", 256)]


@pytest.mark.full
def test_command_takes_several_dtypes_and_appends(tmp_path, monkeypatch, capsys):
    result = tmp_path / "rows.jsonl"
    shape = ("--sizes", 256, "--channels", 16, "--json", result)
    both = ("--modules", "a2,sa", "--dtype", "bfloat16,float32")
    assert command(monkeypatch, *shape, *both, "--max-macs", 2e6, "--plot", tmp_path / "p.png") == 0
    assert [(line["module"], line["dtype"]) for line in lines(result)] == [
        (module, dtype) for dtype in ("bfloat16", "float32") for module in ("a2", "sa")
    ]
    assert {path.name for path in tmp_path.glob("*.png")} == {"p_bfloat16.png", "p_float32.png"}
    before = lines(result)
    assert before[3]["infer_ms"] is None and before[3]["max_macs"] == 2e6
    assert command(monkeypatch, *shape, "--modules", "sa", "--append") == 0
    after = lines(result)
    assert after[:3] == before[:3] and len(after) == 4
    assert after[3]["infer_ms"] > 0 and after[3]["max_macs"] is None
    assert "growth" not in capsys.readouterr().out
    assert command(monkeypatch, "--modules", "sa", "--append") != 0
    assert "name it with --json" in capsys.readouterr().err
