"""GAN recipes: the numbers of the papers, and errors for invalid fields."""

from __future__ import annotations

import pytest

from hamburger.errors import OptionError
from hamburger.generation.recipe import GanRecipe, check_gan_recipe, gan_recipes
from hamburger.tasks import find_gan_recipe
from hamburger.training.recipe import apply, digest, read_recipe, to_json


@pytest.mark.parametrize(
    ("name", "batch", "steps"),
    [("hamgan-baby", 256, 2_000_000), ("hamgan-strong", 1024, 10**6), ("sagan", 256, 10**6), ("ylg", 1024, 10**6)],
)
def test_recipes_of_the_papers(name, batch, steps):
    recipe = find_gan_recipe(name)
    assert (recipe.batch, recipe.made_batch, recipe.steps) == (batch, None, steps)
    assert (recipe.optim.generator_lr, recipe.optim.discriminator_lr) == (1e-4, 4e-4)
    assert (recipe.optim.beta1, recipe.optim.beta2, recipe.optim.discriminator_steps) == (0.0, 0.999, 1)
    assert recipe.optim.decay_from is None
    assert (recipe.model.name, recipe.model.resolution, recipe.model.latent, recipe.model.width) == (name, 128, 128, 64)
    assert (recipe.average, recipe.data.flip, recipe.data.name) == (None, False, "imagenet")


def test_sngan_has_its_own_schedule():
    recipe = find_gan_recipe("sngan")
    assert (recipe.batch, recipe.made_batch, recipe.steps) == (64, 128, 450_000)
    assert (recipe.optim.generator_lr, recipe.optim.discriminator_lr) == (2e-4, 2e-4)
    assert (recipe.optim.beta1, recipe.optim.beta2, recipe.optim.discriminator_steps) == (0.0, 0.9, 5)
    assert recipe.optim.decay_from == 400_000
    assert (recipe.model.name, recipe.model.context, recipe.data.name) == ("sngan", "own", "imagenet")


def test_recipes_without_made_batch_keep_their_digest():
    """Runs from before this field existed can be resumed."""
    assert digest(find_gan_recipe("hamgan-baby")) == "a91a9d0a733d9eef"
    assert digest(apply(find_gan_recipe("hamgan-baby"), ["made_batch=512"])) != "a91a9d0a733d9eef"


@pytest.mark.parametrize("name", gan_recipes.names())
def test_every_recipe_can_be_run_and_stored(name):
    recipe = gan_recipes.create(name)
    check_gan_recipe(recipe)
    assert recipe.name == name
    assert 0 < recipe.collapse.patience < recipe.steps, "otherwise a collapsed run would never be stopped"
    assert read_recipe(to_json(recipe), GanRecipe) == recipe


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("model.name=hamgn", "did you mean 'hamgan'"),
        ("model.options.norm_momentun=1", "did you mean 'norm_momentum'"),
        ("model.options.width=1", "has its own field"),
        ("optim.discriminator_steps=0", "at least 1"),
        ("optim.decay_from=400", "must be below 400"),
        ("optim.generator_lr=0", "above 0"),
        ("average=2", "at most 1"),
        ("batch=1", "batch norm needs two"),
        ("made_batch=1", "--set made_batch=2"),
        ("precision=8", "precision"),
        ("collapse.patience=-1", "at least 0"),
    ],
)
def test_invalid_fields(setting, complaint):
    with pytest.raises(OptionError, match=complaint):
        check_gan_recipe(apply(find_gan_recipe("figures"), [setting]))
