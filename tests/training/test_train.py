"""A whole small run: its folder, its errors, and how it ends when something breaks."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal

import pytest
import torch
from small_run import reproducible_outputs, rows, small

from hamburger.errors import CheckpointError, DataError, InputError, Interrupted, OptionError, TrainingError
from hamburger.files import write_durably
from hamburger.segmentation import load_weights
from hamburger.segmentation import task as segmentation_task
from hamburger.segmentation.data.batches import SegmentationBatches
from hamburger.segmentation.task import SEGMENTATION, SegmentationTask
from hamburger.tasks import find_training, train
from hamburger.training import checkpoint, run_folder
from hamburger.training.metrics_log import CheckpointSaved, CheckProgress, Note, RunStarted, ScoresEvaluated, StepLogged
from hamburger.training.trainer import Trainer


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An undisturbed run, its events and its result."""
    torch.manual_seed(5)  # what the caller has drawn before must not matter
    run = tmp_path_factory.mktemp("runs") / "undisturbed"
    events = []
    return run, events, train(small(), run, accelerator="cpu", on_event=events.append)


def test_run_folder_has_the_documented_files(finished):
    run, events, result = finished
    stored = json.loads((run / "result.json").read_text())
    assert stored == result.values
    assert (stored["steps"], stored["seed"], stored["context"], stored["protocol"]) == (12, 0, "nmf", "single scale")
    assert 0 <= stored["miou"] <= stored["best_miou"] <= 1
    assert stored["images_per_s"] > 0
    assert find_training(str(run / "recipe.json")) == small()
    assert {"last.ckpt", "previous.ckpt"} <= {path.name for path in run.iterdir()}
    assert [row["step"] for row in rows(run) if "loss" in row] == [5, 10, 12]
    assert [row["step"] for row in rows(run) if "miou" in row] == [6, 12]
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [4, 6, 8, 12]
    check = [CheckProgress(done, 48) for done in (*range(49), 48)]
    assert events[: len(check)] == check and isinstance(events[len(check)], RunStarted)
    assert {StepLogged, ScoresEvaluated} <= {type(event) for event in events}
    assert not list(run.glob("**/*tensorboard*"))


def test_best_weights_reproduce_the_reported_score(finished):
    run, _, result = finished
    from hamburger.segmentation.data import create_dataset
    from hamburger.segmentation.evaluate import evaluate_segmenter

    net, info = load_weights(run / "best.safetensors")
    data = create_dataset("patchwork", "val", **info.extra["data_options"])
    scores = evaluate_segmenter(net, data, device=torch.device("cpu"), mean=info.mean, std=info.std)
    assert scores.miou == result.values["best_miou"]
    assert info.extra["step"] == result.values["best_step"]


def test_equal_seeds_give_equal_bits(finished, tmp_path):
    torch.manual_seed(77)
    train(small(), tmp_path / "again", accelerator="cpu")
    assert reproducible_outputs(tmp_path / "again") == reproducible_outputs(finished[0])
    train(small("seed=1", "steps=6"), tmp_path / "other", accelerator="cpu")
    assert rows(tmp_path / "other")[0]["loss"] != rows(finished[0])[0]["loss"]


def test_resuming_a_finished_run_changes_nothing(finished):
    run, events, result = finished
    before = {path: path.stat().st_mtime_ns for path in run.iterdir() if path.name != ".lock"}
    events = []
    assert train(small(), run, accelerator="cpu", resume=True, on_event=events.append).values == result.values
    assert [type(event) for event in events] == [Note]
    assert {path: path.stat().st_mtime_ns for path in run.iterdir() if path.name != ".lock"} == before


def read_only(monkeypatch):
    """Refuse to open any file for writing, as on a CD or a snapshot."""
    original = io.open

    def refuse(file, mode="r", *args, **options):
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, "Read-only file system", str(file))
        return original(file, mode, *args, **options)

    monkeypatch.setattr(io, "open", refuse)


def test_a_finished_run_on_read_only_media_is_read(finished, tmp_path, monkeypatch):
    run, _, result = finished
    read_only(monkeypatch)
    with pytest.raises(OSError, match="Read-only"):
        train(small(), tmp_path / "run", accelerator="cpu")
    assert train(small(), run, accelerator="cpu", resume=True).values == result.values
    with pytest.raises(CheckpointError, match="another recipe"):
        train(small("steps=13"), run, accelerator="cpu", resume=True)


def test_resuming_nothing_raises(tmp_path):
    (tmp_path / "empty").mkdir()
    for run in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(OptionError, match=r"holds no run to resume; check --run, or leave out --resume"):
            train(small(), run, accelerator="cpu", resume=True)
    assert not (tmp_path / "none").exists() and not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    ("how", "step"), [("removed", 5), ("removed", 12), ("emptied", 10), ("moved", 12), ("replaced", 5)]
)
def test_a_run_folder_that_vanishes_stops_the_run(how, step, tmp_path):
    run = tmp_path / "run"

    def vanish(event):
        if not isinstance(event, StepLogged) or event.step != step:
            return
        if how == "moved":
            run.rename(tmp_path / "elsewhere")
            return
        for path in run.iterdir():
            path.unlink()
        if how != "emptied":
            run.rmdir()
        if how == "replaced":  # by the folder of another run, which must not be mixed with this one
            run.mkdir()
            (run / ".lock").touch()

    with pytest.raises(TrainingError, match=r"run was removed, moved or replaced during the run"):
        train(small(), run, accelerator="cpu", on_event=vanish)
    assert not run.exists() or {path.name for path in run.iterdir()} <= {".lock"}
    if how == "moved":
        train(small(), tmp_path / "elsewhere", accelerator="cpu", resume=True)


def test_a_run_folder_removed_while_the_result_is_written_is_no_success(tmp_path, monkeypatch):
    run = tmp_path / "run"

    def vanish(path, content):
        shutil.rmtree(run)
        write_durably(path, content)

    def write(path, content, **options):
        (vanish if path.name == "result.json" else write_durably)(path, content, **options)

    monkeypatch.setattr(run_folder, "write_durably", write)
    with pytest.raises(TrainingError, match="was removed"):
        train(small(), run, accelerator="cpu")


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".last.ckpt.0123456789abcdef.partial").write_bytes(b"half")
    train(small("steps=1", "optim.warmup=0"), tmp_path, accelerator="cpu")
    assert not list(tmp_path.glob(".*.partial"))


def test_existing_run_folder_raises(finished):
    with pytest.raises(OptionError, match="already holds a run"):
        train(small(), finished[0], accelerator="cpu")
    with pytest.raises(CheckpointError, match=r"another recipe \(optim.lr: 0.5 here, 0.2 there\)"):
        train(small("optim.lr=0.5"), finished[0], accelerator="cpu", resume=True)


def test_invalid_calls_leave_no_run_folder(tmp_path):
    run = tmp_path / "run"
    for settings, kind in (("model.context_options.rnk=3",), OptionError), (("data.options.length=0",), OptionError):
        with pytest.raises(kind):
            train(small(*settings), run, accelerator="cpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is a file"):
        train(small(), tmp_path / "file", accelerator="cpu")
    train(small("steps=2", "optim.warmup=0"), run, accelerator="cpu")


def test_second_training_in_a_folder_raises(tmp_path):
    import subprocess
    import sys

    hold = (
        "import fcntl, sys\nf = open(sys.argv[1], 'wb')\nfcntl.lockf(f, fcntl.LOCK_EX)\nprint(1, flush=True)\ninput()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(OptionError, match="another process is training"):
            train(small(), tmp_path, accelerator="cpu")
        other.communicate(b"\n")


class After:
    """Calls `act` in place of the n-th call of something."""

    def __init__(self, n, act, original):
        self.left, self.act, self.original = n, act, original

    def __call__(self, *args, **kwargs):
        self.left -= 1
        return self.act(*args, **kwargs) if self.left == 0 else self.original(*args, **kwargs)


def resumed(run, *settings):
    train(small(*settings), run, accelerator="cpu", resume=True)
    return reproducible_outputs(run)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupt_saves_and_says_how_to_resume(name, finished, tmp_path, monkeypatch):
    run = tmp_path / "run"
    original = Trainer.train_step

    def stop(self, step, parts):
        os.kill(os.getpid(), getattr(signal, name))
        original(self, step, parts)

    monkeypatch.setattr(
        Trainer, "train_step", lambda self, step, parts: (stop if step == 6 else original)(self, step, parts)
    )
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped at step 7 of 12.*of step 7: continue with --resume"):
        train(small(), run, accelerator="cpu")
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is before
    assert not (run / "result.json").exists()
    monkeypatch.setattr(segmentation_task, "check_each", None)  # a new run reads all its data, a resumed one does not
    assert resumed(run) == reproducible_outputs(finished[0])


def test_light_run_gives_the_same_result_without_a_checkpoint(finished, tmp_path):
    train(small(), tmp_path / "run", accelerator="cpu", light=True)
    assert reproducible_outputs(tmp_path / "run") == reproducible_outputs(finished[0])
    assert not list((tmp_path / "run").glob("*.ckpt")) and list(finished[0].glob("*.ckpt"))
    assert train(small(), tmp_path / "run", light=True, resume=True).values["steps"] == small().steps


@pytest.mark.parametrize("step", [6, 12])
def test_interrupt_during_evaluation_loses_nothing(step, finished, tmp_path, monkeypatch):
    run = tmp_path / "run"
    original = segmentation_task.evaluate_segmenter

    seen = []

    def stop(*args, progress, **options):
        seen.append(0)

        def pressed(done, total):
            if done == 3 and len(seen) == step // 6:
                os.kill(os.getpid(), signal.SIGINT)
            progress(done, total)

        return original(*args, progress=pressed, **options)

    monkeypatch.setattr(segmentation_task, "evaluate_segmenter", stop)
    with pytest.raises(Interrupted, match=f"stopped at step {step}"):
        train(small(), run, accelerator="cpu", light=True)  # which keeps what can be gone on with
    monkeypatch.undo()
    assert [row["step"] for row in rows(run)] == {6: [5], 12: [5, 6, 10, 12]}[step]
    assert resumed(run) == reproducible_outputs(finished[0])


def test_full_disk_raises_and_keeps_the_last_checkpoint(finished, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", After(10, full, os.fsync))
    with pytest.raises(
        TrainingError, match=r"disk of .*is full .No space left on device.*free some space.*of step \d: continue"
    ):
        train(small(), run, accelerator="cpu")
    monkeypatch.undo()
    assert not list(run.glob(".*.partial"))
    assert checkpoint.load(run) is not None
    assert resumed(run) == reproducible_outputs(finished[0])


def test_missing_data_raises_and_saves_the_last_step(finished, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def gone(*_):
        raise DataError("images/7.jpg is gone", [])

    original = SegmentationBatches.parts

    def parts(self, step):
        return gone() if step == 7 else original(self, step)

    monkeypatch.setattr(SegmentationBatches, "parts", parts)
    with pytest.raises(TrainingError, match=r"stopped at step 7 of 12: images/7.jpg is gone.*of step 7: continue"):
        train(small(), run, accelerator="cpu")
    monkeypatch.undo()
    assert resumed(run) == reproducible_outputs(finished[0])


def test_nonfinite_loss_names_the_step_and_its_images(tmp_path, monkeypatch):
    run = tmp_path / "run"
    original = SegmentationTask.losses
    seen = []

    def losses(self, model, part, recipe):
        terms = original(self, model, part, recipe)
        seen.append(part.ids)
        return {**terms, "ce": terms["ce"] * float("nan")} if len(seen) == 8 else terms

    monkeypatch.setattr(SegmentationTask, "losses", losses)
    with pytest.raises(TrainingError, match=r"not finite at step 8 \(ce nan\)") as stopped:
        train(small(), run, accelerator="cpu")
    for name in seen[7]:
        assert name in str(stopped.value)
    assert "of step 6" in str(stopped.value)
    state = checkpoint.load(run).state
    assert state["progress"]["step"] == 6
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_nonfinite_step_is_exact_with_delayed_checks(tmp_path, monkeypatch):
    """As on a GPU: losses are read only when a log line is due."""
    original = SegmentationTask.losses
    seen = []

    def losses(self, model, part, recipe):
        seen.append(part.ids)
        factor = float("inf") if len(seen) == 3 else 1.0
        return {name: factor * value for name, value in original(self, model, part, recipe).items()}

    monkeypatch.setattr(SegmentationTask, "losses", losses)
    monkeypatch.setattr(Trainer, "_alone_on_cpu", False)
    with pytest.raises(TrainingError, match="not finite at step 3") as stopped:
        train(small("checkpoint_every=100", "eval_every=100"), tmp_path / "run", accelerator="cpu")
    assert len(seen) == 5
    assert seen[2][0] in str(stopped.value)
    assert "no checkpoint had been written yet" in str(stopped.value)


@pytest.mark.parametrize(("step", "saved"), [(6, 4), (12, 8)])
def test_outputs_that_are_not_finite_get_no_score(tmp_path, monkeypatch, step, saved):
    run, original = tmp_path / "run", SegmentationTask.evaluate

    def evaluate(self, net, *args, **options):
        if checkpoint.load(run).state["progress"]["step"] == saved:
            with torch.no_grad():  # finite, and so large that the outputs are not
                for parameter in net.parameters():
                    parameter.fill_(1e38)
        return original(self, net, *args, **options)

    monkeypatch.setattr(SegmentationTask, "evaluate", evaluate)
    message = rf"step {step} has no score: .* NaN or infinite.* of step {saved};"
    with pytest.raises(TrainingError, match=message) as stopped:
        train(small(), run, accelerator="cpu")
    assert "a lower optim.lr" in str(stopped.value) and "\n" not in str(stopped.value)
    assert checkpoint.load(run).state["progress"]["step"] == saved
    assert [row["step"] for row in rows(run) if "miou" in row] == ([6] if step == 12 else [])
    monkeypatch.undo()
    train(small(), run, accelerator="cpu", resume=True)


def test_damaged_checkpoint_falls_back_to_the_previous_one(finished, tmp_path, monkeypatch):
    run = tmp_path / "run"
    original = Trainer.after_step

    def after(self):
        original(self)
        if self.progress.step == 11:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "after_step", after)
    with pytest.raises(KeyboardInterrupt):
        train(small(), run, accelerator="cpu")
    monkeypatch.undo()
    last = run / "last.ckpt"
    last.write_bytes(last.read_bytes()[:5000])
    events = []
    train(small(), run, accelerator="cpu", resume=True, on_event=events.append)
    assert any(isinstance(event, Note) and "last.ckpt is damaged" in event.text for event in events)
    assert next(event for event in events if isinstance(event, RunStarted)).step == 6
    assert reproducible_outputs(run) == reproducible_outputs(finished[0])


def test_folder_without_a_usable_checkpoint_raises(tmp_path):
    for name in ("last.ckpt", "previous.ckpt"):
        (tmp_path / name).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="no usable checkpoint is left"):
        train(small(), tmp_path, accelerator="cpu", resume=True)


def test_micro_batches_add_up_to_the_batch(tmp_path):
    """Frozen norms, no dropout, no ham: nothing that looks across samples, or draws. Views have unlabelled borders."""
    plain = (
        "model.context=none",
        "model.context_options=none",
        "model.head_options.dropout=0",
        "steps=6",
        "data.scales=0.3,0.6",
    )
    losses = []
    for parts in (1, 2, 4):
        run = tmp_path / str(parts)
        with frozen_norms():
            train(small(*plain, f"accumulate={parts}"), run, accelerator="cpu")
        losses.append([row["loss"] for row in rows(run) if "loss" in row])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(losses[2], losses[0], rtol=1e-5, atol=1e-6)


class frozen_norms:
    """Batch norms that use their running statistics in training too."""

    def __enter__(self):
        from hamburger.layers import norm

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(norm.BatchNorm2d, "train", lambda self, mode=True: torch.nn.Module.train(self, False))

    def __exit__(self, *_):
        self.patch.undo()


def test_start_loads_the_weights_of_another_run(finished, tmp_path):
    run = tmp_path / "run"
    recipe = small(f"start={finished[0]}", "optim.lr=1e-12", "steps=3", "optim.warmup=0", "bn_momentum=1e-9")
    result = train(recipe, run, accelerator="cpu")
    assert result.values["miou"] == pytest.approx(finished[2].values["best_miou"], abs=1e-3)
    with pytest.raises(InputError, match="got start=/nowhere"):
        train(small("start=/nowhere"), tmp_path / "b", accelerator="cpu")
    with pytest.raises(CheckpointError, match="do not fit the recipe's network"):
        train(
            small(f"start={finished[0]}", "model.context=none", "model.context_options=none"),
            tmp_path / "c",
            accelerator="cpu",
        )


def test_start_replaces_the_classifier_of_weights_with_other_classes(finished, monkeypatch):
    run, _, _ = finished
    source = SEGMENTATION.load(run / "best.safetensors")[0].state_dict()
    recipe = small(f"start={run}")
    data = SEGMENTATION.open(recipe, None, check=False, note=print)
    monkeypatch.setattr(data.train, "classes", ("one", "two"))
    torch.manual_seed(0)
    state = SEGMENTATION.build(recipe, data).state_dict()
    different = [name for name, value in state.items() if not torch.equal(value, source[name])]
    assert different == ["head.classifier.1.weight", "head.classifier.1.bias"]
    assert all(len(state[name]) == 2 for name in different)


def test_tensorboard_has_the_logged_values(tmp_path):
    train(small("tensorboard=true", "steps=5"), tmp_path, accelerator="cpu")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [5]
    assert events.Scalars("miou")[0].value == pytest.approx(rows(tmp_path)[-1]["miou"])


def test_evaluation_does_not_change_training(tmp_path, finished):
    """Scores more often, and the losses are the same to the last bit."""
    run = tmp_path / "run"
    train(small("eval_every=1"), run, accelerator="cpu")
    assert [row for row in rows(run) if "loss" in row] == [row for row in rows(finished[0]) if "loss" in row]


@pytest.mark.parametrize("precision", ["bf16"])
def test_half_precision_trains(precision, tmp_path):
    result = train(small(f"precision={precision}", "channels_last=true", "steps=4"), tmp_path, accelerator="cpu")
    assert result.values["loss"] > 0
    with pytest.raises(OptionError, match="fp16 needs a GPU"):
        train(small("precision=fp16"), tmp_path / "b", accelerator="cpu")


def test_profile_says_where_the_time_goes(tmp_path):
    """The phases cover the whole of the timed steps, and the run is that of the same recipe without a profile."""
    recipe, notes = small("steps=19", "eval_every=19"), []
    train(recipe, tmp_path / "plain", accelerator="cpu")
    train(recipe, tmp_path / "run", accelerator="cpu", profile=True, on_event=notes.append)
    assert reproducible_outputs(tmp_path / "run") == reproducible_outputs(tmp_path / "plain")
    phases, operators = (tmp_path / "run" / "profile.txt").read_text().split("\n\n", 1)
    shares = {line[:24].strip(): float(line.split()[-2]) for line in phases.splitlines() if line.endswith("%")}
    assert list(shares) == ["forward and loss", "backward", "optimizer", "log, evaluation, files", "data"]
    assert sum(shares.values()) == pytest.approx(100, abs=0.3) and shares["backward"] > 5
    assert "aten::convolution_backward" in operators
    assert any("time of a step: forward and loss" in event.text for event in notes if isinstance(event, Note))
    with pytest.raises(OptionError, match=r"a profile needs 19 steps \(got steps=12\)"):
        train(small(), tmp_path / "short", accelerator="cpu", profile=True)
