"""Run folders as training writes them, in milliseconds: small numbers, untrained networks, generated scenes."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from hamburger.segmentation import Info, save_weights
from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.model import create_model
from hamburger.segmentation.recipe import SegmentationData, SegmentationModel, SegmentationRecipe
from hamburger.training.recipe import to_json

OPTIONS = {"size": 32, "length": 5}
MODEL = SegmentationModel(backbone="tiny", output_stride=4, backbone_options={"width": 8}, head_options={"width": 16})
RECIPE = SegmentationRecipe(
    "patchwork", model=MODEL, data=SegmentationData(name="patchwork", options=OPTIONS), steps=40, batch=4
)


@pytest.fixture
def make_run(tmp_path):
    """`make_run("nmf", seed=1, miou=0.7)` -> the folder; keywords replace what the run would have written."""

    def make(
        context, *, seed=0, miou=0.5, options=None, weights=False, curves=True, finished=True, name=None, **changes
    ):
        model = dataclasses.replace(MODEL, context=context, context_options=options or {})
        recipe = dataclasses.replace(RECIPE, model=model, seed=seed, **changes)
        run = tmp_path / "runs" / (name or f"{context}-{seed}")
        run.mkdir(parents=True)
        (run / "recipe.json").write_text(to_json(recipe))
        data = create_dataset("patchwork", "val", **OPTIONS)
        if curves:
            rows = [{"step": step, "loss": 2.0 - step / 40 + seed / 100} for step in (10, 20, 30, 40)]
            rows += [{"step": step, "miou": miou * step / 40} for step in (20, 40)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if finished:
            result = {"miou": miou, "seed": seed, "steps": 40, "protocol": "single scale", "hardware": "a <small> box"}
            result |= {
                "parameters": 12345,
                "images_per_s": 10.5 + seed,
                "peak_mb": 321.0,
                "torch": "2.0",
                "commit": "c0ffee",
            }
            per_class = {label: miou + 0.01 * place for place, label in enumerate(data.classes)}
            result["per_class"] = per_class | {data.classes[-1]: None}
            (run / "result.json").write_text(json.dumps(result))
        if weights:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                net = create_model(
                    backbone="tiny",
                    output_stride=4,
                    backbone_options={"width": 8},
                    head_options={"width": 16},
                    num_classes=len(data.classes),
                    context=context,
                    context_options=options or {"rank": 4} if context in ("nmf", "vq", "cd") else {},
                )
            save_weights(run / "best.safetensors", net, Info(classes=data.classes, palette=data.palette))
        return run

    return make
