"""The commands that make the rows of an ablation, as a person types them."""

from __future__ import annotations

ANIMALS = (
    "--recipe voc-animals --data VOC --set steps=1000 --set model.pretrained=resnet50_v1_imagenet_int8.safetensors"
)


def ablate(name: str, *, seeds: int = 3, jobs: int = 6, out: str | None = None) -> str:
    """On photographs, with a ResNet-50 that has seen ImageNet. Grids in one `out` share the trainings of both."""
    numbers = ",".join(map(str, range(seeds)))
    return (
        f"ham ablate {name} {ANIMALS} --seeds {numbers} --jobs {jobs} --out runs/{out or name} "
        f"--json results/ablation_{name}_voc-animals_h200.jsonl"
    )
