"""Tables of the hams alone, and of rivals next to a ham."""

from __future__ import annotations

from hamburger_lab.pages import hams as ham_page
from hamburger_lab.pages import table3


def ham(backend, n, ms, fraction):
    row = {"ham": "nmf", "mode": "infer", "backend": backend, "n": n, "ms": ms, "fraction_of_floor": fraction}
    sizes = {"b": 1, "d": 512, "r": 64, "steps": 6, "repeats": 8, "seed": 0, "tflops": 762.2, "gbs": 4199.0}
    return row | sizes | {"hardware": "H", "dtype": "bfloat16", "torch": "2", "commit": "abc"}


def test_roofline_table_has_a_row_per_backend():
    text = ham_page.roofline_table(
        [ham("plain", 1024, 0.9, 0.01), ham("fused", 1024, 0.1, 0.2), ham("fused", 4096, 0.3, 0.25)]
    )
    assert "| nmf | infer | plain | 0.900 (0.01) |  |" in text
    assert "| nmf | infer | fused | 0.100 (0.20) | 0.300 (0.25) |" in text
    assert "762 TFLOP/s and copies at 4199 GB/s" in text


def timed(module, ms, commit):
    row = {"module": module, "n": 1024, "dtype": "bfloat16", "infer_ms": ms, "train_ms": 2 * ms, "commit": commit}
    sizes = {"batch": 1, "channels": 512, "threads": 2, "seed": 0, "infer_mb": 1.0, "train_mb": 1.0}
    repeats = {"infer_repeats": 5, "train_repeats": 5, "infer_block": 9, "train_block": 9}
    return row | sizes | repeats | {"hardware": "H", "torch": "2", "note": "", "backend": "auto"}


def test_no_ratio_between_rows_of_different_commits():
    rows = [timed("nmf", 0.5, "new"), timed("a2", 1.0, "new"), timed("a2+compile", 0.8, "old")]
    text = table3.against_ham(rows)
    assert "| a2 | inference | 1 (2.00) |" in text
    assert "| a2+compile | inference | 0.8† |" in text


def test_columns_tables_compare_both_starts():
    common = {"r": 64, "dtype": "float32", "hardware": "H", "torch": "2", "seed": 0, "commit": "abc", "threads": 2}
    sizes = {"d": 1024, "n": 1936, "images": 2}
    rows = [
        {"weights": weights, "stage": stage, "ham": "nmf", "init": start, "steps": count, "error": error}
        | sizes
        | common
        for weights in ("imagenet", "random")
        for stage in ("layer1", "bread")
        for start, count, error in (("random", 2, 0.8), ("random", 6, 0.7), ("columns", 2, 0.6))
    ]
    text = ham_page.columns_error_table(rows)
    assert "| nmf | behind a bread (1024 x 1,936) | random | 0.800 | 0.700 |\n" in text
    assert "| nmf | behind a bread (1024 x 1,936) | columns | 0.600 |  |\n" in text
    assert text.index("behind a bread") < text.index("All 12 errors") < text.index("layer1")
    timed = [
        {"ham": "vq", "init": start, "steps": count, "n": 1024, "ms": ms, "ms_iqr": 0.5, "c": 512, "repeats": 9}
        | common
        for start, count, ms in (("random", 6, 30.0), ("columns", 2, 12.0))
    ]
    assert "| vq | 1,024 | 30.0 (0.5) | 12.0 (0.5) | 2.50 |" in ham_page.columns_time_table(timed)


def test_products_table_has_times_and_errors():
    common = {"hardware": "H", "torch": "2", "d": 512, "r": 64, "steps": 6, "repeats": 9, "seed": 0, "commit": "abc"}
    rows = [
        {"ham": "nmf", "mode": mode, "input": "noise", "library": library, "dtype": dtype, "n": 1024, "error": 2e-7}
        | {"ms": ms, "ms_iqr": 0.5, "rounding": 1e-7, "residual": residual}
        | common
        for mode, residual in (("infer", 0.5), ("train", None))
        for dtype, times in (
            ("float32", {"mkl": 30.0, "onednn": 15.0}),
            ("bfloat16", {"mkl": 30.0, "onednn": 15.0, "onednn-bfloat16": 10.0}),
        )
        for library, ms in times.items()
    ]
    text = ham_page.products_table(rows)
    for mode in ("infer", "train"):
        assert f"| nmf | {mode} | 1,024 | 30.0 (0.5) | 15.0 (0.5) | 2.00 | 2.0e-07 | 2.0e-07 |" in text
        assert f"| nmf | {mode} | 1,024 | 30.0 (0.5) | 15.0 (0.5) | 10.0 (0.5) | 3.00 |" in text
    assert "| nmf | infer | noise | 1,024 | 2.0e-07 | 2.0e-07 | 1.0e-07 | 0.5000 | 0.5000 |" in text
    assert "| nmf | train | noise | 1,024 | 2.0e-07 | 2.0e-07 | 1.0e-07 |  |  |" in text


def test_deploy_table_compares_with_onnxruntime():
    common = {"recipe": "R", "side": 352, "hardware": "H", "repeats": 9, "commit": "abc", "version": "2", "ms_iqr": 0.5}
    runtimes = (("torch.compile", 40.0), ("onnxruntime", 20.0))
    text = ham_page.deploy_table([{"runtime": name, "dtype": "float32", "ms": ms} | common for name, ms in runtimes])
    assert "| torch.compile | float32 | 40.0 (0.5) | 0.50 |" in text and "torch 2, onnxruntime 2" in text
