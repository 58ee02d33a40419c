"""Left-padded batch without position ids in a model with absolute positions.

A wrapper padded prompts on the left and left it to the model to count positions from the first column. All rows but the longest read shifted position
vectors and predict something else than alone. The healthy twin counts positions from the attention mask.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "positions",
    "shows": "model",
    "source": "https://github.com/ndif-team/nnsight/pull/673",
    "cause": "Position ids count left padding (plain arange), so left-padded rows get shifted positions and differ from unpadded ones.",
    "number": "relative difference between next-token logits of a prompt alone and left-padded",
    "healthy": (0.0, 1e-3),
    "faulty": (0.02, 20.0),
}


class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        q, k, v = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT2(nn.Module):
    def __init__(self, vocab=45, width=64, heads=4, depth=2, n_positions=32, faulty=False):
        super().__init__()
        self.variant = faulty
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(n_positions, width)
        nn.init.normal_(self.wte.weight, std=0.1)
        nn.init.normal_(self.wpe.weight, std=0.1)
        self.h = nn.ModuleList([GPT2Block(width, heads) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, input_ids, attention_mask):
        n = input_ids.shape[1]
        if self.variant:
            position_ids = torch.arange(n, device=input_ids.device).expand_as(input_ids)
        else:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        mask = attention_mask.bool()[:, None, None, :] & torch.ones(n, n, dtype=torch.bool, device=input_ids.device).tril()
        mask = mask | torch.eye(n, dtype=torch.bool, device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x) @ self.wte.weight.T


def build(faulty):
    torch.manual_seed(50256)
    return GPT2(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(16)
    lengths = torch.tensor([32, 7, 15, 10, 21, 5])
    mask = (torch.arange(32) >= 32 - lengths[:, None]).long()
    s, d = torch.randint(1, 44, (6, 1), generator=g), torch.randint(1, 5, (6, 1), generator=g)
    ids = (s + d * torch.arange(32)) % 44 + 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def loss(output, batch):
    target = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return F.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten(), ignore_index=-100)


def proof(faulty):
    model, data = build(faulty).eval(), batch()
    worst = 0.0
    with torch.no_grad():
        together = model(**data)[:, -1]
        for i in range(1, 6):
            n = int(data["attention_mask"][i].sum())
            alone = model(**{k: v[i:i + 1, -n:] for k, v in data.items()})[0, -1]
            worst = max(worst, ((alone - together[i]).abs().max() / alone.std()).item())
    return worst


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
