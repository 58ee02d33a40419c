"""headroom.json written by hand, from boundaries that are known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isograd.files import finite
from isograd.lab.study.boundary import Boundary, RateSearch, RateVerdict, next_rate, over_seeds
from isograd.lab.train.run import Model
from isograd.lab.train.tasks.language import LanguageRun, TextTraining

Edges = Mapping[tuple[str, int], Sequence[float]]  # placement and warm-up -> the boundary of each seed; 0: none


def headroom_of(edges: Edges, *, lr: float = 1e-3, warmup: int = 0, placement: str = "pre-ln") -> dict[str, Any]:
    """What a search finds where everything up to the edge trains, and at a hundredth of it is too slow."""
    search = RateSearch(start=lr)
    base = LanguageRun(model=Model(placement=placement), training=TextTraining(lr=lr, warmup=warmup))
    chains = [
        _chain(name, steps, seed, edge, search)
        for (name, steps), of_seeds in edges.items()
        for seed, edge in enumerate(of_seeds, 1)
    ]
    trials = [one for chain in chains for one in chain["tried"]]
    content = {
        "name": "written",
        "base": base.as_dict(),
        "placements": list(dict.fromkeys(name for name, _ in edges)),
        "warmups": list(dict.fromkeys(steps for _, steps in edges)),
        "seeds": list(range(1, 1 + max(map(len, edges.values())))),
        "search": asdict(search),
        "data": {"source": "a text", "tokens": 1000, "unigram_entropy": 3.0, "sha256": "0" * 64},
        "chains": chains,
        "levels": [_level(name, steps, chains) for name, steps in edges],
        "cost": {"runs": len(trials), "updates": 200 * len(trials), "seconds": 8.0 * len(trials)},
        "provenance": {"isograd": "0", "device": "a machine"},
    }
    return json.loads(json.dumps(finite(content)))


def _chain(placement: str, warmup: int, seed: int, edge: float, search: RateSearch) -> dict[str, Any]:
    seen: dict[float, RateVerdict] = {}
    while not isinstance(wanted := next_rate(seen, search), Boundary):
        slow = wanted < edge / 100 or (not edge and wanted < 1e-4)
        seen[wanted] = (
            "slow" if slow else "finished" if wanted <= edge else "collapsed" if wanted < 4 * edge else "diverged"
        )
    tried = [{"lr": rate, "verdict": verdict, "cell": "c", "outcome": "finished", "steps": 200, "final_loss": 2.5,
              "seconds": 8.0} for rate, verdict in seen.items()]  # fmt: skip
    return {"placement": placement, "warmup": warmup, "seed": seed, "tried": tried, "boundary": asdict(wanted)}


def _level(placement: str, warmup: int, chains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    mine = [Boundary(**c["boundary"]) for c in chains if (c["placement"], c["warmup"]) == (placement, warmup)]
    level = over_seeds(mine)
    return {"placement": placement, "warmup": warmup, "level": asdict(level) if level else None}


def write(folder: Path, content: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "headroom.json").write_text(json.dumps(content))
    return folder


FIVE: Edges = {
    ("post-ln", 0): (4.1e-4, 5.2e-4, 4.6e-4),
    ("post-ln", 50): (8.5e-4, 9e-4, 7e-4),
    ("post-ln", 150): (2.2e-3, 1.7e-3, 2.4e-3),
    ("pre-ln", 0): (0.04, 0.05, 0.055),
    ("pre-ln", 50): (0.05, 0.07, 0.06),
    ("pre-ln", 150): (0.05, 0.09, 0.08),
    ("normformer", 0): (0.05, 0.06, 0.045),
    ("normformer", 50): (0.07, 0.1, 0.06),
    ("normformer", 150): (5, 0.3, 5),
    ("admin", 0): (6e-3, 8e-3, 1e-2),
    ("admin", 50): (8e-3, 1e-2, 1.2e-2),
    ("admin", 150): (1.5e-2, 1e-2, 1.9e-2),
    ("deepnorm", 0): (2e-3, 0, 3e-3),
    ("deepnorm", 50): (4e-3, 3e-3, 5e-3),
    ("deepnorm", 150): (7e-3, 6e-3, 5e-3),
}
