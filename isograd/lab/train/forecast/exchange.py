"""What FSDP2 exchanges: each layer is gathered before its forward and its backward pass, its gradients are scattered.

    received by a device, per micro-batch = (n - 1) / n * P * (2 g + r)

P parameters, n devices, g bytes of a parameter as it is gathered, r of a gradient as it is reduced: both those of the
products (accelerate's policy). It is the volume of ring collectives (NCCL's PERFORMANCE.md: all-gather and
reduce-scatter move (n - 1) / n of the whole through each device). Gradients are taken to be reduced in every
micro-batch.
"""

from dataclasses import dataclass

from isograd.lab.train.forecast.memory import parameters, product_bytes
from isograd.lab.train.run import Run
from isograd.models import IsogradConfig


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Bytes that one device receives in one update."""

    gathered: int
    reduced: int

    @property
    def total(self) -> int:
        return self.gathered + self.reduced

    def seconds(self, bandwidth: float) -> float:
        """At so many bytes a second in one direction, latency left out."""
        return self.total / bandwidth


def exchanged(run: Run, config: IsogradConfig, devices: int) -> Exchange:
    """Of a run with training.fsdp; nothing on one device."""
    count = sum(parameters(config, run.task).values())
    whole = count * product_bytes(run.training) * run.training.accumulation
    each = whole * (devices - 1) // devices
    return Exchange(gathered=2 * each, reduced=each)
