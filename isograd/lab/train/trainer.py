"""A thin subclass of transformers' Trainer, and the arguments that it takes from a run.

It differs where the default would blur a comparison: weight decay by role, schedules whose first update moves, the
order of the data fixed beforehand, gradients read before clipping, and non-finite losses kept as they are.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, SequentialSampler
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainingArguments

from isograd.diagnose import Probe
from isograd.diagnose.watch.probe import whole
from isograd.errors import RecipeError
from isograd.lab.data.batches import as_is
from isograd.lab.train.forecast.memory import available_memory, must_fit
from isograd.lab.train.optim import apply_rates, optimizer_of, schedule_of, take_state
from isograd.lab.train.run import Run, sharded_by
from isograd.models import IsogradPreTrainedModel
from isograd.placement import get
from isograd.transformer.loss import smoothing_of
from isograd.transformer.parameters import decayed


class IsogradTrainer(Trainer):
    """Trainer of one `Run`.

    Args:
        run: the recipe.
        model: the model, calibrated where its placement asks for it.
        train_dataset: the samples of the whole training in their order, one epoch of them.
        folder: where checkpoints go.
        updates_per_epoch: where the recipe counts in epochs.
        moments: the state that the optimizer begins with; None: none.
        loss: (model, inputs) -> the loss, of a model that is not isograd's; None: the model's own.
    """

    lr_scheduler: Any

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        train_dataset: Dataset[Any],
        folder: Path,
        updates_per_epoch: int | None = None,
        moments: Mapping[str, Any] | None = None,
        loss: Callable[[nn.Module, Mapping[str, Any]], Tensor] | None = None,
    ) -> None:
        self.recipe = run
        self.loss = loss
        self.schedule = schedule_of(run.training, updates_per_epoch)
        classes = model.config.vocab_size if isinstance(model, IsogradPreTrainedModel) else 0
        self.smoothing = smoothing_of(run.training.label_smoothing, run.training.smoothing, classes)
        self.probe: Probe | None = None  # set while a step is observed
        self.losses: list[Tensor] = []  # of the micro-batches of this step
        self.norm: Tensor | None = None  # of all gradients, before clipping
        self.norms: Tensor | None = None  # of each of `graded`; None where an engine keeps them
        self.graded: list[nn.Parameter] = []  # the parameters that have gradients
        self.rate = 0.0  # of this update
        self.moments = moments
        super().__init__(
            model=model,
            args=arguments(run, folder),
            train_dataset=train_dataset,
            data_collator=as_is,
            optimizer_cls_and_kwargs=optimizer_of(run.training, model),
        )
        self.remove_callback(PrinterCallback)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices decay, nothing else does, unless the recipe has it so."""
        yes, no = decayed(model)
        return [*yes, *no] if self.recipe.training.decay_all else yes

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """With the placement's factors on rates, and its constraint on weights after each step."""
        made = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)
        model = self.model
        if made and self.moments:
            take_state(self.moments, optimizer, model)
            self.moments = None
        if made and isinstance(model, IsogradPreTrainedModel):
            if rates := model.rates():
                apply_rates(optimizer, {p: rates[name] for name, p in model.named_parameters() if name in rates})
            if model.constrains:
                optimizer.register_step_post_hook(lambda *_: model.constrain())
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Update t = 1, 2, .. runs at the rate of t (the scheduler counts from 0)."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda n: self.schedule(n + 1))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The state of a checkpoint, and the settings of the recipe, which differ where a run was forked."""
        ours = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        peaks = list(getattr(self.lr_scheduler, "base_lrs", ()))
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        factor = self.schedule(self.lr_scheduler.last_epoch + 1)
        self.lr_scheduler.base_lrs = peaks
        for group, settings_, peak in zip(self.optimizer.param_groups, ours, peaks, strict=True):
            group |= settings_ | {"lr": peak * factor}

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Of a plain module each tensor once: safetensors refuses tied ones, and loading ties them again."""
        if not isinstance(self.model, PreTrainedModel):
            every = self.model.state_dict() if state_dict is None else state_dict
            first = {(t.data_ptr(), t.shape, t.stride()) if t.numel() else n: n for n, t in reversed(every.items())}
            state_dict = {name: every[name].contiguous() for name in sorted(first.values())}
        super()._save(output_dir, state_dict)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Of a plain module the second name of a tied tensor is missing, and nothing else (`_save`)."""
        if isinstance(self.model, PreTrainedModel):
            super()._issue_warnings_after_load(load_result)

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        eager = torch.compiler.set_stance("force_eager") if self.probe is not None else nullcontext()
        with eager:
            return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The model's own loss; the unsmoothed one is not formed a second time.

        Where micro-batches hold different numbers of targets, `num_items_in_batch` is the sum over all of them, and
        each loss is a part of the update's: one long batch and several short ones are then the same update.
        """
        smoothing = self.smoothing if model.training else 0.0
        if self.loss is not None:
            loss = self.loss(model, inputs)
        else:
            loss = model(**inputs, label_smoothing=smoothing, num_items_in_batch=num_items_in_batch).loss
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP takes the mean of the processes' gradients
        if model.training:
            parts = 1 if num_items_in_batch is None else self.args.gradient_accumulation_steps
            self.losses.append(loss.detach() * parts)
        return (loss, None) if return_outputs else loss

    @cached_property
    def _multiplied(self) -> int:
        """Parameters that are multiplied with: all but the embeddings'; of a foreign model not counted."""
        counted = isinstance(self.model, IsogradPreTrainedModel)
        return int(self.model.num_parameters(exclude_embeddings=True)) if counted else 0

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """The Trainer's own figure, whose parameters are counted once and not in every step."""
        read = inputs.get(getattr(self.model, "main_input_name", ""))
        return 0 if read is None else 6 * read.numel() * self._multiplied

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor:
        """Norms of all gradients, once: for the log, for the probe, for clipping (in this order)."""
        self.accelerator.unscale_gradients()
        self.rate = self.optimizer.param_groups[0]["lr"]
        if not self.graded:  # only now are they what FSDP2 made of them
            self.graded = [p for p in self.model.parameters() if p.grad is not None]
        grads = [p.grad for p in self.graded if p.grad is not None]
        norms = [whole(n) for n in torch._foreach_norm(grads)]
        self.norms = torch.stack(norms)
        self.norm = torch.linalg.vector_norm(self.norms)
        if self.probe is not None:
            self.probe.read_gradients(dict(zip(self.graded, norms, strict=True)))
        if self.recipe.training.clip:
            factor = (self.recipe.training.clip / (self.norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(grads, factor.item() if self.is_fsdp_enabled else factor)
        return self.norm


def arguments(run: Run, folder: Path) -> TrainingArguments:
    """The arguments of transformers' Trainer. Its clipping is off, since `_get_grad_norm` clips."""
    t = run.training
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=t.steps,
        per_device_train_batch_size=run.micro_batch(PartialState().num_processes),
        gradient_accumulation_steps=t.accumulation,
        learning_rate=t.lr,
        weight_decay=t.weight_decay,
        max_grad_norm=0.0,
        seed=run.seed,
        bf16=t.precision == "bf16",
        fp16=t.precision == "fp16",
        torch_compile=t.compile,
        fsdp=True if t.fsdp else None,
        fsdp_config={"transformer_layer_cls_to_wrap": ["Layer"], "reshard_after_forward": True} if t.fsdp else None,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="steps" if t.checkpoint_every else "no",
        save_steps=t.checkpoint_every or t.steps,
        logging_strategy="steps" if t.track else "no",
        logging_steps=10,
        logging_nan_inf_filter=False,
        report_to=list(t.track) or "none",
        run_name=run.name,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        prediction_loss_only=True,
        ddp_find_unused_parameters=False,
    )


def check_machine(run: Run) -> None:
    """Refuse before anything is written what this machine, these processes or this installation cannot do.

    Raises:
        RecipeError: which key, and what to do.
    """
    if PartialState().distributed_type == DistributedType.DEEPSPEED:
        raise RecipeError("the launcher asks for DeepSpeed, which isograd does not drive; shard by training.fsdp=true")
    run.micro_batch(PartialState().num_processes)
    if run.sized:
        must_fit(run, run.config(), PartialState().num_processes, *available_memory())
    try:
        optimizer_of(run.training)
    except ImportError as error:
        raise RecipeError(str(error)) from error
    shards = sharded_by(run.training)
    for placement in (run.model.placement, getattr(run.model, "encoder_placement", None)) if shards else ():
        if placement and (constrained := get(placement).constrain):
            names = ", ".join(type(one).__name__ for one in constrained)
            raise RecipeError(
                f"placement {placement!r} ({names}) changes whole weights after each step, and {shards} keeps shards;"
                " train it without shards"
            )
    if run.training.precision == "fp16" and not torch.cuda.is_available():
        raise RecipeError("training.precision=fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if run.training.fsdp and PartialState().distributed_type == DistributedType.NO:
        raise RecipeError(
            "training.fsdp=true needs a launcher, such as torchrun --nproc-per-node 2 -m isograd train; leave it out"
        )
    _shard_on_cpus(run.training.fsdp)
    for library in run.training.track:
        if find_spec(library) is None:
            extra = "trackio" if library == "trackio" else "track"
            raise RecipeError(f"training.track names {library}, which is not installed; pip install 'isograd[{extra}]'")


def _shard_on_cpus(shards: bool) -> None:
    """torch's FSDP2 shards over gloo as well, but accelerate asks for accelerators and would run DDP without a word.

    Several processes without GPUs are one thing or the other for as long as a run lasts.
    """
    state = PartialState()
    if state.device.type == "cpu" and state.distributed_type in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        state.distributed_type = DistributedType.MULTI_GPU if shards else DistributedType.MULTI_CPU
