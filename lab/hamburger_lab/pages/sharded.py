"""The time of a Hamburger on a map whose positions are on up to 1,024 GPUs: recorded messages, a modelled network.

    t(bytes, P) = launch + 2 (log2 min(P, 8) a_in + log2 max(P / 8, 1) a_out) + 2 bytes / B

A tree adds the numbers on the way up and sends the sum on the way down: two passes of log2 P hops. Machines have 8
GPUs. A broadcast is one pass. Bandwidth B is that of the slowest link. The positions per GPU are constant, so the time
of the solve is measured on one GPU. Batch norm counts with its two all-reduces on CPUs; on GPUs torch's gathers as
little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamburger_lab.markdown import markdown_table
from hamburger_lab.rows import Row, select_rows

# Assumed, not measured: round numbers for 8 GPUs on NVLink and one 400 Gb/s network card per GPU.
GPUS_PER_MACHINE = 8
LAUNCH_US = 10.0  # of one collective
INSIDE_US, INSIDE_GBS = 3.0, 300.0  # a hop within a machine, and its bandwidth
BETWEEN_US, BETWEEN_GBS = 8.0, 40.0  # a hop between machines
GPUS = (8, 64, 1_024)
POSITIONS = 16_384  # on every GPU


def message_ms(kind: str, size: int, gpus: int) -> float:
    """Return the modelled time of one message of `size` bytes."""
    machines = max(gpus / GPUS_PER_MACHINE, 1.0)
    hops_us = math.log2(min(gpus, GPUS_PER_MACHINE)) * INSIDE_US + math.log2(machines) * BETWEEN_US
    transfer_us = size / (BETWEEN_GBS if machines > 1 else INSIDE_GBS) / 1e3
    passes = {"all_reduce": 2, "broadcast": 1}[kind]
    return (LAUNCH_US + passes * (hops_us + transfer_us)) / 1e3


def time_table(messages: Sequence[Row], times: Sequence[Row]) -> str:
    """Return the modelled times of a forward pass in training; messages: recorded, times: of solves on one GPU."""
    lines = []
    for ham in dict.fromkeys(row["ham"] for row in messages):
        rows = select_rows(messages, ham=ham)
        sent = rows[0]["forward"]
        if any(row["forward"] != sent for row in rows):
            raise ValueError(f"sharded_messages: the messages of {ham} depend on the processes or positions")
        row = rows[0]
        size = 4 * row["d"] * row["r"]  # of the bases: a step's message holds as many sums, and a few more
        steps = [each for kind, each in sent if kind == "all_reduce" and each >= size]
        select = {"ham": ham, "n": POSITIONS, "d": row["d"], "r": row["r"], "steps": row["steps"]}
        (solve,) = select_rows(times, backend="plain", mode="infer", **select)
        for gpus in GPUS:
            ham_ms = sum(message_ms("all_reduce", each, gpus) for each in steps)
            all_ms = sum(message_ms(kind, each, gpus) for kind, each in sent)
            cells = [f"{gpus * POSITIONS:,}", f"{len(steps)} x {steps[0] / 1024:.0f}", f"{solve['ms']:.2f}"]
            lines.append([ham, f"{gpus:,}", *cells, f"{ham_ms:.2f}", f"{all_ms:.2f}"])
    header = ["ham", "GPUs", "positions", "all-reduces of the steps, KiB", "solve, ms", "steps' messages, ms"]
    fused = {
        n: next(iter(select_rows(times, ham="nmf", backend="fused", mode="infer", n=n)), None)
        for n in (POSITIONS, 16 * POSITIONS)
    }
    alone = ", ".join(f"{row['ms']:.2f} ms for {n:,} positions" for n, row in fused.items() if row)
    r = messages[0]
    return (
        f"{markdown_table([*header, 'all messages, ms'], lines)}\n\n"
        f"{POSITIONS:,} positions on each GPU, b = {r['b']}, d = {r['d']}, r = {r['r']}, K = {r['steps']}. The solve "
        f"was measured in plain torch on one {solve['hardware']} (`ham bench ham`). Message sizes were recorded with "
        f"{' and '.join(str(p) for p in dict.fromkeys(row['processes'] for row in messages))} processes "
        f"(`lab/experiments/sharded_messages.py`). Their times are a model, not a measurement. It assumes trees of "
        f"{INSIDE_US:g} us per hop and {INSIDE_GBS:g} GB/s within a machine of {GPUS_PER_MACHINE} GPUs, "
        f"{BETWEEN_US:g} us and {BETWEEN_GBS:g} GB/s between machines, and {LAUNCH_US:g} us to launch a collective. "
        f"All messages are those of the steps, the initial bases and batch norm. Fused on one GPU, NMF takes {alone}."
    )
