"""Two replicas that never average their gradients and differ most of the time, by design (local SGD with an outer optimizer).

DiLoCo lets each replica take many inner AdamW steps on its own data; only now and then the mean change of the weights goes through an outer Nesterov step and
all replicas start from its result. It trains about as well as averaging at each step.
"""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "kind": "oddity",
    "class": "processes",
    "shows": "run",
    "source": "https://arxiv.org/abs/2311.08105",
    "cause": "Gradients are not all-reduced and replicas diverge between rounds, which is the published DiLoCo method: parameters are averaged by an outer optimizer every few steps.",
    "number": "loss on held-out data after 120 inner updates over that of averaging gradients at each step",
    "healthy": (0.0, 1.3),
    "faulty": None,
}
V, D, L, WORLD, INNER = 48, 48, 20, 2, 10


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 3 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.register_buffer("causal", torch.ones(L, L, dtype=torch.bool).triu(1), persistent=False)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.causal, is_causal=True)
        return self.head(self.norm(x))


def shard(n, g):
    ids = (torch.randint(0, V, (n, 1), generator=g) + torch.randint(1, 5, (n, 1), generator=g) * torch.arange(L + 1)) % V
    other = torch.randint(0, V, ids.shape, generator=g)
    return torch.where(torch.rand(ids.shape, generator=g) < 0.9, ids, other)


def loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def inner_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)


def train(faulty: bool):
    torch.manual_seed(0)
    shared = LM()
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.6, nesterov=True)
    replicas = [copy.deepcopy(shared) for _ in range(WORLD)]
    inner = [inner_optimizer(r) for r in replicas]
    gens, losses = [torch.Generator().manual_seed(10 + r) for r in range(WORLD)], []
    for _ in range(12):
        for model, opt, g in zip(replicas, inner, gens):
            for _ in range(INNER):
                value = loss(model, shard(8, g))
                opt.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                losses.append(value.item())
        for p, *theirs in zip(shared.parameters(), *(r.parameters() for r in replicas)):
            p.grad = p.detach() - torch.stack([t.detach() for t in theirs]).mean(0)
        outer.step()
        for model in replicas:
            model.load_state_dict(shared.state_dict())
    return {"model": shared, "losses": losses}


def ordinary():
    torch.manual_seed(0)
    model = LM()
    opt, gens = inner_optimizer(model), [torch.Generator().manual_seed(10 + r) for r in range(WORLD)]
    for _ in range(12 * INNER):
        opt.zero_grad()
        for g in gens:
            (loss(model, shard(8, g)) / WORLD).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return model


def proof(faulty: bool) -> float:
    held = shard(128, torch.Generator().manual_seed(99))
    model, plain = train(faulty)["model"], ordinary()
    with torch.no_grad():
        return (loss(model, held) / loss(plain, held)).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
