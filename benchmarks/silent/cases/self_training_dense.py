"""Self-distillation of a dense labeller passes probabilities where kl_div wants log-probabilities.

In the self-distillation of a per-patch model the soft loss goes below zero and the student becomes needlessly
sharp. F.kl_div takes the log of the student's distribution as its first argument; plain softmax output was given.
The healthy twin uses log_softmax.
"""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/lightly-ai/lightly/pull/1341",
    "cause": "kl_div gets the student's probabilities instead of log-probabilities, so the loss is not a KL divergence and is not smallest where student equals teacher.",
    "number": "gradient norm of the loss at a student identical to its teacher",
    "healthy": (0.0, 1e-5),
    "faulty": (1e-3, 10.0),
}
C, N, D = 6, 25, 40


class DenseLabeller(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(27, D)
        self.pos = nn.Parameter(0.02 * torch.randn(N, D))
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Linear(3 * D, D))
        self.cls = nn.Linear(D, C)

    def forward(self, patches):
        x = self.inp(patches) + self.pos
        h = self.ln1(x)
        split = lambda t: t.view(len(t), N, 4, D // 4)
        q, k, v = split(self.q(h)), split(self.k(h)), split(self.v(h))
        w = torch.einsum("bihd,bjhd->bhij", q, k).div((D // 4) ** 0.5).softmax(-1)
        x = x + self.o(torch.einsum("bhij,bjhd->bihd", w, v).reshape(len(x), N, D))
        x = x + self.ff(self.ln2(x))
        return self.cls(self.ln3(x))


def scenes(n=192, seed=0):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(C, 27, generator=torch.Generator().manual_seed(4))
    y = torch.randint(0, C, (n, N), generator=g)
    return base[y] + torch.randn(n, N, 27, generator=g), y


def fit_teacher():
    torch.manual_seed(3)
    net, (x, y) = DenseLabeller(), scenes(64, 5)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(15):
        opt.zero_grad()
        F.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        opt.step()
    return net.eval().requires_grad_(False)


def setup(faulty: bool):
    teacher = fit_teacher()
    torch.manual_seed(0)
    student = DenseLabeller()

    def loss(model, batch):
        x = batch[0]
        with torch.no_grad():
            target = F.softmax(teacher(x), dim=-1)
        out = model(x)
        student_out = F.softmax(out, dim=-1) if faulty else F.log_softmax(out, dim=-1)
        return F.kl_div(student_out, target, reduction="none").sum(-1).mean()

    data = DataLoader(TensorDataset(*scenes()), batch_size=24, shuffle=True, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    return {"model": student, "loss": loss, "data": data, "optimizer": optimizer, "steps": 50, "teacher": teacher}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    twin = DenseLabeller()
    twin.load_state_dict(s["teacher"].state_dict())
    s["loss"](twin, scenes(48, 8)).backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()]).norm().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
