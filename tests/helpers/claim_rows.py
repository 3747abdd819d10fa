"""Result rows for the tests of claims."""

from __future__ import annotations

from hamburger_lab.claims import Results


def gradient_rows(**figures):
    """Rows of `ham bench gradients`; `figures`: name of a gradient -> (ms at K = 6, ms at 24, MiB at 6, MiB at 24)."""
    return [
        {"ham": ham, "grad": grad.replace("_", "-"), "n": 64, "steps": steps, "hardware": "H", "repeats": 10}
        | {"ms": ms, "ms_iqr": 1.0, "mb": mb}
        for ham in ("nmf", "vq", "cd")
        for grad, (ms6, ms24, mb6, mb24) in figures.items()
        for steps, ms, mb in ((6, ms6, mb6), (24, ms24, mb24))
    ]


def two_sets(name, cells, *, here=lambda cell: cell):
    """The same scores in two files: real images and generated scenes; the latter sorts first by name."""
    about = {"patchwork": ("CPU", lambda cell: cell), "voc-animals": ("H200", here)}
    return Results(
        {
            f"ablation_{name}_{recipe}_x": [
                {"recipe": recipe, "steps": 9, "hardware": hardware, "cell": called(cell), "seed": seed, "miou": 0.5}
                for cell in cells
                for seed in range(3)
            ]
            for recipe, (hardware, called) in about.items()
        }
    )
