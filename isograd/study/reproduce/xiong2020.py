"""Xiong et al. 2020: who needs a warm-up, and the gradients that say so."""

from isograd.study.reproduce import judge
from isograd.study.reproduce.data import IWSLT14
from isograd.study.reproduce.item import Chart, Full, Item, Published, Rows, Runs, Verdict

_SMALL = (  # of xiong2020/iwslt14-small: as many updates as still tell the arms apart
    "training.epochs=0",
    "training.steps=400",
    "training.tokens=2048",
    "training.valid_every=100",
    "search.pairs=100",
)
_ARMS = {
    f"{name}, {where}, lr {lr}": (placement, f"training.warmup={warmup}", f"training.lr={lr}", *more)
    for name, placement, more in (
        ("Post-LN", "post-ln", ()),
        ("Pre-LN", "pre-ln", ()),
    )
    for where, warmup in (("no warm-up", 0), ("warm-up 40", 40), ("warm-up 200", 200))
    for lr in ("1e-3", "2e-3")
    if placement == "post-ln" or not warmup
}


def _warmup(rows: Rows) -> Verdict:
    """Post-LN's validation loss with the long warm-up against that with none, at both rates."""
    return judge.both(
        *(
            judge.paired(
                rows,
                "validation_loss",
                f"Post-LN, warm-up 200, lr {lr}",
                f"Post-LN, no warm-up, lr {lr}",
                "lower",
                unit="nats",
                least=0.05,
            )
            for lr in ("1e-3", "2e-3")
        )
    )


ITEMS = (
    Item(
        id="xiong2020/warmup-fig2",
        title="Post-LN needs its warm-up: BLEU and validation loss with Adam, by warm-up and rate",
        claim="Without warm-up a Post-LN translation model trained with Adam stays far behind the same model with it.",
        published=(
            Published(label="BLEU, Post-LN, no warm-up", value=8.45, tag="paper"),
            Published(label="BLEU, Post-LN, warm-up 4000", value=34, tag="paper"),
            Published(label="BLEU, Post-LN, warm-up 500, lr 5e-4", value=31.16, tag="paper"),
            Published(label="BLEU, Post-LN, warm-up 500, lr 1e-3", value=2.77, tag="paper"),
        ),
        size_paper="6+6 layers, width 512, 153K pairs, 15 epochs",
        size_here="6+6 layers, width 64, 400 updates of 2,048 tokens, 3 seeds",
        differs="Width, updates and batch; a third of the training pairs; a warm-up of 200 of 400 updates in place of"
        " 4000; the rates are those at which so narrow a model shows the effect.",
        rule="Same direction: at both rates the validation loss of Post-LN with the long warm-up is lower than without,"
        " by more than 0.05 nats with every seed (the interval of the median paired difference).",
        judge=_warmup,
        corpus=IWSLT14,
        runs=(Runs(recipe="xiong2020/iwslt14-small", arms=_ARMS, overrides=_SMALL),),
        run_charts=("validation", "gradients"),
        charts=(
            Chart(
                name="warmup",
                title="Validation loss by warm-up",
                x="arm",
                y="validation_loss",
                kind="bars",
                y_label="validation loss (nats per token)",
            ),
        ),
        full=Full(recipe="xiong2020/iwslt14", devices=1),
    ),
)
