"""Watching under transformers' Trainer: the rows of `isograd.watch`, read before clipping and with true losses.

    trainer.add_callback(isograd.WatchCallback(trainer, folder="runs/mine"))

A callback alone comes too late: `on_pre_optimizer_step` fires after clipping, and with `logging_nan_inf_filter`, the
default, a loss that is not finite never reaches the Trainer's log. So during a run a few methods of this
trainer and of its accelerator are replaced by the same methods with a look at their arguments or results.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from isograd.diagnose.watch import Watch, watch
from isograd.diagnose.watch.loops import observe
from isograd.diagnose.watch.loops.recover import MOST, Recover, Recovery
from isograd.diagnose.watch.writers import WARNED, Row, alert, flat, judge

REPORTERS: Any = tuple(INTEGRATION_TO_CALLBACK.values())
ALERTING = {INTEGRATION_TO_CALLBACK[name]: name for name in ("wandb", "trackio")}
TEXTS = INTEGRATION_TO_CALLBACK["tensorboard"]  # whose log takes texts


class WatchCallback(TrainerCallback):
    """Watches the runs of one Trainer.

    Rows go where `isograd.watch` sends them, and at the Trainer's logging steps also to whatever `report_to` names
    (Weights & Biases, Trackio, TensorBoard, ..); warnings there as alerts, or as texts. A step's loss is that of this
    process, over all its micro-batches.

    Attributes:
        watch: of the last run; None before the first.
    """

    def __init__(
        self, trainer: Trainer, *, recover: Recover | None = None, recoveries: int = MOST, **settings: Any
    ) -> None:
        """`settings` are those of `isograd.watch`: folder, every, addresses, unigram_entropy, updates, ..

        Args:
            recover: where the loss leaves its course, go back to the last good state and on with the next batches
                ("rollback"), at half the rate ("lower-rate"); None: report it only.
            recoveries: how often at most.

        Raises:
            ValueError: another word; or `every` above 1 beside `recover`.
        """
        if recover not in (None, "rollback", "lower-rate"):
            raise ValueError(f"recover={recover!r}; expected 'rollback', 'lower-rate' or None")
        if recover and settings.get("every", 1) != 1:
            raise ValueError(f"recover={recover!r} needs every=1: the loss of each step")
        self.trainer = trainer
        self.recovery: Recovery | None = None
        self._recover = (recover, recoveries)
        self.watch: Watch | None = None
        self._settings = settings
        self._replaced = ExitStack()
        self._losses: list[Tensor] = []
        self._batches: list[Any] = []
        self._measured = False  # the gradients of this update
        self._sent = 0  # warnings that the trackers have

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The watch begins.

        Raises:
            ValueError: DeepSpeed keeps the gradients to itself; or as `isograd.watch`.
        """
        accelerator: Any = self.trainer.accelerator
        if accelerator.distributed_type == "DEEPSPEED":
            raise ValueError("WatchCallback cannot see gradients inside DeepSpeed's engine; train with DDP or FSDP2")
        self._replaced.close()  # a run that an error ended has left them
        self._forget()
        self.watch = watch(self.trainer.model, **({"overflows": accelerator.scaler is not None} | self._settings))
        self.watch.trained_by.optimizer = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        self._recovers(state.global_step)
        self._sent = 0
        for reporter in reporters_of(self.trainer):
            judge(ALERTING.get(type(reporter), ""))
        see = self.watch.before
        observe(self._replaced, self.trainer, "training_step", lambda _, inputs, *__, **___: see(inputs), self._keep)
        if accelerator.scaler is None:
            for name in ("_clip_grad_norm", "_get_grad_norm"):  # the first is called only where there is clipping
                observe(self._replaced, self.trainer, name, before=self._measure)
        else:  # between unscaling and clipping
            observe(self._replaced, accelerator, "unscale_gradients", after=self._measure)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.watch is not None
        self._forget()
        self._recovered(state.global_step)
        if control.should_log or state.global_step == state.max_steps:
            self.watch.read()  # at the end, while the trackers are still open
        numbers = flat(self.watch.row, self.watch.layers) if control.should_log else {}
        for reporter in reporters_of(self.trainer) if numbers else ():
            reporter.on_log(args, state, control, logs=dict(numbers), model=self.trainer.model)
        announce(self.trainer, self.watch.warnings[self._sent :])
        self._sent = len(self.watch.warnings)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._replaced.close()
        if self.watch is not None:
            self.watch.close()

    def _recovers(self, step: int) -> None:
        how, most = self._recover
        if how is None:
            return
        if self.trainer.is_fsdp_enabled:
            raise ValueError("recover keeps whole weights on the host, and FSDP shards them; leave it out")
        assert self.watch is not None
        self.recovery = Recovery(how, most, self._settings.get("unigram_entropy"))
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        self.recovery.attach(model, self.trainer.optimizer, self.trainer.lr_scheduler, step)
        self.watch.on_reading = self.recovery.follow

    def _recovered(self, step: int) -> None:
        """Back to a good state, where the losses or a warning of this step say so."""
        if self.recovery is None:
            return
        assert self.watch is not None
        new = (row for row in self.watch.warnings[self._sent :] if row["signal"] == "rise")
        if (row := self.recovery.act(step, next(new, None))) is not None:
            self.watch.report(row)
            self.watch.begin_again()

    def _keep(self, loss: Tensor, model: Any, inputs: Any, *_: Any, **__: Any) -> None:
        """The Trainer has divided the loss so that those of the micro-batches add up."""
        self._losses.append(loss.detach())
        self._batches.append(inputs)

    def _measure(self, *_: Any, **__: Any) -> None:
        assert self.watch is not None
        if not self._measured and self._losses:
            self._measured = True
            batch = self._batches[0] if len(self._batches) == 1 else list(self._batches)
            self.watch.step(torch.stack(self._losses).sum(), batch=batch, step=self.trainer.state.global_step + 1)

    def _forget(self) -> None:
        self._losses.clear()
        self._batches.clear()
        self._measured = False


def reporters_of(trainer: Trainer) -> list[Any]:
    """What `report_to` names, in the first process: not the console, nor the history that goes into checkpoints."""
    if not trainer.state.is_world_process_zero:
        return []
    return [one for one in trainer.callback_handler.callbacks if isinstance(one, REPORTERS)]


def announce(trainer: Trainer, warned: Sequence[Row]) -> None:
    """Warnings to the trackers of a trainer: alerts where they have such, texts in TensorBoard."""
    for reporter in reporters_of(trainer) if warned else ():
        for row in warned:
            alert(ALERTING.get(type(reporter), ""), row)
            if isinstance(reporter, TEXTS):
                logs = {WARNED: row["message"]}
                reporter.on_log(trainer.args, trainer.state, trainer.control, logs=logs, model=trainer.model)
