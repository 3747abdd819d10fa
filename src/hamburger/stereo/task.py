"""Stereo matching as a task: a disparity for every pixel of the left image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.checkpoints.weights_file import Info
from hamburger.registry import options_of
from hamburger.stereo.data import StereoSet, create_stereo_set, stereo_sets
from hamburger.stereo.data.batches import StereoBatch, StereoBatches
from hamburger.stereo.data.checks import check_stereo
from hamburger.stereo.data.files import StereoFileSet
from hamburger.stereo.evaluate import StereoScores, evaluate_stereo
from hamburger.stereo.model import StereoNet, create_stereo, known, load_stereo, save_stereo
from hamburger.stereo.predict import DEPTH, StereoAnswers
from hamburger.stereo.recipe import STEREO, StereoRecipe
from hamburger.stereo.visualize import StereoShowing
from hamburger.training.builders import check_each, shared
from hamburger.training.task import SINGLE, Graph, Protocol, Task
from hamburger.training.trainer import Supervised


class StereoSplits(NamedTuple):
    train: StereoSet
    val: StereoSet

    @classmethod
    def of(cls, recipe: StereoRecipe, root: Path | None) -> StereoSplits:
        splits = (recipe.data.train_split, recipe.data.val_split)
        return cls(*(create_stereo_set(recipe.data.name, split, root, **recipe.data.options) for split in splits))

    def check(self) -> float:
        """The largest disparity to train on, 0 where pairs are rendered: those have nothing wrong either."""
        train, _ = check_each(self, lambda each: check_stereo(each) if isinstance(each, StereoFileSet) else None)
        return 0.0 if train is None or not isinstance(self.train, StereoFileSet) else train.largest / self.train.shrink

    def digest(self) -> str:
        """Of what decides which pairs a step sees."""
        said = [[each.name, each.split, list(each.ids)] for each in self]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


# ----------------------------------------------------------------------------------------------------------------------
# The training loop of a stereo network: smooth L1 over the known pixels of the whole batch.


class StereoLoop(Supervised[StereoRecipe]):
    def losses(self, parts: Sequence[StereoBatch]) -> Callable[[int], dict[str, Tensor]]:
        shares = self._shares(parts)
        return lambda i: {name: value * shares[i] for name, value in self._forward(parts[i]).items()}

    def _forward(self, part: StereoBatch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.model(part.left, part.right, part.disparity)
        return terms

    def _shares(self, parts: Sequence[StereoBatch]) -> Sequence[Tensor | float]:
        """Of each part in the mean over the known pixels of the whole batch."""
        if len(parts) == 1:
            return [1.0]
        most = self.recipe.model.max_disparity
        counts = distributed.total(torch.stack([known(part.disparity, most).sum() for part in parts])).float()
        return list(counts / counts.sum().clamp_min(1))


# ----------------------------------------------------------------------------------------------------------------------
# Depth from two images: a disparity for every pixel of the left one.


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
