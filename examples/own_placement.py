"""A placement of your own beside two of the catalogue, on your own text or the embedded one.

    python examples/own_placement.py [FILE]

Peri-LN (Kim et al. 2025): a norm before and after every branch, one on the embedding, one at the end.
"""

import sys
from pathlib import Path

from isograd.placement import Norm, Placement, Residual, register
from isograd.report.runs_page import write_report
from isograd.study.compare import compare, plan
from isograd.train.run import Model
from isograd.train.tasks.language import TextData, TextTraining

register(
    "peri-ln",
    Placement(
        each=Residual(pre=Norm(), out=Norm()),
        final=Norm(),
        about="a norm before and after every branch",
        paper="Kim et al. 2025",
    ),
)


def main(source: str = "embedded", steps: int = 100, out: Path = Path("runs/own-placement")) -> Path:
    arms = plan(
        out,
        placements=["pre-ln", "post-ln", "peri-ln"],
        model=Model(layers=6, embedding_norm=True),
        data=TextData(source=source),
        training=TextTraining(steps=steps),
    )
    compare(
        arms,
        on_step=lambda index, step, loss: print(f"{arms[index].label}: step {step}, loss {loss:.3f}"),
        on_end=lambda index, result: print(f"{arms[index].label}: {result['outcome']}"),
    )
    return write_report([arm.folder for arm in arms], out)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
