"""Sequence log-probabilities of a preference loss kept in bfloat16: differences of large sums drown in rounding.

The log-softmax of bfloat16 logits stays in bfloat16 and so does its sum over the answer (hundreds of nats, spacing 1 to 2), while the margin between
policy and reference is of order one; the signal is noise. The healthy twin takes log-softmax and sum in float32.
"""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "precision",
    "shows": "step",
    "source": "https://github.com/huggingface/trl/pull/7084",
    "cause": "Token log-probabilities and their sum over the answer are computed in bfloat16, so the policy-reference log-ratios of the preference loss are rounding noise.",
    "number": "mean error of the policy-reference log-ratio against float64 logits' sums, in nats",
    "healthy": (0.0, 0.05),
    "faulty": (0.2, 5.0),
}
V, T, D, PROMPT = 96, 128, 64, 16


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, F.gelu, batch_first=True, norm_first=True) for _ in range(2))
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        nn.init.normal_(self.wte.weight, std=0.1)
        nn.init.normal_(self.wpe.weight, std=0.1)

    def forward(self, ids):
        n = ids.shape[1]
        x = self.wte(ids) + self.wpe.weight[:n]
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=ids.device)
        for b in self.blocks:
            x = b(x, src_mask=mask, is_causal=True)
        return self.head(self.ln(x))


def pairs(n, seed):
    g = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, V, (n, PROMPT), generator=g)
    good = torch.randint(0, V // 2, (n, T - PROMPT), generator=g) * 2
    bad = torch.randint(0, V, (n, T - PROMPT), generator=g)
    return torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1)


def sequence_logp(logits, ids, faulty):
    if not faulty:
        logits = logits.float()
    logp = logits[:, PROMPT - 1:-1].log_softmax(-1)
    return logp.gather(-1, ids[:, PROMPT:, None]).squeeze(-1).sum(-1)


def setup(faulty: bool):
    torch.manual_seed(0)
    policy = Policy()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    data = DataLoader(TensorDataset(*pairs(64, 1)), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    opt = torch.optim.AdamW(policy.parameters(), lr=5e-5, weight_decay=0.01)

    def ratio(model, ids):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            new = model(ids)
            with torch.no_grad():
                old = reference(ids)
        return sequence_logp(new, ids, faulty) - sequence_logp(old, ids, faulty)

    def loss(model, batch):
        margin = ratio(model, batch[0]) - ratio(model, batch[1])
        return -F.logsigmoid(0.1 * margin.float()).mean()

    return {"model": policy, "reference": reference, "loss": loss, "data": data, "optimizer": opt, "steps": 30, "ratio": ratio}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    policy, opt = s["model"], s["optimizer"]
    for b in list(s["data"])[:3]:
        opt.zero_grad()
        s["loss"](policy, b).backward()
        opt.step()
    ids = pairs(64, 9)[0]
    with torch.no_grad():
        got = s["ratio"](policy, ids).double()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a, b = policy(ids), s["reference"](ids)
        want = sequence_logp(a.double(), ids, True) - sequence_logp(b.double(), ids, True)
    return (got - want).abs().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
