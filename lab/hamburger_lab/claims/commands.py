"""The commands that make the rows of an ablation, as a person types them."""

from __future__ import annotations

ANIMALS = (
    "--recipe voc-animals --data VOC --set model.pretrained=resnet50_v1_imagenet_int8.safetensors --set steps=400 "
    "--set eval_every=400 --set checkpoint_every=400 --set data.crop=257"
)

FIVE = ("parts", "gradient", "init")  # Tables 1, 2 and 8, whose differences are the smallest


def ablate(name: str) -> str:
    """On photographs, with a ResNet-50 that has seen ImageNet. Grids in one folder share the trainings of both."""
    seeds = "0,1,2,3,4" if name in FIVE else "0,1,2"
    return (
        f"ham ablate {name} {ANIMALS} --seeds {seeds} --jobs 12 --out runs/grids "
        f"--json results/ablation_{name}_voc-animals_h200.jsonl"
    )
