"""The demonstration as a table, a picture and a JSON file."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamburger.recovery.recovery import Recovery
from hamburger.recovery.scene import Scene, as_rgb

if TYPE_CHECKING:
    from rich.table import Table


def table(found: Sequence[Recovery]) -> Table:
    from rich.table import Table

    made = Table(
        title="recovery of a low-rank scene from noise", caption="svd: nearest to the noisy input at this rank"
    )
    made.add_column("method")
    for heading in ("sweeps", "relative error", "PSNR gain dB", "against svd", "ms"):
        made.add_column(heading, justify="right")
    svd = next(one.error for one in found if one.method == "svd")
    for one in found:
        verdict = "" if one.method in ("svd", "noisy") else "better" if one.error < svd else "worse"
        sweeps = "" if one.steps is None else str(one.steps)
        made.add_row(one.method, sweeps, f"{one.error:.3f}", f"{one.psnr_gain_db:+.1f}", verdict, f"{one.ms:.1f}")
    return made


def picture(scene: Scene, found: Sequence[Recovery]) -> bytes:
    """Clean, noisy and all recoveries side by side, as a PNG."""
    from matplotlib.figure import Figure

    tiles = [("clean", scene.clean)]
    for one in found:
        sweeps = "" if one.steps is None else f", {one.steps} sweeps"
        tiles.append((f"{one.method}{sweeps}\nerror {one.error:.3f}", one.estimate))
    columns = -(-len(tiles) // 2)  # rounded up
    figure = Figure(figsize=(2.6 * columns, 6), layout="constrained")
    axes = figure.subplots(2, columns).flatten()
    for axis in axes:
        axis.set_axis_off()
    for axis, (title, matrix) in zip(axes, tiles, strict=False):
        axis.imshow(as_rgb(matrix, scene.height, scene.width).numpy(), interpolation="nearest")
        axis.set_title(title, fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def as_json(found: Sequence[Recovery], **settings: object) -> bytes:
    fields = ("method", "steps", "error", "psnr_gain_db", "ms")
    rows = [{field: getattr(one, field) for field in fields} for one in found]
    return (json.dumps({**settings, "recoveries": rows}, indent=2) + "\n").encode()
