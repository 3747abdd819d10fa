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
    common = {"hardware": "H", "dtype": "float32", "torch": "2", "d": 512, "r": 64, "steps": 6, "repeats": 9, "seed": 0}
    rows = [
        {"ham": "nmf", "mode": mode, "library": library, "n": 1024, "ms": ms, "ms_iqr": 0.5, "error": error}
        | common
        | {"commit": "abc"}
        for mode, error in (("infer", 2e-7), ("train", None))
        for library, ms in (("mkl", 30.0), ("onednn", 15.0))
    ]
    text = ham_page.products_table(rows)
    assert "| nmf | infer | 1,024 | 30.0 (0.5) | 15.0 (0.5) | 2.00 | 2.0e-07 | 2.0e-07 |" in text
    assert "| nmf | train | 1,024 | 30.0 (0.5) | 15.0 (0.5) | 2.00 |  |  |" in text
