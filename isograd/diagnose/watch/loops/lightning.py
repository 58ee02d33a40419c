"""Watching under Lightning's Trainer: the rows of `isograd.watch`, read after unscaling and before clipping.

    trainer = lightning.Trainer(callbacks=[isograd.LightningWatch(folder="runs/mine")])

Works with `lightning` and with `pytorch_lightning`, whichever the training imports.
"""

import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from isograd.diagnose.watch import Watch, watch
from isograd.diagnose.watch.loops import observe
from isograd.diagnose.watch.writers import WARNED, alert, flat, judge
from isograd.errors import needed

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_ALERTING = {"WandbLogger": "wandb", "TrackioLogger": "trackio"}
_HIDING = {"DeepSpeedStrategy": "DeepSpeed's engine", "FSDPStrategy": "FSDP1's flat parameters"}


def _base() -> Any:
    """The class `Callback` of the package that is imported already, or of the one that is installed.

    Raises:
        MissingExtra: neither is.
    """
    loaded = next((name for name in _PACKAGES if name in sys.modules), None)
    installed = next((name for name in _PACKAGES if find_spec(name.partition(".")[0])), _PACKAGES[0])
    return needed("lightning", loaded or installed)[0].Callback


_Callback: Any = _base()


class LightningWatch(_Callback):
    """Watches the runs of one Trainer of Lightning.

    Rows go where `isograd.watch` sends them, and every `log_every_n_steps` also to the Trainer's loggers; warnings
    there as alerts (Weights & Biases) or texts (TensorBoard). A step's loss is that of this process, the mean of its
    micro-batches; with manual optimization the sum of what goes through `manual_backward` before a step.

    Attributes:
        watch: of the last run; None before the first.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings` are those of `isograd.watch`: folder, every, addresses, unigram_entropy, updates, .."""
        super().__init__()
        self.watch: Watch | None = None
        self._settings = settings
        self._losses: list[Tensor] = []
        self._batches: list[Any] = []
        self._replaced = ExitStack()
        self._sent = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The watch begins.

        Raises:
            ValueError: a strategy that keeps the gradients to itself; or as `isograd.watch`.
        """
        hiding = _HIDING.get(type(trainer.strategy).__name__)
        if hiding:
            raise ValueError(f"LightningWatch cannot see gradients inside {hiding}; train with DDP or FSDP2")
        scaled = _scale_of(trainer) is not None
        self.watch = watch(pl_module, **({"overflows": scaled} | self._settings))
        if len(trainer.optimizers) == 1:
            self.watch.trained_by.optimizer = trainer.optimizers[0]
        self._sent = 0
        self._forget()
        self._replaced.close()  # a run that an error ended may have left it
        if not pl_module.automatic_optimization and not scaled:  # there clipping comes before the step's own hook
            clips = trainer.precision_plugin
            observe(self._replaced, clips, "clip_gradients", before=lambda *_, **__: self._look(trainer))
        for logger in trainer.loggers if trainer.is_global_zero else ():
            judge(_ALERTING.get(type(logger).__name__, ""))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batches.append(batch)
        if self.watch is not None:
            self.watch.before(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Lightning has divided the loss by the micro-batches, and in fp16 multiplied it by the scale."""
        scale = _scale_of(trainer)
        self._losses.append(loss.detach() if scale is None else loss.detach() / scale)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._look(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.watch is not None
        due = not self._losses and trainer.global_step and trainer.global_step % trainer.log_every_n_steps == 0
        if due:
            self.watch.read()
        self._send(trainer, flat(self.watch.row, self.watch.layers) if due else {})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._replaced.close()
        if self.watch is not None:
            self.watch.close()
            self._send(trainer, {})

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """What was read until then is kept; sharded gradients are not read: the other processes may be elsewhere."""
        self._replaced.close()
        if self.watch is not None:
            self.watch.abandon()

    def _look(self, trainer: Any) -> None:
        if self.watch is None or not self._losses:  # clipped already, or a second optimizer of the same losses
            return
        batch = self._batches[0] if len(self._batches) == 1 else list(self._batches)
        loss = torch.stack(self._losses).sum()
        if trainer.lightning_module.automatic_optimization:  # an epoch may end before the last step has all its parts
            loss = loss * (trainer.accumulate_grad_batches / len(self._losses))
        self.watch.step(loss, batch=batch, step=trainer.global_step + 1)
        self._forget()

    def _send(self, trainer: Any, numbers: dict[str, float]) -> None:
        """To the loggers, which exist in the first process only."""
        assert self.watch is not None
        for logger in trainer.loggers if trainer.is_global_zero else ():
            if numbers:
                logger.log_metrics(numbers, step=trainer.global_step)
            for row in self.watch.warnings[self._sent :]:
                alert(_ALERTING.get(type(logger).__name__, ""), row)
                if hasattr(logger.experiment, "add_text"):
                    logger.experiment.add_text(WARNED, row["message"], row["step"])
        self._sent = len(self.watch.warnings)

    def _forget(self) -> None:
        self._losses.clear()
        self._batches.clear()


def _scale_of(trainer: Any) -> float | None:
    """The factor of a gradient scaler; None without one."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return None if scaler is None else float(scaler.get_scale())
