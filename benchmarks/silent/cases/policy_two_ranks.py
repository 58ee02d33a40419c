"""Gradients are not averaged between ranks, since the forward pass goes around the data-parallel wrapper.

The loss-bearing forward called the wrapped module itself; the reducer is armed only in the wrapper's forward, so backward() reduced nothing and each rank
trained alone. The healthy twin calls the wrapper. Rank 0 is this process, rank 1 a second one, joined by gloo.
"""
import os
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

CASE = {
    "class": "processes",
    "shows": "run",
    "source": "https://github.com/jingyaogong/minimind/pull/854",
    "cause": "The forward pass calls model.module instead of the DistributedDataParallel wrapper, so gradients are never all-reduced and the ranks' weights diverge.",
    "number": "largest difference between the two ranks' weights after 30 updates",
    "healthy": (0.0, 1e-5),
    "faulty": (0.001, 10.0),
}
V, D, L = 40, 48, 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(L, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        self.register_buffer("causal", torch.ones(L, L, dtype=torch.bool).triu(1), persistent=False)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.causal, is_causal=True)
        return self.head(self.norm(x))


def rollouts(n, g):
    ids = (torch.randint(0, V, (n, 1), generator=g) + torch.randint(1, 4, (n, 1), generator=g) * torch.arange(L + 1)) % V
    return ids, torch.rand(n, generator=g) + 0.5          # tokens and advantages


def worker(rank, folder, faulty):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(Policy())
    policy = wrapped.module if faulty else wrapped
    opt = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, weight_decay=0.01)
    g = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(30):
        ids, advantage = rollouts(8, g)
        nll = F.cross_entropy(policy(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
        value = (advantage * nll).mean()
        opt.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        opt.step()
        losses.append(value.item())
    if rank:
        torch.save(wrapped.module.state_dict(), os.path.join(folder, f"rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    return wrapped.module, losses


def train(faulty: bool):
    folder = tempfile.mkdtemp()
    torch.set_num_threads(1)
    other = mp.get_context("fork").Process(target=worker, args=(1, folder, faulty))
    other.start()
    model, losses = worker(0, folder, faulty)
    other.join()
    return {"model": model, "losses": losses, "other": torch.load(os.path.join(folder, "rank1.pt"))}


def proof(faulty: bool) -> float:
    r = train(faulty)
    return max((p.detach() - r["other"][n]).abs().max().item() for n, p in r["model"].named_parameters())


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
