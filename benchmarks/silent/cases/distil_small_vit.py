"""Knowledge distillation whose soft term compares the teacher with itself.

A tutorial's distillation run gave the same student as plain training. After a refactoring, the student's log-probabilities
in the soft term were computed from the large model's logits, so that term is zero and has no gradient.
The healthy twin uses the student's logits there.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/66",
    "cause": "The distillation term is computed from the teacher's logits on both sides, so the student gets no gradient from the teacher.",
    "number": "relative change of the student's gradient when the teacher is replaced by another one",
    "healthy": (0.1, 10.0),
    "faulty": (0.0, 1e-6),
}


class PatchNet(nn.Module):
    def __init__(self, dim, depth, classes=5):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.fc = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, img):
        x = self.embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.fc(self.norm(self.blocks(x))[:, 0])


def pictures(n, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(11))
    y = torch.randint(0, 5, (n,), generator=g)
    return proto[y] + 0.8 * torch.randn(n, 1, 16, 16, generator=g), y


def train_teacher(seed, steps=25):
    torch.manual_seed(seed)
    net = PatchNet(48, 2)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for i in range(steps):
        x, y = pictures(32, 1000 * seed + i)
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return net.eval().requires_grad_(False)


def setup(faulty: bool, teacher_seed=1):
    large = train_teacher(teacher_seed)
    torch.manual_seed(0)
    small = PatchNet(24, 1)
    temperature, alpha = 4.0, 0.8

    def loss(model, batch):
        data, target = batch
        with torch.no_grad():
            large_logits = large(data)
        logits = model(data)
        soft_target = F.softmax(large_logits / temperature, -1)
        if faulty:
            log_prob = F.log_softmax(large_logits / temperature, -1)
        else:
            log_prob = F.log_softmax(logits / temperature, -1)
        soft = F.kl_div(log_prob, soft_target, reduction="batchmean") * temperature ** 2
        return alpha * soft + (1 - alpha) * F.cross_entropy(logits, target)

    data = DataLoader(TensorDataset(*pictures(256, 2)), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    opt = torch.optim.AdamW(small.parameters(), lr=1e-3)
    return {"model": small, "loss": loss, "data": data, "optimizer": opt, "steps": 40}


def grads(s, batch):
    s["loss"](s["model"], batch).backward()
    return torch.cat([p.grad.flatten() for p in s["model"].parameters()])


def proof(faulty: bool) -> float:
    batch = pictures(64, 9)
    a, b = grads(setup(faulty, 1), batch), grads(setup(faulty, 7), batch)
    return ((a - b).norm() / a.norm()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
