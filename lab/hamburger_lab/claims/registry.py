"""All claims, family by family."""

from __future__ import annotations

from hamburger_lab.claims import (
    accuracy,
    angles,
    cost,
    dictionaries,
    generation,
    gradient,
    inside,
    iterations,
    parts,
    sizes,
    theory,
)
from hamburger_lab.claims.base import Claim

FAMILIES = {
    "gradient": "What is differentiated",
    "angles": "Gradients over a training",
    "parts": "Bread, ham, bread",
    "accuracy": "Hams against each other and against attention",
    "init": "Where a solve starts",
    "dictionary": "Stored or drawn dictionaries in evaluation",
    "temperature": "Temperature",
    "latent": "Inner width and rank",
    "steps": "Steps in training and evaluation",
    "inside": "Spectra, feature maps and gradients of trained networks",
    "cost": "Time and memory",
    "generation": "Image generation",
    "propositions": "The propositions",
}
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (
            *gradient.CLAIMS,
            *angles.CLAIMS,
            *parts.CLAIMS,
            *accuracy.CLAIMS,
            *dictionaries.CLAIMS,
            *sizes.CLAIMS,
            *iterations.CLAIMS,
            *inside.CLAIMS,
            *cost.CLAIMS,
            *generation.CLAIMS,
            *theory.CLAIMS,
        ),
        key=lambda claim: list(FAMILIES).index(claim.family),
    )
)
