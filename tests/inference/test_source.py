"""Which weights file a path resolves to."""

from __future__ import annotations

import pytest

from hamburger.errors import InputError
from hamburger.inference.find_weights import find_weights


def touch(folder, *names):
    for name in names:
        (folder / name).touch()


def test_run_folder_resolves_to_its_best_weights(tmp_path):
    touch(tmp_path, "best.safetensors", "recipe.json", "last.ckpt", "model.safetensors", "config.json")
    assert find_weights(tmp_path) == tmp_path / "best.safetensors"
    assert find_weights(tmp_path / "model.safetensors") == tmp_path / "model.safetensors"


def test_hub_folder_resolves_to_its_model(tmp_path):
    touch(tmp_path, "config.json", "model.safetensors")
    assert find_weights(tmp_path) == tmp_path / "model.safetensors"


def test_folder_with_one_weights_file_resolves_to_it(tmp_path):
    touch(tmp_path, "mine.safetensors")
    assert find_weights(tmp_path) == tmp_path / "mine.safetensors"
    touch(tmp_path, "other.safetensors")
    with pytest.raises(InputError, match="holds 2 weights files"):
        find_weights(tmp_path)


def test_invalid_sources_raise_with_advice(tmp_path):
    with pytest.raises(InputError, match="there is no"):
        find_weights(tmp_path / "gone")
    with pytest.raises(InputError, match="holds neither"):
        find_weights(tmp_path)
    touch(tmp_path, "recipe.json")
    with pytest.raises(InputError, match="first evaluation"):
        find_weights(tmp_path)
    touch(tmp_path, "last.ckpt", "best.safetensors")
    with pytest.raises(InputError, match=r"name .*best\.safetensors"):
        find_weights(tmp_path / "last.ckpt")
