"""Depth from two images: a disparity for every pixel of the left one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hamburger.data.stereo import StereoSet, create_stereo_set, stereo_sets
from hamburger.data.stereo.batches import StereoBatches
from hamburger.data.stereo.checks import check_stereo
from hamburger.data.stereo.files import StereoFileSet
from hamburger.engine.assemble import shared
from hamburger.engine.graph import Graph
from hamburger.engine.probabilities import SINGLE, Protocol
from hamburger.engine.stereo.data import StereoSplits
from hamburger.engine.stereo.evaluate import StereoScores, evaluate_stereo
from hamburger.engine.stereo.loop import StereoLoop
from hamburger.engine.task import Task
from hamburger.models.info import Info
from hamburger.models.stereo import StereoNet, create_stereo, load_stereo, save_stereo
from hamburger.recipes.kinds import STEREO
from hamburger.recipes.stereo_base import StereoRecipe
from hamburger.registry import options_of
from hamburger.use.stereo.answers import StereoAnswers
from hamburger.use.stereo.graph import DEPTH
from hamburger.use.stereo.showing import StereoShowing


class Stereo(Task[StereoRecipe]):
    kind = STEREO
    loop = StereoLoop
    sets = stereo_sets
    answers = StereoAnswers
    showing = StereoShowing

    # -- training ------------------------------------------------------------------------------------------------

    def open(
        self, recipe: StereoRecipe, root: Path | None, *, first: bool, note: Callable[[str], object]
    ) -> StereoSplits:
        splits = StereoSplits.of(recipe, root)
        if first:
            largest, reach = splits.check(), recipe.model.max_disparity
            if largest >= reach:
                note(
                    f"{recipe.data.name}: disparities to train on go up to {largest:.0f} px, and what is not below "
                    f"model.max_disparity = {reach} is left out; a larger one, or data.options.shrink, takes it in"
                )
        return splits

    def build(self, recipe: StereoRecipe, data: StereoSplits) -> StereoNet:
        return create_stereo(**asdict(recipe.model))

    def batches(self, recipe: StereoRecipe, data: StereoSplits, device: torch.device) -> StereoBatches:
        return StereoBatches(
            data.train,
            crop=recipe.data.crop,
            flip=recipe.data.flip,
            photometric=recipe.data.photometric,
            **shared(recipe, device),
        )

    def info(self, recipe: StereoRecipe, data: StereoSplits) -> Info:
        asked = recipe.data
        extra = {"recipe": recipe.name, "data": asked.name, "data_options": asked.options}
        return Info(extra={**extra, "val_split": asked.val_split, "seed": recipe.seed, "context": recipe.model.context})

    def about(self, recipe: StereoRecipe) -> dict[str, Any]:
        model = recipe.model
        place = model.place if model.context is not None else None
        return {"volume": model.volume, "context": model.context, "place": place, "data": recipe.data.name}

    # -- weights -------------------------------------------------------------------------------------------------

    def save(self, path: Path, net: Any, info: Info, *, durable: bool = True) -> None:
        save_stereo(path, net, info, durable=durable)

    def load(self, path: Path) -> tuple[StereoNet, Info]:
        return load_stereo(path)

    # -- scores --------------------------------------------------------------------------------------------------

    def set_meant(self, name: str, root: Path | None) -> str:
        """A folder given to weights of a generated set is one of real pairs."""
        if root is None or "root" in options_of(stereo_sets[name]):
            return name
        frames = [path for place in (root, *root.glob("*/")) for path in place.glob("frames_*/")]
        return "sceneflow" if frames else "middlebury"

    def split(
        self, info: Info, name: str, split: str, root: Path | None, options: Mapping[str, Any], *, whole: bool = True
    ) -> StereoSet:
        pairs = create_stereo_set(name, split, root, **options)
        if whole and isinstance(pairs, StereoFileSet):
            check_stereo(pairs)
        return pairs

    def evaluate(
        self,
        net: torch.nn.Module,
        split: StereoSet,
        info: Info,
        *,
        device: torch.device,
        batch: int = 128,
        workers: int = 4,
        channels_last: bool = False,
        protocol: Protocol = SINGLE,
        progress: Callable[[int, int], Any] = lambda done, total: None,
    ) -> StereoScores:
        """One by one whatever `batch` says: then nothing but the pair decides."""
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

    def graph(self, info: Info) -> Graph:
        return DEPTH
