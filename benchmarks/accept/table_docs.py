"""The rows of docs/: longer runs, and those on text that is not in the repository."""

from benchmarks.accept import rules
from benchmarks.accept.row import Row

COMPARE = "docs/compare.md"
SEEDS = "3 runs, seeds 0, 1, 2"

_LINES = {  # of docs/compare.md, by the job that trains them
    "captions-12": (
        "| post-ln | 0 | collapsed 3 of 3 | 3.013, 2.995, 3.013 | 3.012, 3.014, 3.012 | 0.77 → 0.0004 |",
        "| post-ln | 150 | finished 3 of 3 | 2.132, 2.090, 2.126 | 2.170, 2.138, 2.163 | 0.77 → 0.76 |",
        "| pre-ln | 0 | finished 3 of 3 | 1.989, 1.913, 1.957 | 2.030, 1.954, 2.005 | 2.5 → 3.9 |",
        "| normformer | 0 | finished 3 of 3 | 1.963, 1.927, 1.945 | 2.014, 1.985, 2.012 | 3.6 → 4.8 |",
        "| admin | 0 | finished 3 of 3 | 1.973, 1.992, 1.975 | 2.004, 2.037, 2.013 | 2.4 → 1.7 |",
        "| deepnorm | 0 | finished 3 of 3 | 2.156, 2.173, 2.137 | 2.204, 2.202, 2.169 | 1.0 → 1.8 |",
    ),
    "captions-36-warm": (
        "| post-ln | 1e-3 | 100 | collapsed 3 of 3 | 3.019, 3.015, 3.012 |",
        "| admin | 1e-3 | 100 | finished 3 of 3 | 2.201, 2.216, 2.195 |",
        "| pre-ln | 1e-3 | 100 | finished 3 of 3 | 2.186, 2.186, 2.167 |",
    ),
    "captions-36-cold": (
        "| post-ln | 1e-3 | 0 | collapsed 3 of 3 | 3.014, 3.012, 3.007 |",
        "| admin | 1e-3 | 0 | collapsed 3 of 3 | 3.013, 3.012, 3.007 |",
        "| deepnorm | 1e-3 | 0 | undecided 3 of 3 | 3.012, 3.011, 3.005 |",
        "| pre-ln | 1e-3 | 0 | finished 3 of 3 | 2.163, 2.152, 2.135 |",
        "| normformer | 1e-3 | 0 | finished 3 of 3 | 2.161, 2.158, 2.142 |",
    ),
    "captions-36-low": (
        "| post-ln | 3e-4 | 0 | collapsed 3 of 3 | 3.026, 3.025, 3.022 |",
        "| admin | 3e-4 | 0 | finished 3 of 3 | 2.270, 2.263, 2.249 |",
    ),
}
_EXPORTED = {
    "| CTranslate2 | 200 | 30.9887 | 1,000 | 31.7367 |": ("isograd, early_stopping", "CTranslate2"),
    "| BART, `generate` | 200 | 30.9887 | 1,000 | 31.7367 |": (
        "generate, admin",
        "generate, BartForConditionalGeneration",
    ),
}
_GRADIENTS = {
    "gradients-5e-3": (
        "At 5e-3 NormFormer's ratio is 0.66, 0.55 and 0.59 times Pre-LN's of the same seed: its norms hold the"
        " gradients of early and late layers closer together, as figure 3 of Shleifer et al. 2021 shows.",
        {5e-3: (0.45, 0.75)},
        "the ratios are between 0.45 and 0.75",
    ),
    "gradients-1e-3": (
        "At 1e-3 it is 1.16, 1.41 and 1.12 times Pre-LN's: there, and at initialization, the norms do nothing of the"
        " kind.",
        {1e-3: (1.0, 1.6)},
        "the ratios are between 1.0 and 1.6",
    ),
}

DOCS = [
    Row(
        name="docs-blocks",
        page="docs/accept.md",
        sentence="Every block of Python in README and docs that stands by itself runs, and every `isograd` command is"
        " one that its verb takes.",
        rule="nothing fails; what names something of the reader's is compiled, and listed with the names",
        n="all blocks",
        measure=rules.blocks("blocks"),
        jobs=("blocks",),
        tier="full",
    ),
    Row(
        name="docs-site",
        page="docs/accept.md",
        sentence="The site builds without a warning, and every tutorial runs.",
        rule="as `make docs` builds it, with all pages and the outputs of the tutorials",
        n="all pages",
        measure=rules.site("site", 200),
        jobs=("site",),
        tier="full",
    ),
    *(
        Row(
            name=f"{job}-{line.split()[1]}-{i}",
            page=COMPARE,
            sentence=line,
            rule="the outcomes are the same, and the final losses within 0.05 nat, seed by seed",
            n=SEEDS,
            measure=rules.table_line(job, line, rate=3e-4 if "3e-4" in line else 1e-3),
            jobs=(job,),
            tier="full",
        )
        for job, lines in _LINES.items()
        for i, line in enumerate(lines)
    ),
    *(
        Row(
            name=name,
            page="docs/results/small.md",
            sentence=sentence,
            rule=rule,
            n=SEEDS,
            measure=rules.gradient_ratios("captions-gradients", within),
            jobs=("captions-gradients",),
            tier="full",
        )
        for name, (sentence, within, rule) in _GRADIENTS.items()
    ),
    Row(
        name="initial-gradients",
        page="docs/results/initial-gradients.md",
        sentence="| number words | 0.808 (0.810, 0.813, 0.802) | 0.958 (0.950, 0.977, 0.947) |",
        rule="the decoder's factor is between 0.78 and 0.84, the encoder's between 0.93 and 0.99",
        n=SEEDS,
        measure=rules.printed("initial-gradients", {"decoder": (0.78, 0.84), "encoder": (0.93, 0.99)}),
        jobs=("initial-gradients",),
        tier="full",
    ),
    *(
        Row(
            name=f"multi30k-{peers[1].split()[-1].lower()}",
            page="docs/results/export.md",
            sentence=line,
            rule="all 1,000 texts are equal",
            n="1,000 lines, seed 0",
            measure=rules.same_texts("multi30k-exports", 1000, [peers]),
            jobs=("multi30k-exports",),
            tier="full",
        )
        for line, peers in _EXPORTED.items()
    ),
]
