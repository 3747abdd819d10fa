"""Training runs of a small GAN: what they write, how they stop, and that they resume bit by bit."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from small_gan import SETTINGS, reproducible_outputs, rows, small, train_small

from hamburger.classification.data.batches import ImageBatch
from hamburger.errors import CheckpointError, DataError, Interrupted, OptionError, TrainingError
from hamburger.generation import trainer
from hamburger.generation.gan_steps import (
    BatchNormAccumulator,
    WeightAverage,
    build_gan,
    compute_discriminator_terms,
    compute_rate_factor,
)
from hamburger.generation.networks import spectral
from hamburger.generation.networks.spectral import SpectralNorm, freeze_power_iterations
from hamburger.generation.recipe import CollapseRule, GanOptim
from hamburger.generation.sampling import sample
from hamburger.generation.train import train_gan
from hamburger.generation.trainer import count_collapse_steps, describe_collapse
from hamburger.generation.weights import load_generator
from hamburger.layers.norm import BatchNorm2d
from hamburger.training.metrics_log import CheckpointSaved, RunStarted, SamplesDrawn, StepLogged


def test_training_on_one_image_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"figures, split 'train', has 1 image; .* at least 2"):
        train_small(tmp_path / "run", "data.options.length=1")
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("gan") / "run"
    events = []
    train_small(run, on_event=events.append)
    return run, events


def test_a_run_writes_all_its_files(finished):
    run, events = finished
    names = {path.name for path in run.iterdir()}
    assert {"recipe.json", "metrics.jsonl", "timings.jsonl", "last.ckpt", "generator.safetensors"} <= names
    assert [row["step"] for row in rows(run)] == [5, 10, 12]
    assert {"discriminator", "generator", "real", "made", "spread", "lr", "loss"} <= rows(run)[0].keys()
    assert [path.name for path in sorted((run / "samples").iterdir())] == ["step-00000006.png", "step-00000012.png"]
    kinds = [type(event) for event in events]
    assert (
        kinds[0] is RunStarted
        and kinds.count(StepLogged) == 3
        and kinds.count(SamplesDrawn) == 2
        and kinds.count(CheckpointSaved) == 3
    )
    logged = next(event for event in events if isinstance(event, StepLogged))
    assert logged.images_per_s > 0 and logged.loss_text.startswith("D ")
    result = reproducible_outputs(run)[1]
    assert (result["context"], result["steps"], result["seed"], result["device"]) == ("hamgan", 12, 0, "cpu")


def test_equal_runs_agree_bit_by_bit_and_seeds_differ(finished, tmp_path):
    train_small(tmp_path / "again")
    assert reproducible_outputs(tmp_path / "again") == reproducible_outputs(finished[0])
    train_small(tmp_path / "other", "seed=1")
    assert rows(tmp_path / "other") != rows(finished[0])


def test_the_saved_generator_can_be_sampled(finished):
    generator, info = load_generator(finished[0] / "generator.safetensors")
    assert info.classes == ("disc", "square", "cross", "ring")
    assert info.extra["step"] == 12 and info.extra["averaged"]
    again = sample(generator, 5, seed=3)
    torch.testing.assert_close(again, sample(generator, 5, seed=3, batch_size=2), rtol=1e-4, atol=1e-5)


def test_an_interrupted_run_resumes_bit_by_bit(finished, tmp_path, monkeypatch):
    run = tmp_path / "run"
    original = trainer.GanTrainer.train_step

    def stop(self, step, batches):
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, step, batches)

    monkeypatch.setattr(trainer.GanTrainer, "train_step", stop)
    with pytest.raises(Interrupted, match=r"stopped at step 7 of 12.*of step 7: continue with --resume"):
        train_small(run)
    monkeypatch.undo()
    train_small(run, resume=True)
    assert reproducible_outputs(run) == reproducible_outputs(finished[0])
    with pytest.raises(OptionError, match="already holds a run"):
        train_small(run)
    with pytest.raises(CheckpointError, match=r"another recipe \(.*steps"):
        train_small(run, "steps=13", resume=True)


@pytest.mark.full
def test_two_ranks_match_a_single_process(tmp_path):
    # rounding differences grow about thirtyfold per step: after more steps they would hide an error
    more = ("log_every=1", "steps=3", "checkpoint_every=100", "average=none")
    train_small(tmp_path / "one", *more)
    settings = [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    words = [sys.executable, "-m", "hamburger", "gan", "train", "figures", "--run", str(tmp_path / "two")]
    done = subprocess.run(
        [*words, "--accelerator", "cpu", "--devices", "2", *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for name in ("discriminator", "generator", "real", "made"):
        one, two = ([row[name] for row in rows(tmp_path / run)] for run in ("one", "two"))
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_under_torchrun_a_damaged_packed_file_is_rebuilt_for_all_ranks(tmp_path, monkeypatch):
    """The processes start together, and only rank 0 verifies the whole file before it is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    drawn = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    for i, pixels in enumerate(drawn):
        path = tmp_path / "images" / "train" / "cd"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    more = ("data.name=folder", "data.options=none", "log_every=1", "steps=3", "checkpoint_every=9", "average=none")
    train_gan(small(*more), tmp_path / "one", data=tmp_path / "images", accelerator="cpu")
    (packed,) = (tmp_path / "cache" / "hamburger" / "images").glob("*.images")
    whole = packed.read_bytes()
    packed.write_bytes(bytes(len(drawn) * 768) + whole[len(drawn) * 768 :])
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    words += [
        "hamburger",
        "gan",
        "train",
        "figures",
        "--run",
        str(tmp_path / "two"),
        "--data",
        str(tmp_path / "images"),
    ]
    words += ["--accelerator", "cpu", *(word for setting in (*SETTINGS, *more) for word in ("--set", setting))]
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("rebuilding it") == 1 and packed.read_bytes() == whole
    for name in ("discriminator", "generator", "real", "made"):
        one, two = ([row[name] for row in rows(tmp_path / run)] for run in ("one", "two"))
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


def test_accumulation_and_several_discriminator_steps(tmp_path):
    more = ("accumulate=2", "optim.discriminator_steps=2", "log_every=1", "steps=3", "average=none")
    train_small(tmp_path / "run", *more)
    assert len(rows(tmp_path / "run")) == 3
    train_small(tmp_path / "half", "precision=bf16", "channels_last=true", "steps=3", "optim.decay_from=1")
    assert rows(tmp_path / "half")[-1]["lr"] == pytest.approx(2e-3 / 2)


def test_the_generator_has_its_own_batch_size(tmp_path, monkeypatch):
    batch_sizes = []
    compute_loss = trainer.generator_hinge

    def recorded(scores):
        batch_sizes.append(len(scores))
        return compute_loss(scores)

    monkeypatch.setattr(trainer, "generator_hinge", recorded)
    train_small(tmp_path / "run", "made_batch=12", "accumulate=2", "steps=2", "average=none")
    assert batch_sizes == [6] * 4


def test_accumulated_gradients_are_those_of_the_whole_batch():
    """For a discriminator, which has no batch norm; one power iteration per part would change them by percents."""
    _, discriminator = build_gan(small("model.context=none", "model.context_options=none"), 4)
    optimizer = torch.optim.Adam(discriminator.parameters(), 1e-2)
    images, made = torch.randn(2, 8, 3, 16, 16).tanh()
    labels, classes = torch.randint(4, (2, 8))
    for _ in range(3):  # so that the vectors lag behind the weights
        compute_discriminator_terms(discriminator, ImageBatch(images, labels), made, classes)[
            "discriminator"
        ].backward()
        optimizer.step()

    def gradients(parts):
        net = copy.deepcopy(discriminator)
        net.zero_grad()
        cut = zip(*(each.chunk(parts) for each in (images, labels, made, classes)), strict=True)
        for i, (x, y, z, c) in enumerate(cut):
            with freeze_power_iterations(net) if i else contextlib.nullcontext():
                (compute_discriminator_terms(net, ImageBatch(x, y), z, c)["discriminator"] / parts).backward()
        assert not any(module.frozen for module in net.modules() if isinstance(module, SpectralNorm))
        return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])

    whole = gradients(1)
    torch.testing.assert_close(gradients(4), whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("parts", [1, 2])
def test_one_power_iteration_per_update(tmp_path, monkeypatch, parts):
    iterations, original = Counter(), spectral._power_iterate

    def counted(norms, times):
        iterations.update({norm: times for norm, _ in norms})
        original(norms, times)

    monkeypatch.setattr(spectral, "_power_iterate", counted)
    train_small(tmp_path / "run", f"accumulate={parts}", "steps=3", "average=none")
    # two updates per step, plus the initial iterations and one at registration of the parametrization
    assert set(iterations.values()) == {spectral.WARM_UP_ITERATIONS + 1 + 2 * 3}


def test_running_statistics_are_updated_once_per_batch():
    """One update towards the mean of the micro-batch statistics, computed with numpy."""
    norm = BatchNorm2d(3, momentum=0.2)
    norm.running_mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
    x = torch.randn(4, 5, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 + 1
    running = BatchNormAccumulator(norm, parts=4)
    for part in x:
        norm(part)
        running.part_done()
    values = x.double().numpy().transpose(0, 2, 1, 3, 4).reshape(4, 3, -1)
    mean, var = values.mean((0, 2)), values.var(2, ddof=1).mean(0)
    np.testing.assert_allclose(norm.running_mean, 0.8 * np.array([1.0, -2.0, 0.5]) + 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(norm.running_var, 0.8 + 0.2 * var, rtol=1e-5)


def test_accumulation_updates_running_statistics_once_per_update(tmp_path, monkeypatch):
    """With two micro-batches they are close to those of the whole batch; two updates would move twice as far."""
    moved = {}
    for parts in (1, 2):
        settings = (f"accumulate={parts}", "batch=16", "steps=1", "average=none", "optim.generator_lr=1e-9")
        train_small(tmp_path / str(parts), *settings)
        generator, _ = load_generator(tmp_path / str(parts) / "generator.safetensors")
        moved[parts] = 1 - float(generator.blocks[0].norm1.norm.running_var.mean())
    assert moved[2] == pytest.approx(moved[1], rel=0.2)


def test_a_cuda_graph_needs_a_gpu(tmp_path):
    with pytest.raises(OptionError, match=r"graph needs a CUDA device, got cpu; --set graph=false"):
        train_small(tmp_path / "run", "graph=true")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_at_once(tmp_path, monkeypatch):
    original = trainer.compute_discriminator_terms

    def poisoned(discriminator, real, made, classes):
        terms = original(discriminator, real, made, classes)
        poisoned.calls += 1
        return {**terms, "discriminator": terms["discriminator"] * (float("nan") if poisoned.calls == 7 else 1)}

    poisoned.calls = 0
    monkeypatch.setattr(trainer, "compute_discriminator_terms", poisoned)
    with pytest.raises(TrainingError, match=r"not finite at step 7 \(discriminator nan.*of step 4.*usual cures"):
        train_small(tmp_path / "run")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("collapse.won=9", "separates real from generated images perfectly"),
        ("collapse.blind=99", "gives real and generated images the same score"),
        ("collapse.uniform=99", "makes nearly the same image every time"),
    ],
)
def test_a_collapsed_run_is_stopped(tmp_path, rule, complaint):
    rules_off = [f"collapse.{name}=0" for name in ("won", "blind", "uniform")]
    message = rf"stopped at step 10: .*{complaint}.*start a new run with .*last.ckpt, of step 8"
    with pytest.raises(TrainingError, match=message) as stopped:
        train_small(tmp_path / "run", *rules_off, rule, "collapse.patience=10")
    assert "--resume" not in str(stopped.value)  # a resumed run would stop again, and cannot change settings


def test_only_signs_that_last_are_a_collapse():
    rule = CollapseRule(patience=30)
    fine = {"discriminator": 1.5, "real": 0.3, "made": -0.3, "spread": 0.8}
    won = {**fine, "discriminator": 0.0}
    counts = count_collapse_steps({}, won, rule, 20)
    assert counts["won"] == 20 and describe_collapse(counts, won, rule) is None
    assert count_collapse_steps(counts, fine, rule, 20)["won"] == 0
    counts = count_collapse_steps(counts, won, rule, 20)
    assert "optim.discriminator_lr" in describe_collapse(counts, won, rule)
    assert describe_collapse(counts, won, CollapseRule(patience=0)) is None


def test_the_weight_average_follows_the_generator():
    generator, _ = build_gan(small(), 4)
    average = WeightAverage(generator, 0.9, start=1)
    with torch.no_grad():
        generator.out.bias.fill_(1.0)
    average.update(0)
    assert average.net.out.bias.tolist() == [1.0] * 3  # a copy until `start`
    with torch.no_grad():
        generator.out.bias.fill_(2.0)
        generator.norm.running_mean.fill_(1.0)
    average.update(1)
    torch.testing.assert_close(average.net.out.bias, torch.full((3,), 1.1))
    torch.testing.assert_close(average.net.norm.running_mean, torch.full_like(generator.norm.running_mean, 0.1))
    assert not any(parameter.requires_grad for parameter in average.net.parameters())


def test_the_weight_average_has_its_own_singular_vectors():
    """With the vectors of the last weights its largest singular value would exceed one."""
    torch.manual_seed(0)
    generator, _ = build_gan(small("model.options.generator_spectral=equality"), 4)
    average = WeightAverage(generator, 0.9, start=0)
    for step in range(3):
        with torch.no_grad():
            for parameter in generator.parameters():
                parameter.copy_(torch.randn_like(parameter))
        generator(torch.randn(4, 6), torch.arange(4))  # one power iteration
        average.update(step)
    net = average.generator()
    values = [
        np.linalg.svd(module.weight.detach().double().flatten(1).numpy(), compute_uv=False)[0]
        for module in net.modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear) and hasattr(module, "parametrizations")
    ]
    assert len(values) > 5
    np.testing.assert_allclose(values, 1.0, atol=0.05)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    average.generator()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_rates_decay_linearly():
    assert [compute_rate_factor(GanOptim(), step, 10) for step in (0, 9)] == [1.0, 1.0]
    falling = GanOptim(decay_from=5)
    assert [compute_rate_factor(falling, step, 10) for step in (4, 5, 6, 9)] == pytest.approx([1.0, 1.0, 0.8, 0.2])
