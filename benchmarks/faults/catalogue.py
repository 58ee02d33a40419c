"""All faults, by family."""

from benchmarks.faults import in_code, in_state
from benchmarks.faults.fault import Fault

FAMILIES: dict[str, tuple[Fault, ...]] = {
    "masks": in_code.MASKS,
    "attention": in_code.ATTENTION,
    "positions": in_code.POSITIONS,
    "residuals": in_code.RESIDUALS,
    "norms": in_code.NORMS,
    "branches": in_code.BRANCHES,
    "calls of layers": in_code.CALLS,
    "outputs": in_code.OUTPUTS,
    "gradients": in_code.GRADIENTS,
    "initialization": in_state.INITS,
    "norm weights": in_state.NORM_WEIGHTS,
    "frozen": in_state.FROZEN,
    "optimizer": in_state.OPTIMIZERS,
}
FAULTS: dict[str, Fault] = {fault.name: fault for family in FAMILIES.values() for fault in family}
FAMILY: dict[str, str] = {fault.name: family for family, faults in FAMILIES.items() for fault in faults}
