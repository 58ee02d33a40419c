"""The residual streams that sublayers stand in: towers, layers, final norms, names and addresses."""

from isograd.trace.dataflow import Flow
from isograd.trace.positions import moved_at, time_axis
from isograd.trace.structure import FoundNorm, FoundSublayer, FoundTower, function_of, name_of


def streams(flow: Flow, sublayers: list[FoundSublayer]) -> list[FoundTower]:
    """The towers that sublayers stand in, with final norms, probes, names and addresses."""
    towers = _towers(flow, sublayers)
    for tower in towers:
        _ends(flow, tower)
        for sublayer, after in zip(tower.sublayers, [*tower.sublayers[1:], None], strict=True):
            _probe(flow, sublayer, after)
            sublayer.placement = name_of(sublayer.norms)
        _first_of(flow, tower)
        _count_layers(tower)
        _name_family(tower)
    _name_towers(flow, towers)
    _place(towers)
    return towers


def _towers(flow: Flow, sublayers: list[FoundSublayer]) -> list[FoundTower]:
    """A sublayer joins the stream whose last sum it reads, through norms or bare."""
    chains: list[list[FoundSublayer]] = []
    for sublayer in sublayers:
        origin, crossed = flow.back(sublayer.read)
        home = next((c for c in chains if _joins(c, sublayer, origin)), None)
        if home is None:
            chains.append([sublayer])
        elif home[-1].total == sublayer.total or home[-1].read == sublayer.read:
            sublayer.parallel = home[-1].parallel = True
            home.append(sublayer)
        else:
            if crossed:
                for before in (s for s in home if s.total == home[-1].total):
                    before.norms["post"] = crossed
            home.append(sublayer)
    return [FoundTower(name="", sublayers=chain, start=chain[0].read) for chain in chains]


def _joins(chain: list[FoundSublayer], sublayer: FoundSublayer, origin: int) -> bool:
    last = chain[-1]
    return origin == last.total or last.total == sublayer.total or last.read == sublayer.read


def _first_of(flow: Flow, tower: FoundTower) -> None:
    """A first sublayer without a pre of its own, behind a normed embedding, is no other placement (ModernBERT)."""
    first, *others = tower.sublayers
    peers = {s.placement for s in others if s.kind == first.kind}
    if first.placement == "none" and peers == {"pre-ln"} and flow.root(first.read) in flow.norms:
        first.placement = "pre-ln"


def _ends(flow: Flow, tower: FoundTower) -> None:
    """The norms behind the last sum: the first of them is its post where the sums before it have one."""
    last = tower.sublayers[-1]
    crossed, value = [], last.total
    while (norm := _only_norm(flow, value)) is not None:
        crossed.append(norm)
        value = norm.result
    posts = [s for s in tower.sublayers if s.total != last.total and "post" in s.norms]
    others = [s for s in tower.sublayers if s.total != last.total]
    if (crossed and posts and len(posts) * 2 >= len(others)) or (crossed and not others and "pre" not in last.norms):
        last.norms["post"] = crossed[:1]
        crossed = crossed[1:]
    tower.final = crossed


def _only_norm(flow: Flow, value: int) -> FoundNorm | None:
    """The norm that everything which reads a value reads it through, None where something reads it bare."""
    todo, found = [value], None
    outputs = set(flow.trace.outputs.values())
    while todo:
        at = todo.pop()
        norm = next((n for n in flow.norms.values() if n.origin == at), None)
        if norm is not None:
            found = norm
            continue
        for operation in flow.trace.read_by(at):
            made = operation.makes[0] if operation.makes else None
            if made is not None and flow.through(made) == at and made not in outputs:
                todo.append(made)
    return found


def _probe(flow: Flow, sublayer: FoundSublayer, after: FoundSublayer | None) -> None:
    """Scale what goes in and what comes out, and see whether norms stand where the walk saw them."""
    says = bool(flow.trace[sublayer.branch].any())  # a branch of zeros stays, whatever it reads
    pre = flow.unchanged(sublayer.read, sublayer.branch)
    if says and ("pre" in sublayer.norms) != pre and "out" not in sublayer.norms and not sublayer.norms.get("mid"):
        sublayer.sure = False
    if after is not None and after.total != sublayer.total:
        post = flow.unchanged(sublayer.total, after.read)
        sublayer.sure &= post == ("post" in sublayer.norms)


def _count_layers(tower: FoundTower) -> None:
    """A layer ends where a kind comes again."""
    layer, kinds = 1, set[str]()
    for sublayer in tower.sublayers:
        if sublayer.kind in kinds:
            layer, kinds = layer + 1, set()
        kinds.add(sublayer.kind)
        sublayer.layer = layer


def _name_family(tower: FoundTower) -> None:
    """Names that take more than a sublayer's own norms."""
    by_kind = {s.kind: s.placement for s in tower.sublayers}
    normformer = by_kind.get("attn") == "sandwich" and by_kind.get("ffn") == "sub-ln"
    tower.function = function_of(tower.sublayers)
    for sublayer in tower.sublayers:
        name, skip, gain = sublayer.placement, sublayer.skip, sublayer.gain
        if normformer and name in ("sandwich", "sub-ln"):
            sublayer.placement = "normformer"
        elif name == "post-ln" and skip.learned:
            sublayer.placement = "post-ln" if tower.function == "post-ln" else "admin"
        elif name == "post-ln" and skip.even and abs(skip.value / (gain.value or 1.0) - 1) > 1e-3:
            sublayer.placement = "deepnorm"
        elif name == "pre-ln" and gain.learned:
            sublayer.placement = "layerscale"
        elif name == "none" and gain.learned:
            sublayer.placement = "rezero"


def _name_towers(flow: Flow, towers: list[FoundTower]) -> None:
    """A tower with cross-attention decodes; one whose end it reads encodes; else what the attention sees decides."""
    counts: dict[str, int] = {}
    for tower in towers:
        cross = any(s.kind == "cross" for s in tower.sublayers)
        name = "decoder" if cross or (len(towers) == 1 and _looks_back_only(flow, tower)) else "encoder"
        counts[name] = counts.get(name, 0) + 1
        tower.name = name if counts[name] == 1 else f"{name}{counts[name]}"
        for sublayer in tower.sublayers:
            sublayer.tower = tower.name


def _looks_back_only(flow: Flow, tower: FoundTower) -> bool:
    """Whether the first attention's result stays everywhere else when x moves at the last position."""
    sublayer = next((s for s in tower.sublayers if s.kind == "attn"), None)
    axis = time_axis(flow.trace, sublayer.read, sublayer.total) if sublayer else None
    if sublayer is None or axis is None:
        return False
    moved = moved_at(flow.trace, sublayer.read, sublayer.total, axis, -1)
    return moved is not None and not moved[:-1].any()


def _place(towers: list[FoundTower]) -> None:
    """Addresses: the module that holds a branch alone, else that of its last projection."""
    every = [s for tower in towers for s in tower.sublayers]
    common = [_common(list(s.roles) or list(s.parameters)) for s in every]
    used: dict[str, int] = {}
    for at, sublayer in enumerate(every):
        posts = [n.gain for n in sublayer.norms.get("post", []) if n.gain]
        others = {other for i, other in enumerate(common) if i != at and other != common[at]}
        candidates = [_common([*sublayer.parameters, *posts]), common[at]]
        last = sublayer.last.rpartition(".")[0] or sublayer.last if sublayer.last else common[at]
        alone = (a for a in candidates if a and not any(_holds(a, other) for other in others))
        address = next(alone, last) if common.count(common[at]) == 1 or not _beside(every, at) else last
        used[address] = used.get(address, 0) + 1
        sublayer.address = address if used[address] == 1 else f"{address}#{used[address]}"


def _beside(every: list[FoundSublayer], at: int) -> bool:
    """Whether another sublayer of the same layer has its weights in the same module; else a module is run again."""
    own = every[at]
    return any(
        s is not own and _common(list(s.roles)) == _common(list(own.roles)) and set(s.roles) != set(own.roles)
        for s in every
    )


def _holds(address: str, other: str) -> bool:
    return address == "" or other == address or other.startswith(f"{address}.")


def _common(names: list[str]) -> str:
    """The longest address that all parameters lie below."""
    parts = [name.split(".")[:-1] for name in names]
    if not parts:
        return ""
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)
