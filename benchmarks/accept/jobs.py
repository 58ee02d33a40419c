"""The commands of the table, each once; what lies in `{data}` is said in docs/accept.md."""

from benchmarks.accept import items
from benchmarks.accept.row import Job

_ONE = "--jobs 1 --out {out}"  # one run at a time: each command is a process of its own
_DEEP = "isograd compare model.layers=36 training.steps=200"
_ALL = "--placements post-ln pre-ln normformer admin deepnorm"
_ENGLISH = "{data}/multi30k-de-en/train.en.gz"
_CAPTIONS = "pairs.train=[{data}/multi30k-de-en/train] pairs.valid=[{data}/multi30k-de-en/valid]"
_TEST = "{data}/multi30k-de-en/test2016"
_WIKI = "data.source={data}/wikipedia-en/train-0of4.txt.xz data.valid={data}/wikipedia-en/valid.txt.gz"
_IWSLT = "pairs.train=[{data}/iwslt14-de-en/train-subset] pairs.valid=[{data}/iwslt14-de-en/valid]"
_GLUE = "--seeds 0 1 2 3 4 --lr 3e-4 --with-scratch --json --out {out} training.precision=bf16 glue.length=96"

_HERE = {  # what needs nothing but the repository: command, minutes of one core
    "compare-12": (f"isograd compare --seeds 0 1 2 {_ONE}", 6),
    "compare-36-cold": (f"{_DEEP} --seeds 0 1 2 {_ONE} {_ALL}", 10),
    "compare-36-warm": (f"{_DEEP} training.warmup=100 --seeds 0 1 2 {_ONE} {_ALL}", 10),
    "gradients": (
        "isograd compare normformer2021/gradients-small --arm pre-ln --arm normformer"
        f" --arm pre-ln training.lr=1.0e-3 --arm normformer training.lr=1.0e-3 {_ONE}",
        4,
    ),
    "lr-range": (
        f"isograd compare normformer2021/lr-stability-small --arm pre-ln --arm normformer {_ONE}",
        9,
    ),
    "number-words": ("isograd train number-words --out {out}", 2.5),
    "number-words-scores": ("isograd evaluate {number-words} --pairs numbers:test --json", 0.3),
    "number-words-admin": (
        "isograd train number-words model.placement=admin model.embedding_norm=true --out {out}",
        3,
    ),
    "fold": ("isograd export {number-words-admin} --out {out} --to folded", 0.3),
    "exports": (
        "python benchmarks/decoding_export.py --model {number-words-admin} --data numbers:test --sentences 500"
        " --rounds 1 --json {out}/turns.json",
        1,
    ),
    "check-models": (
        "python -m pytest -p no:cacheprovider tests/lint/test_families.py tests/lint/test_faults.py",
        1.5,
    ),
    "faults-held-out": ("python -m benchmarks.faults check --held-out --out {out}", 8),
    "study-warmup": ("isograd study warmup --jobs 1 --out {out}", 44),
    "study-depth": ("isograd study depth --jobs 1 --out {out}", 68),
    "headroom": (f"isograd study studies/headroom --find max-lr {_ONE}", 53),
    "initial-gradients": ("python examples/initial_gradients.py", 3),
    "blocks": ("python -m benchmarks.accept.blocks --out {out}", 8),
    "site": ("python -m sphinx --fail-on-warning --keep-going --quiet docs {out}/html", 4),
}
_ELSEWHERE = {  # what needs other text: command, minutes of one core, files below --data
    "captions-12": (f"isograd compare --data {_ENGLISH} --seeds 0 1 2 {_ONE}", 6, "multi30k-de-en/train.en.gz"),
    "captions-36-cold": (f"{_DEEP} --data {_ENGLISH} --warmup 0 {_ALL}", 10, "multi30k-de-en/train.en.gz"),
    "captions-36-warm": (
        f"{_DEEP} --data {_ENGLISH} --warmup 100 --placements post-ln admin pre-ln",
        6,
        "multi30k-de-en/train.en.gz",
    ),
    "captions-36-low": (
        f"{_DEEP} --data {_ENGLISH} --warmup 0 --lr 3e-4 --placements post-ln admin",
        4,
        "multi30k-de-en/train.en.gz",
    ),
    "captions-gradients": (
        f"isograd compare normformer2021/gradients-small data.source={_ENGLISH} {_ONE}",
        6,
        "multi30k-de-en/train.en.gz",
    ),
    "multi30k": (
        f"isograd train multi30k {_CAPTIONS} training.select=average --out {{out}}",
        17,
        "multi30k-de-en/train.*",
    ),
    "multi30k-scores": (
        f"isograd evaluate {{multi30k}} --src {_TEST}.de.gz --ref {_TEST}.en.gz --json",
        0.5,
        "multi30k-de-en/test2016.*",
    ),
    "multi30k-admin": (
        f"isograd train multi30k-admin {_CAPTIONS} --out {{out}}",
        20,
        "multi30k-de-en/train.*",
    ),
    "multi30k-exports": (
        f"python benchmarks/decoding_export.py --model {{multi30k-admin}} --data {_TEST}.de.gz"
        f" --reference {_TEST}.en.gz --sentences 1000 --rounds 1 --json {{out}}/turns.json",
        4,
        "multi30k-de-en/test2016.*",
    ),
    "18l": (
        f"isograd compare admin2020/18l-small {_CAPTIONS} {_ONE}",
        14,
        "multi30k-de-en/train.*",
    ),
    "60l-12l": (
        f"isograd compare verydeep2020/60l-12l-small {_CAPTIONS} {_ONE}",
        14,
        "multi30k-de-en/train.*",
    ),
    "iwslt14": (
        f"isograd compare xiong2020/iwslt14-small {_IWSLT} {_ONE}",
        63,
        "iwslt14-de-en/train-subset.*",
    ),
    "bert-small": (
        f"isograd compare xiong2020/bert-small {_WIKI} {_ONE}",
        30,
        "wikipedia-en/train-0of4.txt.xz",
    ),
    "clm-small": (
        f"isograd compare normformer2021/clm-small {_WIKI} {_ONE}",
        30,
        "wikipedia-en/train-0of4.txt.xz",
    ),
    "bert-mini": (f"isograd train bert-mini {_WIKI} --out {{out}}", 17, "wikipedia-en/train-0of4.txt.xz"),
    "gpt-mini": (f"isograd train gpt-mini {_WIKI} --out {{out}}", 21, "wikipedia-en/train-0of4.txt.xz"),
    "glue-mrpc": (
        f"isograd evaluate {{bert-mini}} --task mrpc --data {{data}}/glue/MRPC {_GLUE}",
        25,
        "glue/MRPC/*",
    ),
    "glue-rte": (
        f"isograd evaluate {{bert-mini}} --task rte --data {{data}}/glue/RTE {_GLUE}",
        25,
        "glue/RTE/*",
    ),
    "blimp": (
        "isograd evaluate {gpt-mini} --data {data}/zeroshot --tasks blimp --json",
        15,
        "zeroshot/blimp.*",
    ),
}

_JOBS = [
    *(Job(name=name, command=command, minutes=minutes) for name, (command, minutes) in _HERE.items()),
    *(
        Job(name=name, command=command, minutes=minutes, needs=needs)
        for name, (command, minutes, needs) in _ELSEWHERE.items()
    ),
    Job(name="theory", command="isograd reproduce theory --negative-controls --out {out}", minutes=4.5, codes=(0, 1)),
    Job(
        name="collapse-grid-new",
        command="python benchmarks/collapse_grid.py --first 20000 --runs 60 --folder {out}",
        minutes=15,
    ),
    Job(
        name="collapse-table-new",
        command="python benchmarks/collapse_rules.py --folder {collapse-grid-new} --table {out}/table.csv",
        minutes=1,
    ),
    *items.jobs(),
]
JOBS = {job.name: job for job in _JOBS}
