"""The trained weights that this project publishes: names, and the hub repositories that hold them."""

from __future__ import annotations

# name -> repository on the Hugging Face hub, whose model.safetensors `hamburger.load` downloads. None is published yet.
SHIPPED: dict[str, str] = {}
