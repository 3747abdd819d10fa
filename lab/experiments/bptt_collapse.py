"""Why training by BPTT through VQ and CD collapses: one variant, one seed, with gradient norms at every step.

    python lab/experiments/bptt_collapse.py --list
    HAM_BACKEND=plain python lab/experiments/bptt_collapse.py vq-plain --seed 0 --data VOC \\
        --pretrained resnet50_v1_imagenet_int8.safetensors --json results/bptt_voc-animals_h200.jsonl

Protocol
- HamNet with a ResNet-50 at stride 16 on seven classes of VOC (recipe `voc-animals`), 400 steps of 16 crops of 257
  pixels, bf16, the weights of the last step. `--data` names a folder with images/, labels/, classes.txt,
  animals_train.txt and animals_val.txt.
- A cell is a ham and a variant, such as `vq-plain`: BPTT through six steps, with one thing changed. `onestep` is the
  reference that trains, `plain` the collapse.
- Recorded at every step: the norm of all gradients before clipping, and of dL/dX and dL/dY at the ham, X being what it
  decomposes and Y = D C. Their ratio, the gain, is what the ham does to the gradient.
- `HAM_BACKEND=plain` runs every variant by the same program.

The command writes one row for the cell and seed into the file of `--json`, in place of an older one; a loss that is not
finite is a result too. `--series FILE` keeps the values of every step. `--tiny` replaces backbone, crop and batch by
toy sizes for a CPU: it tests the script, and its scores mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger.environment import describe_environment
from hamburger.errors import TrainingError
from hamburger.files import write_json_lines
from hamburger.hams import cosine
from hamburger.layers.burger import Hamburger
from hamburger.segmentation.evaluate import SegmentationScores
from hamburger.segmentation.recipe import ANIMALS, SegmentationRecipe, voc_animals
from hamburger.segmentation.task import SegmentationTask
from hamburger.training.supervised import SINGLE_SCALE, EvaluationProtocol
from hamburger.training.train import train
from hamburger_lab.rows import read_json_lines
from hamburger_lab.size_batches import count_confusion

BPTT = {"grad": "bptt", "steps": 6}
STEPS = 400
RECORDED = ("total", "ham_in", "ham_out")


@dataclass(frozen=True)
class BpttVariant:
    """What a variant changes: options of the Hamburger, fields of optimiser and recipe, and the tweaks below."""

    options: Mapping[str, Any] = field(default_factory=dict)
    optim: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    warmup: float = 0.0  # share of the training
    clip_value: float | None = None  # largest absolute entry of a gradient
    gamma: float | None = None  # initial weight of the norm after the upper bread
    frozen: str | None = None  # of the backbone: "norms" or "all"
    constant_norms: bool = False  # |x| is a constant in the gradient of every step
    only: str | None = None  # the one ham that it applies to

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults, for the row."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "only" and value not in ({}, None, 0.0, False)
        }


VARIANTS = {
    "plain": BpttVariant(),
    "onestep": BpttVariant(options={"grad": "one-step"}),
    "T1": BpttVariant(options={"temperature": 1.0}),  # the default, also of the paper's tables, is 0.01
    "T0.1": BpttVariant(options={"temperature": 0.1}),
    "value0.01": BpttVariant(clip_value=0.01),
    "K2": BpttVariant(options={"steps": 2}),  # in evaluation too
    "fp32": BpttVariant(recipe={"precision": "32"}),
    "lr0.1": BpttVariant(optim={"lr": 9e-4}),
    "frozenbn": BpttVariant(frozen="norms"),
    "warmup": BpttVariant(warmup=0.5),
    "gamma0": BpttVariant(gamma=0.0),
    "clip1": BpttVariant(optim={"clip": 1.0}),
    "K3": BpttVariant(options={"steps": 3}),
    "value1": BpttVariant(clip_value=1.0),
    "gamma0.1": BpttVariant(gamma=0.1),
    "cnorm": BpttVariant(options={"constant_norms": True}, only="vq"),  # in the read-out alone
    "frozennet": BpttVariant(frozen="all"),  # only the head learns
    "trunc3": BpttVariant(options={"grad": "truncated:3"}),  # six steps forward, three backward
    "trunc2": BpttVariant(options={"grad": "truncated:2"}),
    "cnorm-all": BpttVariant(constant_norms=True),
}
CELLS = [
    f"{ham}-{name}"
    for name, variant in VARIANTS.items()
    for ham in ("vq", "cd")
    if variant.only is None or variant.only == ham
]


class GradientRecorder:
    """Keeps the gradient norms of every step on the device; `series` reads them once."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {name: [] for name in RECORDED}

    def record(self, name: str, gradient: Tensor) -> None:
        self.values[name].append(gradient.detach().float().norm())

    def watch_ham(self, burger: Hamburger) -> None:
        """Record the gradients at the input and the output of the ham."""

        def at_ham(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if torch.is_grad_enabled() and inputs[0].requires_grad:
                inputs[0].register_hook(lambda gradient: self.record("ham_in", gradient))
                output.register_hook(lambda gradient: self.record("ham_out", gradient))

        burger.ham.register_forward_hook(at_ham)

    def record_total(self, parameters: Sequence[nn.Parameter]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self.values["total"].append(torch.stack(torch._foreach_norm(gradients)).norm())

    def series(self) -> dict[str, list[float | None]]:
        """Return the norms by step, None where one is not finite, and the gain ham_in / ham_out."""
        series = {
            name: [round_digits(value) for value in (torch.stack(norms).tolist() if norms else [])]
            for name, norms in self.values.items()
        }
        pairs = zip(series["ham_in"], series["ham_out"], strict=True)
        series["gain"] = [round_digits(a / b) if a is not None and b else None for a, b in pairs]
        return series


class RecordedSegmentation(SegmentationTask):
    """Segmentation with the tweaks of a variant, which records gradients and keeps the last confusion matrix."""

    def __init__(self, variant: BpttVariant, *, workers: int) -> None:
        self.variant, self.workers = variant, workers
        self.recorder = GradientRecorder()
        self.matrix: Tensor | None = None
        self.watched = False

    def build(self, recipe: SegmentationRecipe, data: Any) -> Any:
        net = super().build(recipe, data)
        (burger,) = [module for module in net.modules() if isinstance(module, Hamburger)]
        if self.variant.gamma is not None:
            nn.init.constant_(burger.norm.weight, self.variant.gamma)  # type: ignore[arg-type]
        if self.variant.frozen is not None:
            freeze(net.backbone, norms_only=self.variant.frozen == "norms")
        self.recorder.watch_ham(burger)
        return net

    def before_step(self, trainer: Any, step: int, micro_batches: Sequence[Any]) -> None:
        super().before_step(trainer, step, micro_batches)
        if not self.watched:
            self.watched = True
            self.watch_steps(trainer)

    def watch_steps(self, trainer: Any) -> None:
        """Record the norm of all gradients once a step: before clipping where there is any, else before the update."""
        parameters = [parameter for parameter in trainer.net.parameters() if parameter.requires_grad]
        clips = trainer.recipe.optim.clip is not None
        clip_gradients = trainer.accelerator.clip_gradients

        def record_and_clip(*args: Any, **kwargs: Any) -> Any:
            self.recorder.record_total(parameters)
            return clip_gradients(*args, **kwargs)

        def before_update(*_: Any) -> None:
            if not clips:
                self.recorder.record_total(parameters)
            if self.variant.clip_value is not None:
                nn.utils.clip_grad_value_(parameters, self.variant.clip_value)

        trainer.accelerator.clip_gradients = record_and_clip
        trainer.optimizer.register_step_pre_hook(before_update)

    def save(self, path: Path, net: Any, info: Any, *, durable: bool = True) -> None:
        """Write no weights: nothing reads them."""

    def evaluate(
        self,
        net: nn.Module,
        split: Any,
        info: Any,
        *,
        batch: int = 16,
        workers: int = 0,
        protocol: EvaluationProtocol = SINGLE_SCALE,
        **options: Any,
    ) -> SegmentationScores:
        """Score in float32, up to 16 images of one size at once, and keep the confusion matrix."""
        counts = count_confusion(net, split, info, batch=16, workers=self.workers, **options)
        self.matrix = counts.matrix
        return SegmentationScores.of(counts, split, SINGLE_SCALE)


def freeze(backbone: nn.Module, *, norms_only: bool) -> None:
    """Run batch norm with its pretrained statistics and fix its weights; fix all other weights too by default."""
    norms = [module for module in backbone.modules() if isinstance(module, _BatchNorm)]
    for module in norms if norms_only else [backbone]:
        module.requires_grad_(False)
    train_backbone = backbone.train

    def train_without_norms(mode: bool = True) -> nn.Module:
        train_backbone(mode)
        for norm in norms:
            norm.eval()
        return backbone

    backbone.train = train_without_norms  # type: ignore[method-assign]
    backbone.train()


@contextmanager
def constant_norms(enabled: bool) -> Iterator[None]:
    """Take |x| out of the gradient of the cosine in every step; its value stays."""
    original = cosine.inverse_norms
    if enabled:
        cosine.inverse_norms = lambda x: original(x.detach())
    try:
        yield
    finally:
        cosine.inverse_norms = original


def build_recipe(
    ham: str, variant: BpttVariant, seed: int, *, pretrained: Path | None, steps: int, tiny: bool
) -> SegmentationRecipe:
    """Return the recipe of a cell."""
    base = voc_animals()
    warmup = {"warmup": int(variant.warmup * steps)} if variant.warmup else {}
    recipe = replace(
        base,
        model=replace(
            base.model,
            context=ham,
            context_options={**BPTT, **variant.options},
            pretrained=None if pretrained is None else str(pretrained),
        ),
        data=replace(
            base.data,
            name="folder",
            options={"classes": list(ANIMALS)},
            train_split="animals_train",
            val_split="animals_val",
            crop=257,
        ),
        optim=replace(base.optim, **variant.optim, **warmup),
        steps=steps,
        eval_every=steps,
        checkpoint_every=steps,
        log_every=min(10, steps),
        keep="last",
        seed=seed,
        **variant.recipe,
    )
    if tiny:
        model = replace(recipe.model, backbone="tiny", backbone_options={}, output_stride=4, head_options={"width": 64})
        data = replace(recipe.data, crop=33, workers=0, resident="no")
        recipe = replace(recipe, model=model, data=data, batch=2, precision="32", channels_last=False, log_every=1)
    return recipe


def round_digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def summarise_series(values: Sequence[float | None]) -> dict[str, float | None] | None:
    """Return maximum, median, and median of the last third (None if a value there is not finite)."""
    finite = sorted(value for value in values if value is not None)
    if not finite:
        return None
    last = values[-max(1, len(values) // 3) :]
    third = [value for value in last if value is not None]
    return {
        "max": finite[-1],
        "median": statistics.median_high(finite),
        "median_of_last_third": statistics.median_high(third) if len(third) == len(last) else None,
    }


def run_cell(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[float | None]]]:
    """Train one cell; return its row and the values of every step."""
    ham, _, name = arguments.cell.partition("-")
    variant = VARIANTS[name]
    recipe = build_recipe(
        ham, variant, arguments.seed, pretrained=arguments.pretrained, steps=arguments.steps, tiny=arguments.tiny
    )
    task = RecordedSegmentation(variant, workers=recipe.data.workers)
    scores: dict[str, Any] = {}
    failure = None
    with tempfile.TemporaryDirectory() as folder, constant_norms(variant.constant_norms):
        try:
            scores = train(task, recipe, Path(folder) / "run", data=arguments.data, light=True).values
        except TrainingError as error:  # a loss or weights that are not finite
            failure = str(error)
    shares = None
    if task.matrix is not None and scores:
        shares = [round_digits(share) or 0.0 for share in (task.matrix.sum(0).double() / task.matrix.sum()).tolist()]
    series = task.recorder.series()
    row = {
        "cell": arguments.cell,
        "ham": ham,
        "variant": name,
        "seed": arguments.seed,
        "steps": arguments.steps,
        "changed": variant.changed,
        "context_options": recipe.model.context_options,
        "recipe": recipe.name,
        "data": f"folder, {recipe.data.train_split} and {recipe.data.val_split}",
        "crop": recipe.data.crop,
        "batch": recipe.batch,
        "precision": recipe.precision,
        **{field: scores.get(field) for field in ("miou", "pixel_accuracy", "per_class")},
        "predicted_share": None if shares is None else dict(zip(ANIMALS, shares, strict=True)),
        "classes_predicted": None if shares is None else sum(share > 0 for share in shares),
        "failure": failure,
        "gradient_norms": {key: summarise_series(values) for key, values in series.items()},
        "backend": os.environ.get("HAM_BACKEND", "auto"),
        **describe_environment("cuda" if torch.cuda.is_available() else "cpu"),
    }
    return row, series


def parse_arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", choices=CELLS, metavar="CELL", help="ham and variant, such as vq-plain")
    parser.add_argument("--list", action="store_true", help="print the names of all cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="the data folder")
    parser.add_argument("--pretrained", type=Path, help="weights of the ResNet-50; default: random")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    parser.add_argument("--json", type=Path, help="result file, one JSON object per line")
    parser.add_argument("--series", type=Path, help="write the gradient norms of every step into this JSON file")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script on a CPU")
    arguments = parser.parse_args(values)
    if not arguments.list and not (arguments.cell and arguments.data and arguments.json):
        parser.error("give a cell, --data and --json, or --list")
    return arguments


def main(values: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(values)
    if arguments.list:
        sys.stdout.write("\n".join(CELLS) + "\n")
        return
    row, series = run_cell(arguments)
    if arguments.series is not None:
        arguments.series.write_text(json.dumps(series))
    key = row["cell"], row["seed"]
    others = [old for old in read_json_lines(arguments.json, "bptt_collapse") if (old["cell"], old["seed"]) != key]
    write_json_lines(arguments.json, [*others, row])
    sys.stdout.write(f"{row['cell']}, seed {row['seed']}: mIoU {row['miou']}, {row['failure'] or 'trained'}\n")


if __name__ == "__main__":
    main()
