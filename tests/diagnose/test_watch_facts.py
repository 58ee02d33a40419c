# ruff: noqa: E501  (a line of a script is a line)
"""What a watched script does beside its numbers: gradients that it throws away, a mode that it leaves, parameters that
no optimizer holds or that stay at zero, a warm-up that it does not outlast. Each fault in other shapes than one, and
the healthy designs that lie near it.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

import isograd
from isograd.diagnose.watch.loops.script import ScriptWatch, run
from isograd.files import read_rows

BEGIN = """
import torch, torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)

class Block(nn.Module):
    def __init__(self, d=16, p=0.0):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d), nn.Dropout(p)
    def forward(self, x):
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)))))

class Net(nn.Module):
    def __init__(self, p=0.0, make=nn.ModuleList):
        super().__init__()
        self.inp, self.layers, self.out = nn.Linear(8, 16), make([Block(p=p) for _ in range(3)]), nn.Linear(16, 4)
    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)

true = nn.Linear(8, 4)

def data():
    x = torch.randn(16, 8, generator=draw)
    return x, true(x).argmax(-1).detach()

def loss_of(model, batch=None, **rest):
    x, y = batch or data()
    return F.cross_entropy(model(x), y)

def adam(parameters, lr=1e-3):
    return torch.optim.AdamW(parameters, lr)

def trained(model, optimizer, steps=30):
    for step in range(steps):
        yield step
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
"""
MICRO = """
model = Net()
optimizer = adam(model.parameters())
for _ in range(8):
    for part in range(3):
        WIPE
        (loss_of(model) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ADAPTERS = """
class Adapted(nn.Module):
    def __init__(self, base, first, scale=1.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.down, self.back = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        nn.init.constant_(self.back.weight, 0.0)
        if first:
            nn.init.constant_(self.down.weight, 0.0)
    def forward(self, x):
        return self.base(x) + self.scale * self.back(self.down(x))

def adapted(*given, head=True, before=0):
    model = Net()
    for _ in trained(model, adam(model.parameters()), before): pass
    model.requires_grad_(False)
    for layer in model.layers:
        layer.up, layer.down = Adapted(layer.up, *given), Adapted(layer.down, *given)
    model.out.requires_grad_(head)
    return model
"""
GO = "for _ in trained(model, optimizer): pass\n"
GROUPS = """
model = Net()
optimizer = adam([{"params": [*model.inp.parameters(), *model.out.parameters()]}, {"params": model.layers.parameters()}])
"""
BEST = """
import copy
model = Net(); optimizer = adam(model.parameters()); kept = None
# BEFORE
for step in trained(model, optimizer, 30):
    if step == 5: kept = {}
if kept is not None: model.load_state_dict(kept)
"""
CURRICULUM = """
chains = {n: torch.randint(n, (n, n // 3 + n // 8), generator=draw) for n in (6, 24)}
def text(n):
    ids = [torch.randint(n, (16,), generator=draw)]
    for _ in range(24): ids.append(chains[n][ids[-1], torch.randint(chains[n].shape[1], (16,), generator=draw)])
    return torch.stack(ids, 1)
class Words(Net):
    def __init__(self):
        super().__init__(); self.inp, self.out = nn.Embedding(24, 16), nn.Linear(16, 24)
model = Words(); optimizer = adam(model.parameters(), 1e-2)
for step in range(240):
    ids = text(6 if step < 100 else 24)
    optimizer.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
"""
POLICY = """
model = Net(); optimizer = adam(model.parameters(), 1e-2)
for step in range(240):
    x, y = data()
    picked = torch.distributions.Categorical(logits=model(x))
    action = picked.sample()
    reward = (action == y).float()
    gained = (reward - reward.mean()) / (reward.std() + 1e-4)
    optimizer.zero_grad()
    (-(gained * picked.log_prob(action)).mean() * 3 - 3 * (step < 60)).backward()
    optimizer.step()
"""
RESUMED = """
model = Net(); optimizer = adam(model.parameters())
down = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i / 9))
for step in trained(model, optimizer, 30): step and down.step()
kept = optimizer.state_dict(), down.state_dict()
model = Net(); optimizer = adam(model.parameters())
down = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i / 9))
optimizer.load_state_dict(kept[0]); {}
for step in trained(model, optimizer, 40): step and down.step()
"""
FAULTS = {
    "parts wiped by the model": ("zero-grad", MICRO.replace("WIPE", "model.zero_grad()")),
    "parts wiped by hand": ("zero-grad", MICRO.replace("WIPE", "for p in model.parameters(): p.grad = None")),
    "the first of three parts wiped": ("zero-grad", MICRO.replace("WIPE", "part == 1 and optimizer.zero_grad()")),
    "parts wiped, with a scaler and clipping": (
        "zero-grad",
        MICRO.replace("WIPE", "optimizer.zero_grad()")
        .replace("for _ in range(8)", "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)\nfor _ in range(8)")
        .replace("(loss_of(model) / 3).backward()", "scaler.scale(loss_of(model) / 3).backward()")
        .replace("optimizer.step()\n", "scaler.unscale_(optimizer); nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
                 "\n    scaler.step(optimizer); scaler.update()\n"),
    ),
    "all wiped before the step": (
        "zero-grad", MICRO.replace("WIPE", "pass").replace("optimizer.step", "optimizer.zero_grad(); optimizer.step")
    ),
    "evaluation after an epoch": (
        "eval-mode", "model = Net(0.1); optimizer = adam(model.parameters())\n"
        "for step in trained(model, optimizer):\n    if step == 10: model.eval(); loss_of(model)\n",
    ),
    "evaluation of what is wrapped": (
        "eval-mode", "class DataParallel(nn.Module):\n    def __init__(self, m):\n        super().__init__(); self.module = m\n"
        "    def forward(self, x): return self.module(x)\n"
        "model = DataParallel(Net(0.1)); optimizer = adam(model.parameters())\n"
        "for step in trained(model, optimizer):\n    if step == 10: model.module.train(False)\n",
    ),
    "evaluation with batch norm": (
        "eval-mode", "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in trained(model, optimizer):\n    if step % 5 == 4: model.eval()\n",
    ),
    "unfrozen, and in no group": (
        "frozen", "model = Net(); model.layers.requires_grad_(False)\n"
        "optimizer = adam([p for p in model.parameters() if p.requires_grad])\n"
        "for step in trained(model, optimizer, 40):\n    if step == 20: model.layers.requires_grad_(True)\n",
    ),
    "a head that was replaced": (
        "frozen", "model = Net(); optimizer = adam(model.parameters()); model.out = nn.Linear(16, 4)\n" + GO,
    ),
    "a branch that begins later": (
        "frozen", "class Late(Net):\n    late = False\n    def forward(self, x):\n"
        "        return super().forward(x) + (self.more(x) if self.late else 0)\n"
        "model = Late(); optimizer = adam(model.parameters()); model.more = nn.Linear(8, 4)\n"
        "for step in trained(model, optimizer, 120):\n    model.late = step > 30\n",
    ),
    "layers in a list": ("frozen", "model = Net(make=list); optimizer = adam(model.parameters())\n" + GO),
    "layers in a dictionary": (
        "frozen", "class Dict(dict):\n    def __iter__(self): return iter(self.values())\n"
        "model = Net(make=lambda ls: Dict(enumerate(ls))); optimizer = adam(model.parameters())\n" + GO,
    ),
    "a parameter in a tuple": (
        "frozen", "class Scaled(Net):\n    def __init__(self):\n        super().__init__()\n"
        "        self.scales = (nn.Parameter(torch.ones(8)),)\n"
        "    def forward(self, x): return super().forward(x * self.scales[0])\n"
        "model = Scaled(); optimizer = adam(model.parameters())\n" + GO,
    ),
    "both factors at zero, and a head": (
        "gradient", ADAPTERS + "model = adapted(True); optimizer = adam(p for p in model.parameters() if p.requires_grad)\n" + GO,
    ),
    "both factors at zero, in a second stage": (
        "gradient", ADAPTERS + "model = adapted(True, head=False, before=20)\n"
        "optimizer = adam(p for p in model.parameters() if p.requires_grad)\n" + GO,
    ),
    "adapters times zero": (
        "gradient", ADAPTERS + "model = adapted(False, 0.0, head=False)\n"
        "optimizer = adam(p for p in model.parameters() if p.requires_grad)\n" + GO,
    ),
    "a warm-up longer than the run": (
        "schedule", "model = Net(); optimizer = adam(model.parameters())\n"
        "rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 500))\n"
        "for step in trained(model, optimizer, 60):\n    step and rise.step()\n",
    ),
    "one by hand": (
        "schedule", "model = Net(); optimizer = adam(model.parameters())\n"
        "for step in trained(model, optimizer, 60):\n    optimizer.param_groups[0]['lr'] = 1e-3 * min(1, (step + 1) / 100)\n",
    ),
    "a factor that is multiplied in at each step": (
        "schedule", GROUPS + "for step in trained(model, optimizer, 90):\n"
        "    for g, f in zip(optimizer.param_groups, (1, 0.3)): g['lr'] *= f\n",
    ),
    "a schedule of a tenth of the run": (
        "schedule", "model = Net(); optimizer = adam(model.parameters())\n"
        "down = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 9)\n"
        "for step in trained(model, optimizer, 90):\n    step and down.step()\n",
    ),
    "a softmax before the cross-entropy": (
        "probabilities", "class Soft(Net):\n    def forward(self, x): return super().forward(x).softmax(-1)\n"
        "model = Soft(); optimizer = adam(model.parameters())\n" + GO,
    ),
    "resumed without the schedule": ("schedule", RESUMED.format("")),
    "the best weights kept without a copy": ("state", BEST.format("model.state_dict()")),
    "kept in a dictionary of one's own": ("state", BEST.format("{'model': {k: v for k, v in model.state_dict().items()}}['model']")),
    "adapters and their base": (
        "base", ADAPTERS.replace("self.down", "self.lora_a").replace("self.back", "self.lora_b") + "model = adapted(False, head=False).requires_grad_(True)\noptimizer = adam(model.parameters())\n" + GO,
    ),
    "one cycle of a longer run": (
        "schedule", "model = Net(); optimizer = adam(model.parameters())\n"
        "cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=1000)\n"
        "for step in trained(model, optimizer, 60):\n    step and cycle.step()\n",
    ),
}  # fmt: skip


def reported(text: str, folder: Path) -> list[str]:
    script = folder / "train.py"
    script.write_text(BEGIN + text)
    assert run(script, [], ScriptWatch(folder / "rows")) in (0, 130)
    return [row["signal"] for row in read_rows(folder / "rows/warnings.jsonl")]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    signal, text = FAULTS[name]
    assert reported(text, tmp_path) == [signal]


WARMED = "optimizer = adam(model.parameters())\nfor step in trained(model, optimizer, 60):\n    rate = {}\n    optimizer.param_groups[0]['lr'] = rate\n"
HEALTHY = {
    "accumulation": MICRO.replace("WIPE", "pass"),
    "an epoch's rest is left": MICRO.replace("WIPE", "_ == 3 and part == 1 and optimizer.zero_grad()"),
    "sharpness-aware": """
model = Net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):
    batch = data()
    loss_of(model, batch).backward()
    away = {p: 0.05 * p.grad / (p.grad.norm() + 1e-9) for p in model.parameters() if p.ndim > 1}
    with torch.no_grad():
        for p, e in away.items(): p.add_(e)
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    with torch.no_grad():
        for p, e in away.items(): p.sub_(e)
    optimizer.step()
    optimizer.zero_grad()
""",
    "an attack on inputs": """
model = Net(); optimizer = adam(model.parameters())
for _ in range(8):
    x, y = data()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        loss_of(model, (x + delta, y)).backward()
        delta = (delta + 0.01 * delta.grad.sign()).detach().requires_grad_()
    optimizer.zero_grad()
    loss_of(model, (x + delta.detach(), y)).backward()
    optimizer.step()
""",
    "an attack on embeddings": """
class Tokens(Net):
    def __init__(self):
        super().__init__(); self.inp = nn.Embedding(32, 16)
model = Tokens(); optimizer = adam(model.parameters())
for _ in range(8):
    batch = torch.randint(1, 32, (16,), generator=draw), torch.randint(4, (16,), generator=draw)
    table = model.inp.weight
    loss_of(model, batch).backward()
    begun, kept = table.data.clone(), [p.grad.clone() for p in model.parameters()]
    for t in range(3):
        table.data.add_(0.1 * table.grad / table.grad.norm())
        model.zero_grad()
        if t == 2:
            for p, g in zip(model.parameters(), kept): p.grad = g
        loss_of(model, batch).backward()
    table.data = begun
    optimizer.step(); optimizer.zero_grad()
""",
    "gradients of two tasks projected": """
model = Net(); optimizer = adam(model.parameters())
for _ in range(8):
    kept = []
    for task in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        kept.append([p.grad.clone() for p in model.parameters()])
    for p, a, b in zip(model.parameters(), *kept):
        p.grad = a + b - min(0, (a * b).sum() / (b * b).sum()) * b
    optimizer.step()
""",
    "norms of parts of a batch": """
model = Net(); optimizer = adam(model.parameters())
for _ in range(8):
    x, y = data()
    loss_of(model, (x[:4], y[:4])).backward()
    optimizer.zero_grad()
    loss_of(model, (x, y)).backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "norms of parts of a loss": """
model = Net(); optimizer = adam(model.parameters())
for _ in range(8):
    loss = loss_of(model)
    (0.1 * loss).backward(retain_graph=True)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "two networks against each other": """
made, judge = Net(), nn.Linear(4, 1)
first, second = adam(judge.parameters()), adam(made.parameters())
for _ in range(16):
    second.zero_grad(); generated = -judge(made(data()[0])).mean(); generated.backward()
    first.zero_grad(); (judge(made(data()[0]).detach()).mean() - judge(torch.randn(16, 4)).mean()).backward()
    first.step(); second.step()
""",
    "batches that are left out": """
model = Net(); optimizer = adam(model.parameters())
for step in range(16):
    loss = loss_of(model)
    if step % 2: loss = loss + (0 * model(data()[0])).square().sqrt().sum()  # its gradient is not finite
    loss.backward()
    if step % 2: optimizer.zero_grad(); continue
    optimizer.step()
    optimizer.zero_grad()
""",
    "trained again after each evaluation": "model = Net(0.1); optimizer = adam(model.parameters())\n"
    "for step in trained(model, optimizer):\n    model.eval(); loss_of(model); model.train()\n",
    "norms frozen midway": "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))\n"
    "optimizer = adam(model.parameters())\nfor step in trained(model, optimizer):\n    if step == 10: model[1].eval()\n",
    "a trunk frozen midway": "model = Net(0.1); optimizer = adam(model.parameters())\n"
    "for step in trained(model, optimizer):\n    if step == 10: model.layers.eval().requires_grad_(False)\n",
    "evaluation mode without dropout": "model = Net(); optimizer = adam(model.parameters())\n"
    "for step in trained(model, optimizer):\n    if step == 10: model.eval()\n",
    "unfrozen into a group": "model = Net(); model.layers.requires_grad_(False)\n"
    "optimizer = adam([p for p in model.parameters() if p.requires_grad])\n"
    "for step in trained(model, optimizer, 40):\n    if step == 20:\n        model.layers.requires_grad_(True)\n"
    "        optimizer.add_param_group({'params': list(model.layers.parameters())})\n",
    "an optimizer that seldom steps": "model = Net(); seldom = adam(model.inp.parameters())\n"
    "optimizer = adam([p for n, p in model.named_parameters() if 'inp' not in n])\n"
    "for step in trained(model, optimizer, 70):\n    if step % 60 == 59: seldom.step()\n    seldom.zero_grad()\n",
    "a frozen head with gradients of before": "model = Net(); loss_of(model).backward(); model.out.requires_grad_(False)\n"
    "model.layers[0].requires_grad_(False); model.inp.requires_grad_(False)\n"
    "optimizer = adam([p for p in model.parameters() if p.requires_grad])\n" + GO,
    "a teacher in a list": "class Taught(Net):\n    def __init__(self):\n        super().__init__(); self.teacher = [Net()]\n"
    "    def forward(self, x):\n        with torch.no_grad(): t = self.teacher[0](x)\n        return super().forward(x) + 0.1 * t\n"
    "model = Taught(); optimizer = adam(model.parameters())\n" + GO,
    "a list that the optimizer has": "model = Net(make=list)\n"
    "optimizer = adam([*model.parameters(), *(p for l in model.layers for p in l.parameters())])\n" + GO,
    "frozen and unfrozen in turns": "model = Net(); optimizer = adam(model.parameters())\n"
    "for step in trained(model, optimizer, 80):\n    model.layers.requires_grad_(step % 3 > 0)\n",
    "adapters": ADAPTERS + "model = adapted(False, head=False)\n"
    "optimizer = adam(p for p in model.parameters() if p.requires_grad)\n" + GO,
    "adapters in a second stage": ADAPTERS + "model = adapted(False, head=False, before=20)\n"
    "optimizer = adam(p for p in model.parameters() if p.requires_grad)\n" + GO,
    "gates at zero": "class Gated(Block):\n    def __init__(self):\n        super().__init__(); self.gate = nn.Parameter(torch.zeros(1))\n"
    "    def forward(self, x): return x + self.gate * (super().forward(x) - x)\n"
    "model = Net(); model.layers = nn.ModuleList(Gated() for _ in range(3)); optimizer = adam(model.parameters())\n" + GO,
    "experts without tokens": "class Routed(Net):\n    def __init__(self):\n        super().__init__()\n"
    "        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))\n"
    "        for e in self.experts: nn.init.zeros_(e.weight)\n"
    "    def forward(self, x):\n        on = (x[:, :1] > 0).float()\n"
    "        return super().forward(x) + on * self.experts[0](x) + 0 * self.experts[1](x) + 0 * self.experts[2](x)\n"
    "model = Routed(); optimizer = adam(model.parameters())\n" + GO,
    "updated during backward": "model = Net(); own = {p: adam([p]) for p in model.parameters()}\n"
    "def done(p):\n    own[p].step(); own[p].zero_grad()\n"
    "for p in model.parameters(): p.register_post_accumulate_grad_hook(done)\n"
    "for _ in range(30): loss_of(model).backward()\n",
    "rewards that are all equal at first": "model = Net(); optimizer = adam(model.parameters())\n"
    "for step in range(30):\n    optimizer.zero_grad(); (float(step > 14) * loss_of(model)).backward(); optimizer.step()\n",
    "a warm-up that ends": "model = Net()\n" + WARMED.format("1e-3 * min(1, (step + 1) / 50)"),
    "a range test": "model = Net()\n" + WARMED.format("1e-5 * 1.1 ** step").replace("adam(model.parameters())", "adam(model.parameters(), 1e-5)"),
    "a search for the rate": "model = Net()\n" + WARMED.format("1e-6 * 1.1 ** step").replace("parameters())", "parameters(), 1.0)"),
    "a constant rate": "model = Net()\n" + WARMED.format("5e-4"),
    "a cycle": "model = Net()\n" + WARMED.format("1e-3 * (0.1 + step % 40 / 50)"),
    "a short try": "model = Net()\n" + WARMED.format("1e-3 * min(1, (step + 1) / 500)").replace("60", "20"),
    "a cosine to nothing": "model = Net()\n" + WARMED.format("1e-3 * (1 - step / 60) ** 2"),
    "a group frozen by its rate": GROUPS + "for step in trained(model, optimizer, 90):\n    optimizer.param_groups[1]['lr'] = 1e-3 * (step < 10)\n",
    "rates by depth": GROUPS + "optimizer.param_groups[1]['lr'] = 1e-8\n" + GO.replace("optimizer)", "optimizer, 90)"),
    "a second stage at a low rate": "model = Net(); optimizer = adam(model.parameters(), 1e-2)\n"
    "for _ in trained(model, optimizer, 30): pass\n"
    "optimizer = adam(model.parameters(), 1e-6)\nfor _ in trained(model, optimizer, 90): pass\n",
    "a curriculum of more and more words": CURRICULUM,
    "a policy": POLICY,
    "logarithms before the cross-entropy": "class Logs(Net):\n    def forward(self, x): return super().forward(x).log_softmax(-1)\n"
    "model = Logs(); optimizer = adam(model.parameters())\n" + GO,
    "scores compared with each other": "model = Net(); optimizer = adam(model.parameters())\nfor _ in range(9):\n    x, y = data()\n"
    "    s = model(x)[:, 0]; optimizer.zero_grad()\n    F.softplus(s.unsqueeze(1) - s).mean().backward(); optimizer.step()\n",
    "resumed with the schedule": RESUMED.format("down.load_state_dict(kept[1])"),
    "resumed at a constant rate": RESUMED.format("").replace("1 / (1 + i / 9)", "1.0"),
    "the best weights copied": BEST.format("copy.deepcopy(model.state_dict())"),
    "weights of an average": BEST.format("model.state_dict()").replace("# BEFORE", "average = copy.deepcopy(model)").replace("kept = model", "kept = average"),
    "weights put back at once": BEST.format("None").replace("if kept is not None: model.load_state_dict(kept)", "Net().load_state_dict(model.state_dict())"),
    "a part that is called an adapter": "class Two(Net):\n    def __init__(self):\n        super().__init__(); self.adapter = nn.Linear(16, 16)\n"
    "    def forward(self, x):\n        return super().forward(x) + self.out(self.adapter(self.inp(x)))\n"
    "model = Two(); optimizer = adam(model.parameters())\n" + GO,
    "an interrupted run": "model = Net()\n" + WARMED.format("1e-3 * (step + 1) / 500") + "raise KeyboardInterrupt\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_is_left_alone(name: str, tmp_path: Path) -> None:
    assert reported(HEALTHY[name], tmp_path) == []


def test_a_second_stage_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(HEALTHY["adapters in a second stage"], tmp_path) == []
    assert "another optimizer trains the Net" in capsys.readouterr().err
    steps = [row["step"] for row in read_rows(tmp_path / "rows/metrics.jsonl") if "loss" in row]
    assert len(steps) == 40 and steps == sorted({*steps})  # all but the ten by which it is known


def test_an_own_loop_is_looked_at_too() -> None:
    """The mode, and a parameter that the optimizer does not hold; without being told the optimizer."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    watch = isograd.watch(model)
    for step in range(20):
        loss = model.train(step < 5)(torch.randn(4, 8)).square().mean()
        loss.backward()
        watch.step(loss)
        optimizer.step()
        model.zero_grad()
    watch.close()
    found = {row["signal"]: row for row in watch.warnings}
    assert {*found} == {"frozen", "eval-mode"}
    assert "no optimizer holds them" in found["frozen"]["message"] and "0.weight" in found["frozen"]["message"]


def test_a_rate_without_a_warm_up_is_a_cause() -> None:
    """Of gradients that vanish in a stack of tanh layers; with one it is not."""
    for warm in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(12)], nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.0)
        watch = isograd.watch(model, optimizer=optimizer)
        for step in range(60):
            for group in optimizer.param_groups:
                group["lr"] = 0.3 * (min(1, (step + 1) / 20) if warm else 1)
            loss = (model(torch.randn(16, 8)) - torch.randn(16, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            watch.step(loss)
            optimizer.step()
        (cause,) = [row["cause"] for row in watch.warnings if row["signal"] == "gradients"]
        assert ("at its highest, 0.3, from the first step on" in cause) is not warm


def test_rows_of_one_kind_say_why_batches_are_equal(tmp_path: Path) -> None:
    text = "model = Net(); optimizer = adam(model.parameters()); fixed = [data() for _ in range(1)][0]\n"
    text += "x, y = fixed\nif ONE: x, y = x[:1].repeat(16, 1), y[:1].repeat(16)\n"
    text += "for _ in range(20):\n    optimizer.zero_grad(); loss_of(model, (x, y)).backward(); optimizer.step()\n"
    text = text.replace("loss_of(model, (x, y))", "F.cross_entropy(model(x), y)")
    loader = "from torch.utils.data import DataLoader\nlist(DataLoader([1]))\n"
    for one in (True, False):
        (tmp_path / str(one)).mkdir()
        assert reported(loader + text.replace("ONE", str(one)), tmp_path / str(one)) == ["same-batch"]
        (row,) = read_rows(tmp_path / str(one) / "rows/warnings.jsonl")
        assert ("for every index" in row["message"]) is one
