"""A placement of your own beside two of the catalogue, on your own text or the embedded one.

    python examples/own_placement.py [FILE]

Swin v2's (Liu et al. 2021, arXiv 2111.09883): a norm on what every branch wrote, whose weight begins at 0.
"""

import sys
from pathlib import Path

from isograd.lab import compare, load_run, plan, write_report
from isograd.placement import Norm, Placement, Residual, register

register(
    "swin-v2",
    Placement(
        each=Residual(out=Norm(init=0.0)),
        final=Norm(),
        about="a norm on what every branch wrote, whose weight begins at 0",
        paper="Liu et al. 2021, arXiv 2111.09883",
    ),
)


def main(source: str = "embedded", steps: int = 100, out: Path = Path("runs/own-placement")) -> Path:
    settings = ["model.layers=6", "model.embedding_norm=true", f"data.source={source}", f"training.steps={steps}"]
    arms = plan(out, load_run(overrides=settings), [["pre-ln"], ["post-ln"], ["swin-v2"]])
    compare(
        arms,
        on_step=lambda index, step, loss: print(f"{arms[index].label}: step {step}, loss {loss:.3f}"),
        on_end=lambda index, result: print(f"{arms[index].label}: {result['outcome']}"),
    )
    return write_report([arm.folder for arm in arms], out)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
