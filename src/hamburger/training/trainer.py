"""The training loop of all supervised tasks: one step from data to checkpoint, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.devices import keep_random_state
from hamburger.errors import NotFiniteError, TrainingError
from hamburger.layers.norm import convert_sync
from hamburger.training import fsdp
from hamburger.training.checkpoint import ScoredProgress
from hamburger.training.metrics_log import Listener, ScoresEvaluated, ValidationProgress
from hamburger.training.optim import learning_rate, optimizer_of, set_rate
from hamburger.training.recipe import SupervisedTraining
from hamburger.training.run_folder import BEST, RunFolder
from hamburger.training.run_lifecycle import Run, StopSignal
from hamburger.training.supervised import check_outputs

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.training.accelerator import Accelerator
    from hamburger.training.profile import StepProfile
    from hamburger.training.task import Task


S = TypeVar("S", bound=SupervisedTraining)


class Trainer(Run[S, ScoredProgress]):
    """Trains one network and scores it on the validation split as it goes. The task gives data, losses and scores.

    `net` is the network itself, `model` the same network as a training step calls it. `whole` is what is evaluated and
    saved: the network, or where its parameters are sharded, a copy that `gather` brings up to date.
    """

    def __init__(
        self,
        task: Task[S],
        recipe: S,
        data: Any,
        net: Any,
        accelerator: Accelerator,
        folder: RunFolder,
        stop: StopSignal,
        listen: Listener,
    ) -> None:
        super().__init__(recipe, accelerator, folder, stop, listen, ScoredProgress())
        self.task, self.data = task, data
        if recipe.sync_bn and distributed.world_size() > 1:
            convert_sync(net)
        if recipe.channels_last:
            net.to(memory_format=torch.channels_last)
        self.net = net.train()
        self.whole = deepcopy(net) if accelerator.sharded else net
        compiled: Any = torch.compile(net) if recipe.compile else net
        self.model = accelerator.prepare(compiled)
        self.optimizer = optimizer_of(net, recipe.optim)
        self.changed_data_advice = task.changed_data_advice(folder.path)
        self.info = task.info(recipe, data)
        self.profile: StepProfile | None = None
        self.batches = task.batches(recipe, data, self.device)

    # -- one step ------------------------------------------------------------------------------------------------

    def steps(self) -> None:
        if self._due(self.recipe.eval_every) and self.progress.evaluated < self.progress.step:
            self.evaluate()  # the run was interrupted before or during this evaluation
            self.save()
        self.clock.start()
        batches: Any = self.batches.run(self.progress.step, self.recipe.steps)
        with closing(batches):  # ends its threads, however the loop ends
            for step, micro_batches in enumerate(batches, start=self.progress.step):
                self.mark("data")
                self.task.before_step(self, step, micro_batches)
                self.train_step(step, micro_batches)
                self.after_step()

    def train_step(self, step: int, micro_batches: Sequence[Any]) -> None:
        """Update the weights once, from all micro-batches of the step."""
        set_rate(self.optimizer, learning_rate(self.recipe.optim, step, self.recipe.steps))
        self.optimizer.zero_grad(set_to_none=True)
        count = len(micro_batches)
        # each micro-batch's weight in the mean over the global batch; None: all weigh the same
        weights = self.task.loss_weights(self.net, micro_batches) if count > 1 else None
        step_terms: dict[str, Tensor] = {}
        for i, micro_batch in enumerate(micro_batches):
            # gradients are averaged over the processes with the last micro-batch only
            with self.accelerator.no_sync(self.model) if i + 1 < count else nullcontext():
                terms = self.task.losses(self.model, micro_batch, self.recipe)
                self.mark("forward and loss")
                if weights is not None:
                    terms = {name: value * weights[i].get(name, weights[i][""]) for name, value in terms.items()}
                elif count > 1:
                    terms = {name: value / count for name, value in terms.items()}
                self.accelerator.backward(torch.stack(list(terms.values())).sum())
                self.mark("backward")
            for name, value in terms.items():
                step_terms[name] = step_terms[name] + value.detach() if name in step_terms else value.detach()
        if self.recipe.optim.clip is not None:
            # a norm that is not finite shows in the loss, whose check names the images
            self.accelerator.clip_gradients(self.model, self.optimizer, self.recipe.optim.clip)
        self.accelerator.optimizer_step(self.optimizer)
        self.mark("optimizer")
        self.done(step, step_terms, [name for part in micro_batches for name in getattr(part, "ids", ())])

    def after_step(self) -> None:
        """Log, evaluate, write a checkpoint, stop: whatever is due after this step."""
        self.log_if_due()
        evaluation_due = self._due(self.recipe.eval_every)
        if evaluation_due or self._due(self.recipe.checkpoint_every):
            self.end_interval()
            if evaluation_due:
                self.evaluate()
            self.save()
            self.clock.start()
        self.mark("log, evaluation, files")
        self.stop_if_requested()

    def mark(self, phase: str) -> None:
        """End a phase of the step, where the run is profiled."""
        if self.profile is not None:
            self.profile.mark(phase)

    # -- log -----------------------------------------------------------------------------------------------------

    def metrics_row(self, terms: dict[str, float]) -> dict[str, Any]:
        step = self.progress.step
        rate = learning_rate(self.recipe.optim, step - 1, self.recipe.steps)
        return {"step": step, "loss": sum(terms.values()), "terms": terms, "lr": rate}

    def waited(self) -> float:
        return float(self.batches.waited)

    # -- scores --------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score the current weights on the validation split, in float32."""
        self.check_weights()  # a network of NaN still predicts, and might even be the best so far
        self.gather()
        self.whole.to(self.device)
        try:
            with keep_random_state([self.device]), check_outputs("outputs", self.task.list_outputs(self.whole)):
                scores = self.task.evaluate(
                    self.whole,
                    self.data.val,
                    self.info,
                    device=self.device,
                    batch=self.recipe.batch,
                    workers=self.recipe.data.workers,
                    channels_last=self.recipe.channels_last,
                    progress=self._between_images,
                )
        except NotFiniteError as broken:  # also of finite weights that are very large
            raise TrainingError(
                f"train: the evaluation of step {self.progress.step} has no score: {broken}; {self.last_written()}; "
                f"{self.advice_after_divergence()}"
            ) from None
        if self.accelerator.sharded:
            self.whole.cpu()  # its memory is for training
        progress, metric = self.progress, self.task.metric
        progress.evaluated, progress.scores = progress.step, asdict(scores)
        value = progress.scores[metric.name]
        best = self.recipe.keep == "last" or progress.best is None or metric.is_better(value, progress.best)
        if best:
            progress.best_step, progress.best = progress.step, value
        if self.first:
            self.write({"step": progress.step, **progress.scores})
            self.listen(ScoresEvaluated(progress.step, tuple(self.task.present_metrics(progress.scores)), best))

    def _between_images(self, done: int, total: int) -> None:
        self.listen(ValidationProgress(done, total))
        # several processes would all have to stop at the same image, so they finish the evaluation
        if self.stop and distributed.world_size() == 1 and done < total:
            self.interrupt()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Write best.safetensors if the current weights are the best."""
        progress = self.progress
        if progress.evaluated == progress.step == progress.best_step:
            info = self._info_now(**{self.task.metric.name: progress.best})
            self.task.save(self.folder.to_write(BEST), self.whole, info, durable=not self.light)

    def data_digest(self) -> str:
        return str(self.data.digest())

    def _info_now(self, **extra: Any) -> Info:
        return replace(self.info, extra={**self.info.extra, "step": self.progress.step, **extra})

    def state(self) -> dict[str, Any]:
        info = self.task.describe(self.whole, self._info_now())  # for `ham predict --last`
        tensors = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**(fsdp.gather(tensors) if self.accelerator.sharded else tensors), "info": info.as_json()}

    def load(self, state: dict[str, Any]) -> None:
        if self.accelerator.sharded:
            fsdp.load_whole(self.net, state["model"])
            fsdp.load_whole_optimizer(self.optimizer, state["optimizer"])
            self.gather()
        else:
            self.net.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])

    def gather(self) -> None:
        """Bring `whole` up to date; all processes must call this together."""
        if self.accelerator.sharded:
            self.whole.cpu().load_state_dict(fsdp.gather(self.net.state_dict()))

    # -- advice in error messages --------------------------------------------------------------------------------

    def advice_after_divergence(self) -> str:
        return (
            f"{self.task.restart_advice(self.folder.path)}: a lower optim.lr, more optim.warmup, optim.clip=10 or "
            "precision=32 usually help"
        )
