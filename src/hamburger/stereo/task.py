"""Stereo matching as a task: a disparity for every pixel of the left image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import Info
from hamburger.distributed import micro_batch_shares
from hamburger.inference.export import ExportSpec, compare_single_output
from hamburger.registry import options_of
from hamburger.stereo.data import (
    StereoBatch,
    StereoBatches,
    StereoFindings,
    StereoSet,
    check_stereo,
    stereo_sets,
)
from hamburger.stereo.evaluate import StereoScores, evaluate_stereo
from hamburger.stereo.model import StereoNet, create_stereo, select_known
from hamburger.stereo.predict import StereoPredictor, StereoVisualizer
from hamburger.stereo.recipe import StereoRecipe, check_stereo_recipe, stereo_recipes
from hamburger.training.datasets import Progress, check_each
from hamburger.training.loader import batch_options
from hamburger.training.supervised import Splits, describe_data
from hamburger.training.task import Metric, NoteWriter, Task

MAX_DIFFERENCE = 0.05  # pixels by which equal disparities may differ in an exported file


class StereoTask(Task[StereoRecipe]):
    name = "stereo"
    networks = "Stereo networks"
    recipe = StereoRecipe
    recipes = stereo_recipes
    datasets = stereo_sets
    predictor = StereoPredictor
    visualizer = StereoVisualizer
    # fields of StereoScores in evaluate.py, as they are printed
    metrics = (
        Metric("epe", "EPE", "px", higher=False),
        Metric("over_3", "above 3 px", higher=False),
        Metric("over_1", "above 1 px", higher=False),
        Metric("epe_pair_mean", "EPE mean over pairs", "px", higher=False),
        Metric("epe_seen", "EPE seen by both", "px", higher=False, count_field="images_seen"),
        Metric("over_3_seen", "above 3 px seen by both", higher=False, count_field="images_seen"),
    )
    pooled = "the mean distance from the true disparity, over all pixels of the validation split where it is known"
    member_metric = Metric("per_pair", "EPE", "px", higher=False)
    member = "pair"
    absent = "no disparity of the pair is known"

    def check(self, recipe: StereoRecipe, *, processes: int = 1) -> None:
        check_stereo_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def check_data(self, recipe: StereoRecipe, data: Splits[StereoSet], note: NoteWriter, progress: Progress) -> None:
        findings, _ = check_each(data, check_stereo, progress)
        largest, reach = findings.largest / data.train.shrink, recipe.model.max_disparity
        if largest >= reach:
            note(
                f"{recipe.data.name}: training disparities go up to {largest:.0f} px; pixels at or above "
                f"model.max_disparity = {reach} are left out; increase it or data.options.shrink to use them"
            )

    def build(self, recipe: StereoRecipe, data: Splits[StereoSet]) -> StereoNet:
        return create_stereo(**asdict(recipe.model))

    def batches(self, recipe: StereoRecipe, data: Splits[StereoSet], device: torch.device) -> StereoBatches:
        views = {name: getattr(recipe.data, name) for name in ("crop", "flip", "photometric")}
        return StereoBatches(data.train, **views, **batch_options(recipe, device))

    def losses(self, model: nn.Module, micro_batch: StereoBatch, recipe: StereoRecipe) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = model(micro_batch.left, micro_batch.right, micro_batch.disparity)
        return terms

    def loss_weights(self, net: Any, micro_batches: Sequence[StereoBatch]) -> list[dict[str, Tensor]]:
        """All terms are means over the pixels whose disparity is known and below the network's largest."""
        counts = [select_known(part.disparity, net.max_disparity).sum() for part in micro_batches]
        return [{"": share} for share in micro_batch_shares(counts)]

    def info(self, recipe: StereoRecipe, data: Splits[StereoSet]) -> Info:
        return Info(extra={**describe_data(recipe), "seed": recipe.seed, "context": recipe.model.context})

    def about(self, recipe: StereoRecipe) -> dict[str, Any]:
        model = recipe.model
        place = model.place if model.context is not None else None
        return {"volume": model.volume, "context": model.context, "place": place, "data": recipe.data.name}

    def create(self, **config: Any) -> StereoNet:
        return create_stereo(**config)

    # -- scores --------------------------------------------------------------------------------------------------

    def dataset_for(self, name: str, root: Path | None) -> str:
        """The set to evaluate on: if a generated set gets a folder, that of the folder's layout."""
        if root is None or "root" in options_of(self.datasets[name]):
            return name
        frames = [path for place in (root, *root.glob("*/")) for path in place.glob("frames_*/")]
        return "sceneflow" if frames else "middlebury"

    def check_split(self, split: StereoSet) -> StereoFindings:
        return check_stereo(split)

    def evaluate(
        self, net: Any, split: StereoSet, info: Info, *, device: torch.device, workers: int = 4, **options: Any
    ) -> StereoScores:
        """Pairs are evaluated one by one whatever `batch` is, so that a result depends on nothing but the pair."""
        progress, colours = options.get("progress", lambda done, total: None), {"mean": info.mean, "std": info.std}
        return evaluate_stereo(
            net, split, max_disparity=net.max_disparity, device=device, workers=workers, progress=progress, **colours
        )

    # -- use -----------------------------------------------------------------------------------------------------

    def export_spec(self, info: Info) -> ExportSpec:
        return ExportSpec(
            size=(256, 512),
            inputs=("left", "right"),
            outputs=("disparity",),
            compare=compare_single_output(lambda ours, theirs: (ours - theirs).abs() <= MAX_DIFFERENCE),
            values="disparities",
            agreement=f"within {MAX_DIFFERENCE} px of each other",
            dynamic=("batch",),
            static_reason="the network pads images to multiples of 16, and the cost volume is as wide as they are; "
            "write a file for each size with --size height,width",
        )


STEREO = StereoTask()
