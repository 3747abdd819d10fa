"""Stereo matching as a task: a disparity for every pixel of the left image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hamburger.distributed import micro_batch_shares
from hamburger.registry import Registry, options_of
from hamburger.stereo.recipe import StereoRecipe, check_stereo_recipe, stereo_recipes
from hamburger.training.datasets import check_each
from hamburger.training.loader import batch_options
from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol, Score, Task
from hamburger.training.task_outputs import ExportSpec

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.stereo.data import StereoSet
    from hamburger.stereo.data.batches import StereoBatch, StereoBatches
    from hamburger.stereo.evaluate import StereoScores
    from hamburger.stereo.model import StereoNet
    from hamburger.stereo.predict import StereoPredictor
    from hamburger.stereo.visualize import StereoVisualizer


class StereoSplits(NamedTuple):
    """The two data sets of a recipe."""

    train: StereoSet
    val: StereoSet

    @classmethod
    def of(cls, recipe: StereoRecipe, root: Path | None) -> StereoSplits:
        from hamburger.stereo.data import create_stereo_set

        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_stereo_set(recipe.data.name, split, root, **recipe.data.options) for split in splits))

    def check(self) -> float:
        """Check sets in files; return the largest disparity of the training split, 0 for a generated one."""
        from hamburger.stereo.data.checks import check_stereo
        from hamburger.stereo.data.files import StereoFileSet

        train, _ = check_each(self, lambda each: check_stereo(each) if isinstance(each, StereoFileSet) else None)
        return 0.0 if train is None or not isinstance(self.train, StereoFileSet) else train.largest / self.train.shrink

    def digest(self) -> str:
        """A hash of everything that decides which pairs a step uses."""
        content = [[each.name, each.split, list(each.ids)] for each in self]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class StereoTask(Task[StereoRecipe]):
    name = "stereo"
    networks = "Stereo networks"
    recipe = StereoRecipe
    recipes = stereo_recipes
    scores = (
        Score("epe", "EPE", "px", higher=False),
        Score("over_3", "above 3 px", higher=False),
        Score("over_1", "above 1 px", higher=False),
        Score("epe_pair_mean", "EPE mean over pairs", "px", higher=False),
        Score("epe_seen", "EPE seen by both", "px", higher=False, among="images_seen"),
        Score("over_3_seen", "above 3 px seen by both", higher=False, among="images_seen"),
    )
    pooled = "the mean distance from the true disparity, over all pixels of the validation split where it is known"
    member_score = Score("per_pair", "EPE", "px", higher=False)
    member = "pair"
    absent = "no disparity of the pair is known"

    def check(self, recipe: StereoRecipe, *, processes: int = 1) -> None:
        check_stereo_recipe(recipe, processes=processes)

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: StereoRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> StereoSplits:
        splits = StereoSplits.of(recipe, root)
        if first:
            largest, reach = splits.check(), recipe.model.max_disparity
            if largest >= reach:
                note(
                    f"{recipe.data.name}: training disparities go up to {largest:.0f} px; pixels at or above "
                    f"model.max_disparity = {reach} are left out; increase it or data.options.shrink to use them"
                )
        return splits

    def build(self, recipe: StereoRecipe, data: StereoSplits) -> StereoNet:
        from hamburger.stereo.model import create_stereo

        return create_stereo(**asdict(recipe.model))

    def batches(self, recipe: StereoRecipe, data: StereoSplits, device: torch.device) -> StereoBatches:
        from hamburger.stereo.data.batches import StereoBatches

        return StereoBatches(
            data.train,
            crop=recipe.data.crop,
            flip=recipe.data.flip,
            photometric=recipe.data.photometric,
            **batch_options(recipe, device),
        )

    def losses(self, model: nn.Module, micro_batch: StereoBatch, recipe: StereoRecipe) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = model(micro_batch.left, micro_batch.right, micro_batch.disparity)
        return terms

    def loss_weights(self, net: Any, micro_batches: Sequence[StereoBatch]) -> list[dict[str, Tensor]]:
        """All terms are means over the pixels whose disparity is known and below the network's largest."""
        from hamburger.stereo.model import select_known

        counts = [select_known(part.disparity, net.max_disparity).sum() for part in micro_batches]
        return [{"": share} for share in micro_batch_shares(counts)]

    def info(self, recipe: StereoRecipe, data: StereoSplits) -> Info:
        from hamburger.checkpoints.weights_file import Info

        chosen = recipe.data
        extra = {"recipe": recipe.name, "data": chosen.name, "data_options": chosen.options}
        return Info(
            extra={**extra, "val_split": chosen.val_split, "seed": recipe.seed, "context": recipe.model.context}
        )

    def about(self, recipe: StereoRecipe) -> dict[str, Any]:
        model = recipe.model
        place = model.place if model.context is not None else None
        return {"volume": model.volume, "context": model.context, "place": place, "data": recipe.data.name}

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        from hamburger.stereo.model import save_stereo

        save_stereo(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[StereoNet, Info]:
        from hamburger.stereo.model import load_stereo

        return load_stereo(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def datasets(self) -> Registry[Any]:
        from hamburger.stereo.data import stereo_sets

        return stereo_sets

    def dataset_for(self, name: str, root: Path | None) -> str:
        """The set to evaluate on: if a generated set gets a folder, that of the folder's layout."""
        if root is None or "root" in options_of(self.datasets()[name]):
            return name
        frames = [path for place in (root, *root.glob("*/")) for path in place.glob("frames_*/")]
        return "sceneflow" if frames else "middlebury"

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> StereoSet:
        from hamburger.stereo.data import create_stereo_set
        from hamburger.stereo.data.checks import check_stereo
        from hamburger.stereo.data.files import StereoFileSet

        pairs = create_stereo_set(name, split, root, **options)
        if whole and isinstance(pairs, StereoFileSet):
            check_stereo(pairs)
        return pairs

    def evaluate(
        self,
        net: nn.Module,
        split: StereoSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> StereoScores:
        """Pairs are evaluated one by one whatever `batch` is, so that a result depends on nothing but the pair."""
        from hamburger.stereo.evaluate import evaluate_stereo
        from hamburger.stereo.model import StereoNet

        assert isinstance(net, StereoNet)
        return evaluate_stereo(
            net,
            split,
            max_disparity=net.max_disparity,
            device=device,
            mean=info.mean,
            std=info.std,
            workers=workers,
            progress=progress,
        )

    # -- use -----------------------------------------------------------------------------------------------------

    def predictor(self) -> type[StereoPredictor]:
        from hamburger.stereo.predict import StereoPredictor

        return StereoPredictor

    def visualizer(self) -> type[StereoVisualizer]:
        from hamburger.stereo.visualize import StereoVisualizer

        return StereoVisualizer

    def export_spec(self, info: Info) -> ExportSpec:
        from hamburger.stereo.predict import STEREO_EXPORT

        return STEREO_EXPORT


STEREO = StereoTask()
