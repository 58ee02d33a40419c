"""Setups of trainers: transformers' and trl's `Trainer`, and (LightningModule, Trainer, data) of Lightning.

Their own loops make the updates, stopped after a few; nothing is logged, saved or evaluated.
"""

import contextlib
import functools
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isograd.errors import InputsError
from isograd.lint.step.kept import Kept
from isograd.lint.step.setup import Setup


def of(given: Any, parts: dict[str, Any]) -> Setup:
    """
    Raises:
        InputsError: it is no trainer that is known.
    """
    if hasattr(given, "get_train_dataloader") and hasattr(given, "compute_loss"):
        return _of_trainer(given, parts)
    several = list(given) if isinstance(given, tuple | list) else [given]
    module = next((x for x in several if isinstance(x, nn.Module) and hasattr(x, "training_step")), None)
    if module is not None:
        others = [x for x in several if x is not module]
        trainer = next((x for x in others if hasattr(x, "fit")), None)
        data = next((x for x in others if x is not trainer), parts.get("data"))
        return _of_lightning(module, trainer, data)
    raise InputsError(
        f"{type(given).__name__}: expected a dict of model, loss, data and optimizer, a Trainer of transformers, or"
        " (LightningModule, Trainer, data)"
    )


def _of_trainer(trainer: Any, parts: dict[str, Any]) -> Setup:
    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerCallback

    before = Kept(trainer, trainer.args, trainer.model)
    args = trainer.args
    data = trainer.get_train_dataloader()
    accumulate = args.gradient_accumulation_steps
    steps = parts.get("steps") or _planned(args, data)
    trainer.create_optimizer()
    trainer.create_scheduler(num_training_steps=steps)
    trainer._created_lr_scheduler = False  # it stays what it is when training begins

    class Stop(TrainerCallback):
        def __init__(self, count: int) -> None:
            self.left = count

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            self.left -= 1
            control.should_training_stop = control.should_training_stop or self.left <= 0
            control.should_save = control.should_evaluate = control.should_log = False
            return control

    def train(updates: int) -> None:
        args.save_strategy = args.eval_strategy = args.logging_strategy = "no"
        args.load_best_model_at_end, args.disable_tqdm, args.report_to, args.max_steps = False, True, [], steps
        trainer.callback_handler = CallbackHandler(
            [DefaultFlowCallback(), Stop(updates)],
            trainer.model,
            trainer.processing_class,
            trainer.optimizer,
            trainer.lr_scheduler,
        )
        with _quiet(), _logits(trainer.model):
            trainer.train()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with _logits(trainer.model):
            return trainer.compute_loss(model, trainer._prepare_inputs(batch))

    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    return Setup(
        model=trainer.model,
        loss=loss,
        data=data,
        optimizers=[trainer.optimizer],
        schedulers=[trainer.lr_scheduler],
        steps=steps,
        accumulate=accumulate,
        clip=args.max_grad_norm or None,
        autocast=dtype,
        train=train,
        kind="Trainer",
        given=trainer,
        undo=before.restore,
    )


@contextlib.contextmanager
def _logits(model: nn.Module) -> Iterator[None]:
    """The head of trl that forms no logits (`fused_lm_head=True`) forms them, and torch's cross-entropy of them: the
    rules see that. The numbers are the same to rounding.
    """
    own = [(module, module.forward) for module in model.modules() if "forward" in vars(module)]
    for module, forward in own:
        made = getattr(getattr(forward, "__func__", forward), "__globals__", {}).get("FusedCausalLMOutput")
        if made is not None:
            module.forward = functools.partial(_with_logits, forward, made)
    try:
        yield
    finally:
        for module, forward in own:
            module.forward = forward


def _with_logits(plain: Any, made: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
    if not fused_lm_head:
        return plain(*args, **kwargs)
    labels, shifted, count = (kwargs.pop(name, None) for name in ("labels", "shift_labels", "num_items_in_batch"))
    found = plain(*args, **kwargs)
    logits, targets = (found.logits[:, :-1], labels[:, 1:]) if shifted is None else (found.logits, shifted)
    scores, real = -functional.cross_entropy(logits.mT.float(), targets, reduction="none"), targets != -100
    told = logits.detach().float().log_softmax(-1)
    return made(
        loss=-scores.sum() / (real.sum().clamp(min=1) if count is None else count),
        log_probs=scores,
        entropy=-(told.exp() * told).sum(-1) * real,
        mean_logits=logits.detach().float().mean(-1) * real,
        is_top1=(told.argmax(-1) == targets) & real,
        label_mask=real,
        aux_loss=getattr(found, "aux_loss", None),
    )


def _planned(args: Any, data: Any) -> int:
    if args.max_steps > 0:
        return int(args.max_steps)
    return max(1, int(len(data) // args.gradient_accumulation_steps * args.num_train_epochs))


def _of_lightning(module: Any, trainer: Any, data: Any) -> Setup:
    import lightning

    if trainer is None or data is None:
        raise InputsError("of Lightning give (LightningModule, Trainer, data): what trainer.fit takes")
    before = Kept(module, trainer)
    if hasattr(data, "train_dataloader"):
        data.setup("fit")
        data = data.train_dataloader()
    accumulate = int(trainer.accumulate_grad_batches)
    steps = int(trainer.max_steps) if trainer.max_steps and trainer.max_steps > 0 else 0
    if not steps and trainer.max_epochs and trainer.max_epochs > 0 and hasattr(data, "__len__"):
        steps = max(1, len(data) // accumulate * int(trainer.max_epochs))

    class Stop(lightning.Callback):
        def __init__(self, count: int) -> None:
            self.count = count

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.global_step >= self.count:
                trainer.should_stop = True

    held: list[Any] = []
    configured = module.configure_optimizers

    def train(updates: int) -> None:
        many = len(optimizers) or 1
        with _quiet():
            own = lightning.Trainer(
                max_steps=steps or 10_000,
                min_steps=0,
                min_epochs=0,
                accumulate_grad_batches=accumulate,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
                precision=trainer.precision,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                limit_val_batches=0,
                num_sanity_val_steps=0,
                callbacks=[Stop(updates * many)],
            )
            module.configure_optimizers = lambda: held[0]
            try:
                own.fit(module, data)
            finally:
                del module.configure_optimizers

    with _quiet():
        module._trainer = trainer
        trainer.strategy.connect(module) if hasattr(trainer, "strategy") else None
        held.append(configured())
    optimizers, schedulers = _configured(held[0])

    def loss(_: nn.Module, batch: Any) -> Tensor:
        if not module.automatic_optimization:
            raise InputsError("training_step optimizes by itself, and cannot be asked for a loss alone")
        module.log = module.log_dict = lambda *_, **__: None
        try:
            found = module.training_step(batch, *[0] * (len(inspect.signature(module.training_step).parameters) > 1))
        finally:
            del module.log, module.log_dict
        return found["loss"] if isinstance(found, dict) else found

    return Setup(
        model=module,
        loss=loss,
        data=data,
        optimizers=optimizers,
        schedulers=schedulers,
        steps=steps or None,
        accumulate=accumulate,
        clip=trainer.gradient_clip_val,
        train=train,
        kind="Lightning",
        given=(module, trainer),
        undo=before.restore,
    )


def _configured(made: Any) -> tuple[list[Any], list[Any]]:
    """The optimizers and schedulers of what `configure_optimizers` returns, in any of its forms."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list | tuple):
        optimizers, schedulers = list(made[0]), list(made[1])
    elif isinstance(made, dict):
        optimizers, schedulers = [made["optimizer"]], [made["lr_scheduler"]] if "lr_scheduler" in made else []
    elif isinstance(made, list | tuple):
        pairs = [_configured(one) for one in made]
        return [o for os, _ in pairs for o in os], [s for _, ss in pairs for s in ss]
    else:
        return ([] if made is None else [made]), []
    return optimizers, [s["scheduler"] if isinstance(s, dict) else s for s in schedulers]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Trainers' own prints and warnings are not this run's."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
