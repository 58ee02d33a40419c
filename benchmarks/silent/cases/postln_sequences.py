"""A Post-LN Transformer is trained at the peak rate from the first update.

Without the warm-up the Post-LN decoder gets stuck near the unigram loss although rate and model are those of the paper's recipe. Nothing
diverges. The healthy twin raises the rate linearly over the first updates to the same peak.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "init", "shows": "run",
    "source": "https://github.com/LiyuanLucasLiu/Transformer-Clinic/issues/16",
    "cause": "A Post-LN Transformer is trained with the full learning rate from the first step, without warm-up, so it gets stuck at the start.",
    "number": "mean training loss of the last 20 of 110 updates, in nats",
    "healthy": (0.0, 1.0),
    "faulty": (2.4, 6.0),
}
VOCAB, LENGTH, STEPS, PEAK, WARM = 24, 12, 110, 6e-3, 75


class PostLN(nn.Module):
    def __init__(self, d=32, h=4, depth=12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(LENGTH, d)
        for e in (self.emb, self.pos):
            nn.init.normal_(e.weight, std=d ** -0.5)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, batch_first=True, norm_first=False) for _ in range(depth))
        for layer in self.layers:
            for p in layer.parameters():
                if p.dim() > 1:
                    nn.init.xavier_uniform_(p)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        n = ids.shape[1]
        x = 5.7 * self.emb(ids) + self.pos.weight[:n]
        mask = torch.full((n, n), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x)


def build(faulty: bool):
    return PostLN()


def sequences(g, n=16):
    x = torch.randint(0, VOCAB, (n, LENGTH + 1), generator=g)
    for t in range(1, LENGTH + 1):
        x[:, t] = (5 * x[:, t - 1] + 7) % VOCAB
    return x


def batch():
    return sequences(torch.Generator().manual_seed(1))[:, :-1]


def train(faulty: bool, seed: int = 0):
    torch.manual_seed(seed)
    model = build(faulty)
    opt = torch.optim.Adam(model.parameters(), lr=PEAK, betas=(0.9, 0.98), eps=1e-9)
    warm = 1 if faulty else WARM
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm, (WARM / (s + 1)) ** 0.5))
    g = torch.Generator().manual_seed(100 + seed)
    losses = []
    for _ in range(STEPS):
        x = sequences(g)
        value = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        value.backward()
        opt.step()
        sched.step()
        losses.append(value.item())
    return model, losses


def proof(faulty: bool) -> float:
    return sum(train(faulty)[1][-20:]) / 20


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
