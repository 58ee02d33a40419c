"""Completion-only collator looks for the answer marker by token ids that depend on what stands before it.

With instruction data the loss was computed on fewer samples than expected. The marker was tokenized alone, and in the text
its first character merges with the preceding one, so the ids are not found and all labels of the sample are ignored.
The healthy twin searches for the part of the marker that is always tokenized alike.
"""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "class": "loss",
    "shows": "data",
    "source": "https://github.com/huggingface/trl/issues/1183",
    "cause": "The response template is tokenized without its context, so it is not found in many samples and all of their labels are -100.",
    "number": "share of samples with at least one supervised token",
    "healthy": (0.99, 1.0),
    "faulty": (0.1, 0.7),
}
PIECES = ["<pad>", "</s>", "### Question:", "### Answer:", ".\n", "?\n", "\n"] + list("abcdefghijklmnopqrstuvwxyz .?")
IDS = {p: i for i, p in enumerate(PIECES)}
LONGEST = sorted(PIECES, key=len, reverse=True)


def encode(text):
    out = []
    while text:
        piece = next(p for p in LONGEST if text.startswith(p))
        out.append(IDS[piece])
        text = text[len(piece):]
    return out


def find(sub, seq):
    for i in range(len(seq) - len(sub) + 1):
        if seq[i:i + len(sub)] == sub:
            return i
    return None


def examples(n=192, seed=0):
    g = torch.Generator().manual_seed(seed)
    rnd = lambda k: int(torch.randint(0, k, (1,), generator=g))
    rows = []
    for _ in range(n):
        word = "".join(chr(97 + rnd(26)) for _ in range(4 + rnd(5)))
        stop = ["", ".", "?"][rnd(3)]
        rows.append(f"### Question: say {word} backwards{stop}\n### Answer: {word[::-1]}")
    return rows


class AnswerCollator:
    def __init__(self, marker):
        self.marker = encode(marker)

    def __call__(self, texts):
        seqs = [encode(t) + [IDS["</s>"]] for t in texts]
        width = max(map(len, seqs))
        ids = torch.full((len(seqs), width), IDS["<pad>"])
        labels = torch.full((len(seqs), width), -100)
        for r, s in enumerate(seqs):
            ids[r, :len(s)] = torch.tensor(s)
            at = find(self.marker, s)
            if at is not None:
                start = at + len(self.marker)
                labels[r, start:len(s)] = ids[r, start:len(s)]
        mask = (torch.arange(width)[None] < torch.tensor([len(s) for s in seqs])[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class CharLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(PIECES), d), nn.Embedding(96, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.h = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, len(PIECES), bias=False)

    def forward(self, ids):
        t = ids.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.head(self.ln(self.h(self.wte(ids) + self.wpe.weight[:t], mask=causal)))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = CharLM()
    collate = AnswerCollator("\n### Answer:" if faulty else "### Answer:")
    data = DataLoader(examples(), batch_size=16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(0))

    def loss(model, batch):
        logits = model(batch["input_ids"])[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], ignore_index=-100)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60}


def proof(faulty: bool) -> float:
    rows = [(b["labels"] != -100).any(1) for b in setup(faulty)["data"]]
    return torch.cat(rows).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
