"""The paper's GAN recipes, and shorter ones for sets that fit a small machine."""

from __future__ import annotations

from dataclasses import replace

from hamburger.gan.settings import paper_settings
from hamburger.recipes.gan_base import Collapse, GanRecipe, Images, Networks, TwoRates, gan_recipes

# running statistics of batch norm at the paper's rate of 0.001 follow 2,000,000 steps; short runs need more
SHORT_NORM = 0.01


def _paper(name: str) -> GanRecipe:
    settings = paper_settings(name)
    beta1, beta2 = settings.betas
    return GanRecipe(
        name=name,
        model=Networks(name=name, resolution=128),
        data=Images(name="imagenet"),
        optim=TwoRates(
            generator_lr=settings.generator_rate,
            discriminator_lr=settings.discriminator_rate,
            beta1=beta1,
            beta2=beta2,
            discriminator_steps=settings.discriminator_steps,
            decay_from=settings.decay_from,
        ),
        batch=settings.batch,
        made_batch=settings.made_batch,
        steps=settings.steps,
        # as TPUs, on which all but SNGAN were trained, take bfloat16 operands for their products; SNGAN's was float32
        precision="bf16",
        channels_last=True,
        checkpoint_every=5_000,
        sample_every=5_000,
        log_every=100,
    )


@gan_recipes.register("sngan")
def sngan() -> GanRecipe:
    """Miyato & Koyama: ImageNet at 128 pixels, 450,000 steps, five of the discriminator (64 real, 64 made) to one of
    the generator (128 made). Without a context.
    """
    return _paper("sngan")


@gan_recipes.register("sagan")
def sagan() -> GanRecipe:
    """Zhang et al.: 1,000,000 steps of 256 images, attention at 32 x 32."""
    return _paper("sagan")


@gan_recipes.register("ylg")
def ylg() -> GanRecipe:
    """Daras et al.: 1,000,000 steps of 1,024 images, sparse attention at 32 x 32; its batch is inferred."""
    return _paper("ylg")


@gan_recipes.register("hamgan-baby")
def hamgan_baby() -> GanRecipe:
    """Table 6: ImageNet at 128 pixels, 2,000,000 steps of 256 images, as SAGAN was trained."""
    return _paper("hamgan-baby")


@gan_recipes.register("hamgan-strong")
def hamgan_strong() -> GanRecipe:
    """Table 6: 1,000,000 steps of 1,024 images, as YLG was trained; on few GPUs with --set accumulate=..."""
    return _paper("hamgan-strong")


@gan_recipes.register("cifar10")
def cifar10() -> GanRecipe:
    """CIFAR-10 at 32 pixels, minutes on one GPU; the paper has no such row. SAGAN's rates, SNGAN's betas: at equal
    rates, one step to one, the discriminator cannot tell real from made after some thousand steps.
    """
    return GanRecipe(
        name="cifar10",
        model=Networks(resolution=32, options={"norm_momentum": SHORT_NORM}),
        data=Images(name="cifar10", flip=True),
        optim=TwoRates(generator_lr=1e-4, discriminator_lr=4e-4, beta2=0.9),
        batch=64,
        steps=30_000,
        precision="bf16",
        channels_last=True,
        average=0.999,
        average_from=1_000,
        checkpoint_every=5_000,
        sample_every=2_500,
        log_every=100,
    )


@gan_recipes.register("tiny-imagenet")
def tiny_imagenet() -> GanRecipe:
    """Classes of Tiny-ImageNet at 64 pixels, on one GPU. With 5,000 images a discriminator soon knows them by heart."""
    return replace(
        cifar10(),
        name="tiny-imagenet",
        model=Networks(resolution=64, width=32, options={"norm_momentum": SHORT_NORM}),
        data=Images(name="tiny-imagenet", flip=True),
        steps=15_000,
    )


@gan_recipes.register("figures")
def figures() -> GanRecipe:
    """The embedded default: coloured figures of 32 x 32, two minutes on two idle cores."""
    return GanRecipe(
        name="figures",
        model=Networks(
            resolution=32,
            latent=32,
            width=16,
            options={
                "generator_multipliers": [4, 4, 4, 1],
                "discriminator_multipliers": [1, 4, 4, 4],
                "discriminator_downs": 3,
                "context_at": 8,  # where both networks have the 64 channels that YLG's eight heads need
                "norm_momentum": 0.1,
            },
        ),
        data=Images(name="figures", workers=0),
        optim=TwoRates(generator_lr=2e-3, discriminator_lr=2e-3, beta2=0.9),  # by eye, of 0.5e-3 ... 2e-3
        collapse=Collapse(patience=100),
        batch=32,
        steps=400,
        average=0.98,
        average_from=50,
        checkpoint_every=100,
        sample_every=50,
        log_every=10,
    )


@gan_recipes.register("folder")
def folder() -> GanRecipe:
    """A person's own pictures, one directory per class, at 64 pixels."""
    return replace(tiny_imagenet(), name="folder", data=Images(name="folder", flip=True))
