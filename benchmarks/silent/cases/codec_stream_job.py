"""A resumed run reads its data from the beginning again.

The loader keeps no state and its seed is fixed, so each restart replays the first permutation from position zero; the head of the corpus is seen often and
its tail not at all. The healthy twin stores the position and goes on from there.
"""
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "resume",
    "shows": "run",
    "source": "https://github.com/KempnerInstitute/KempnerForge/issues/51",
    "cause": "The data position is not saved, so after the resume the loader starts at the first batch again and repeats data already seen while the rest of the epoch is never read.",
    "number": "share of the corpus read in one epoch that was cut in the middle",
    "healthy": (0.99, 1.0),
    "faulty": (0.3, 0.7),
}
CODES, D, L, ITEMS, BATCH = 48, 48, 24, 320, 8


class CodecLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.time = nn.Embedding(CODES, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.next = nn.LayerNorm(D), nn.Linear(D, CODES)
        self.register_buffer("causal", torch.ones(L, L, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x):
        h = self.code(x) * 0.1 + self.time.weight * 0.1
        for layer in self.layers:
            h = layer(h, src_mask=self.causal, is_causal=True)
        return self.next(self.norm(h))


class Stream:
    def __init__(self, items, seed):
        g = torch.Generator().manual_seed(seed)
        self.items, self.order, self.at = items, torch.randperm(len(items), generator=g), 0

    def __iter__(self):
        while self.at + BATCH <= len(self.order):
            pick = self.order[self.at:self.at + BATCH]
            self.at += BATCH
            yield pick, self.items[pick]


def speech():
    g = torch.Generator().manual_seed(1)
    return (torch.randint(0, CODES, (ITEMS, 1), generator=g) + torch.randint(1, 6, (ITEMS, 1), generator=g) * torch.arange(L + 1)) % CODES


class Job:
    def __init__(self):
        torch.manual_seed(0)
        self.model = CodecLM()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01)
        self.stream, self.done, self.read, self.losses = Stream(speech(), 7), 0, [], []

    def run(self, until):
        for pick, ids in self.stream:
            value = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            self.opt.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.read += pick.tolist()
            self.losses.append(value.item())
            self.done += 1
            if self.done == until:
                break

    def save(self, path, faulty):
        state = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "done": self.done}
        if not faulty:
            state["at"] = self.stream.at
        torch.save(state, path)

    def load(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.done, self.stream.at = state["done"], state.get("at", 0)


def train(faulty: bool):
    path = os.path.join(tempfile.mkdtemp(), "job.pt")
    first = Job()
    first.run(ITEMS // BATCH // 2)
    first.save(path, faulty)
    second = Job()
    second.load(path)
    second.run(ITEMS // BATCH)
    return {"model": second.model, "losses": first.losses + second.losses, "read": first.read + second.read}


def proof(faulty: bool) -> float:
    return len(set(train(faulty)["read"])) / ITEMS


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
