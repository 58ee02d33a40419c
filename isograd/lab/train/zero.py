"""DeepSpeed's ZeRO: what the JSON of `training.deepspeed` says, filled in by the recipe.

Batch, clipping, precision, optimizer and schedule are the recipe's. The file may leave them out, leave them to it
("auto", as transformers' Trainer reads it) or say the same; another value is refused, since it would win in silence.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isograd.errors import RecipeError
from isograd.files import read_json
from isograd.lab.train.run import Run, Training

BUCKET = 500_000_000  # DeepSpeed's `reduce_bucket_size` where the file does not say


@dataclass(frozen=True, kw_only=True)
class Zero:
    """What the file says of memory.

    Attributes:
        stage: 1 shards the optimizer's state, 2 the gradients too, 3 the parameters too.
        bucket: numbers that are reduced together; None where it is left to the model's width ("auto").
        buckets: two where one is filled while the other is on its way.
        optimizer_stays, parameters_stay: on the device, and not in the host's memory or on a disk.
    """

    stage: int
    bucket: int | None
    buckets: int
    optimizer_stays: bool
    parameters_stay: bool


def zero_of(training: Training) -> Zero | None:
    """What `training.deepspeed` says of memory; None where it is not set.

    Raises:
        RecipeError: there is no such file, or it cannot be used.
    """
    if training.deepspeed is None:
        return None
    zero = content(training.deepspeed)["zero_optimization"]
    bucket = zero.get("reduce_bucket_size", BUCKET)
    return Zero(
        stage=zero["stage"],
        bucket=None if bucket == "auto" else int(bucket),
        buckets=2 if zero.get("overlap_comm", zero["stage"] == 3) and zero["stage"] < 3 else 1,
        optimizer_stays=_stays(zero, "offload_optimizer"),
        parameters_stay=zero["stage"] < 3 or _stays(zero, "offload_param"),
    )


def settings(run: Run, processes: int) -> dict[str, Any]:
    """DeepSpeed's whole configuration.

    An optimizer other than Adam stays what it is where its state is offloaded, and a sharded model is saved whole.

    Raises:
        RecipeError: there is no such file, or it contradicts the recipe.
    """
    t = run.training
    assert t.deepspeed is not None
    filled = content(t.deepspeed)
    for key, (ours, value) in _recipes(run, processes).items():
        *path, name = key.split(".")
        section = filled
        for part in path:
            section = section.setdefault(part, {})
        if section.setdefault(name, "auto") not in ("auto", value):
            raise RecipeError(
                f"training.deepspeed={t.deepspeed}: {key}={json.dumps(section[name])}, and {ours} makes it"
                f" {json.dumps(value)}; leave it out there"
            )
    filled["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    if t.optimizer not in ("adam", "adamw"):  # accelerate would put DeepSpeed's Adam in its place
        filled["zero_force_ds_cpu_optimizer"] = False
    return filled


def content(path: str) -> dict[str, Any]:
    """The file as it stands.

    Raises:
        RecipeError: there is no such file, it holds no ZeRO, or it names what the recipe names.
    """
    where = f"training.deepspeed={path}"
    try:
        found = read_json(Path(path))
    except OSError as error:
        raise RecipeError(f"{where}: no such file; it takes the path of a DeepSpeed configuration in JSON") from error
    except ValueError as error:
        raise RecipeError(f"{where} is not JSON: {error}") from error
    zero = found.get("zero_optimization") if isinstance(found, dict) else None
    stage = zero.get("stage") if isinstance(zero, dict) else None
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise RecipeError(f'{where} must hold "zero_optimization": {{"stage": 1, 2 or 3}}; its stage is {stage}')
    for key, ours in (("optimizer", "training.optimizer and training.weight_decay"), ("scheduler", "training.decay")):
        if key in found:
            raise RecipeError(f"{where} names its own {key}; leave it to {ours}")
    return dict(found)


def _recipes(run: Run, processes: int) -> dict[str, tuple[str, Any]]:
    """DeepSpeed's keys -> the recipe's, and their values."""
    t, batch, micro = run.training, run.batch_key, run.micro_batch(processes)
    return {
        "train_batch_size": (batch, micro * processes * t.accumulation),
        "train_micro_batch_size_per_gpu": (batch, micro),
        "gradient_accumulation_steps": ("training.accumulation", t.accumulation),
        "gradient_clipping": ("training.clip", t.clip),
        "bf16.enabled": ("training.precision", t.precision == "bf16"),
        "fp16.enabled": ("training.precision", t.precision == "fp16"),
    }


def _stays(zero: dict[str, Any], part: str) -> bool:
    return (zero.get(part) or {}).get("device", "none") == "none"
