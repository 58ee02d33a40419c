"""Preference rows carry the assistant header twice: once from the prompt and once from the answer.

Prompts were rendered with a generation prompt and the answers were rendered as messages of their own, so the joined text
had two assistant headers, which no prompt at inference has. The healthy twin renders the answer without its header.
"""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

CASE = {
    "class": "data",
    "shows": "data",
    "source": "https://github.com/xfactlab/orpo/issues/7",
    "cause": "The chat template's generation prompt is in the prompt and again in the chosen and rejected answers, so the assistant header is doubled in training.",
    "number": "mean count of assistant headers per one-turn row",
    "healthy": (0.99, 1.01),
    "faulty": (1.9, 2.1),
}
WORDS = ["<pad>", "<s>", "<|end|>", "<|user|>", "<|assistant|>", "\n"] + [f"w{i}" for i in range(50)]
ID = {w: i for i, w in enumerate(WORDS)}
PAD, HEADER = ID["<pad>"], ID["<|assistant|>"]


def apply_template(messages, add_generation_prompt=False, header=True):
    out = []
    for m in messages:
        if header:
            out += [f"<|{m['role']}|>", "\n"]
        out += m["content"].split() + ["<|end|>", "\n"]
    if add_generation_prompt:
        out += ["<|assistant|>", "\n"]
    return out


def conversations(n=160, seed=0):
    g = torch.Generator().manual_seed(seed)
    word = lambda lo, hi: f"w{int(torch.randint(lo, hi, (1,), generator=g))}"
    for _ in range(n):
        k = int(torch.randint(3, 8, (1,), generator=g))
        yield {"prompt": " ".join(word(0, 50) for _ in range(k)), "chosen": " ".join(word(0, 25) for _ in range(4)),
               "rejected": " ".join(word(25, 50) for _ in range(k))}


class Rows:
    def __init__(self, faulty):
        self.items = []
        for ex in conversations():
            prompt = ["<s>"] + apply_template([{"role": "user", "content": ex["prompt"]}], add_generation_prompt=True)
            row = {}
            for side in ("chosen", "rejected"):
                answer = apply_template([{"role": "assistant", "content": ex[side]}], header=faulty)
                ids = torch.tensor([ID[w] for w in prompt + answer])
                labels = ids.clone()
                labels[: len(prompt)] = -100
                row[side] = (ids, labels)
            self.items.append(row)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(rows):
    out = {}
    for side in ("chosen", "rejected"):
        ids, labels = zip(*(r[side] for r in rows))
        out[side] = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
        out[side + "_labels"] = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    return out


class LM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(WORDS), d), nn.Embedding(48, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, len(WORDS), bias=False)

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.pos.weight[:t]
        return self.head(self.norm(self.body(x, mask=torch.ones(t, t, dtype=torch.bool).triu(1))))


def setup(faulty: bool):
    torch.manual_seed(0)
    model = LM()

    def mean_logp(ids, labels):
        lp, tgt = model(ids)[:, :-1].log_softmax(-1), labels[:, 1:]
        own = lp.gather(-1, tgt.clamp(min=0)[..., None]).squeeze(-1)
        keep = (tgt != -100).float()
        return (own * keep).sum(1) / keep.sum(1)

    def loss(model, b):
        c, r = mean_logp(b["chosen"], b["chosen_labels"]), mean_logp(b["rejected"], b["rejected_labels"])
        odds = (c - r) - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
        return -c.mean() - 0.2 * F.logsigmoid(odds).mean()

    data = DataLoader(Rows(faulty), 16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(0))
    return {"model": model, "loss": loss, "data": data, "optimizer": torch.optim.AdamW(model.parameters(), lr=5e-4), "steps": 50}


def proof(faulty: bool) -> float:
    return torch.cat([(b["chosen"] == HEADER).sum(1) for b in setup(faulty)["data"]]).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
