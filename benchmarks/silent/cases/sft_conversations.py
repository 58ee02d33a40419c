"""Loss mask by pad id also drops every genuine end token, since pad and end share an id.

Fine-tuned models kept writing until the length limit. The tokenizer had no pad token, so the end token was reused, and
the dataset masked targets equal to that id. The healthy twin masks padding by position and keeps the real end tokens.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4660",
    "cause": "pad_token_id equals eos_token_id and labels are masked by that id, so the end token is never a target and the model does not learn to stop.",
    "number": "share of rows whose end token is among the supervised labels",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.01),
}
EOS = 0
VOCAB, WIDTH = 64, 28


class Conversations(Dataset):
    def __init__(self, faulty, n=200, seed=0):
        self.variant = faulty
        self.pad_token_id = EOS
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            prompt = torch.randint(1, VOCAB, (int(torch.randint(4, 9, (1,), generator=g)),), generator=g)
            answer = (prompt[: 2 + int(torch.randint(0, 3, (1,), generator=g))] % (VOCAB - 1)) + 1
            self.rows.append((prompt, torch.cat([answer, torch.tensor([EOS])])))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, answer = self.rows[i]
        tokens = torch.cat([prompt, answer])
        n = len(tokens)
        ids = torch.full((WIDTH,), self.pad_token_id)
        ids[:n] = tokens
        labels = ids.clone()
        if self.variant:
            labels[labels == self.pad_token_id] = -100
        else:
            labels[n:] = -100
        labels[: len(prompt)] = -100
        return {"input_ids": ids, "labels": labels, "attention_mask": (torch.arange(WIDTH) < n).long()}


class Decoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, d), nn.Embedding(WIDTH, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.h, self.ln = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(d)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, ids):
        t = ids.size(1)
        x = self.h(self.wte(ids) + self.wpe.weight[:t], mask=torch.ones(t, t, dtype=torch.bool).triu(1))
        return self.ln(x) @ self.wte.weight.T


def setup(faulty: bool):
    torch.manual_seed(0)
    model = Decoder()
    data = DataLoader(Conversations(faulty), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        logits = model(batch["input_ids"])[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 50}


def proof(faulty: bool) -> float:
    hit = [(b["labels"] == EOS).any(1) for b in setup(faulty)["data"]]
    return torch.cat(hit).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
