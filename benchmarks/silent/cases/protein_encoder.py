"""A position table that is a non-persistent buffer is left unfilled after building on the meta device.

The encoder was built on meta, given storage and filled from a checkpoint; the table is not in the checkpoint and nothing computed it again, so it held
whatever the storage held (here zeros) and positions were lost. The healthy twin recomputes such buffers.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "state",
    "shows": "model",
    "source": "https://github.com/macwiatrak/Bacformer/issues/33",
    "cause": "The non-persistent position buffer is not recomputed after meta-device initialization and is not in the checkpoint, so the model runs with an uninitialized (zero) table and no positions.",
    "number": "largest change of the outputs (put back in order) when the residues are shuffled",
    "healthy": (0.05, 50.0),
    "faulty": (0.0, 1e-3),
}
RES, D, L = 25, 48, 40


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.empty(L, D), persistent=False)
        self.fill()

    @torch.no_grad()
    def fill(self):
        t = torch.arange(L, device=self.table.device)[:, None]
        f = 500.0 ** (-torch.arange(0, D, 2, device=self.table.device) / D)
        self.table.copy_(torch.stack([(t * f).sin(), (t * f).cos()], -1).flatten(1))

    def forward(self, x):
        return x + self.table[:x.shape[1]]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(RES, D), Positions()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.norm, self.to_residue = nn.LayerNorm(D), nn.Linear(D, RES)

    def forward(self, residues):
        x = self.positions(self.embed(residues))
        for layer in self.layers:
            x = layer(x)
        return self.to_residue(self.norm(x))


def give_storage(model):
    for m in model.modules():
        for name, p in m._parameters.items():
            if p is not None:
                m._parameters[name] = nn.Parameter(torch.zeros_like(p, device="cpu"))
        for name, b in m._buffers.items():
            m._buffers[name] = torch.zeros_like(b, device="cpu")


def build(faulty: bool):
    torch.manual_seed(0)
    checkpoint = Encoder().state_dict()
    with torch.device("meta"):
        model = Encoder()
    give_storage(model)
    model.load_state_dict(checkpoint)
    if not faulty:
        for m in model.modules():
            if hasattr(m, "fill"):
                m.fill()
    return model


def batch():
    return torch.randint(0, RES, (8, L), generator=torch.Generator().manual_seed(0))


def loss(output, batch):
    return F.cross_entropy(output.flatten(0, 1), batch.flatten())


@torch.no_grad()
def proof(faulty: bool) -> float:
    m, ids = build(faulty).eval(), batch()
    order = torch.randperm(L, generator=torch.Generator().manual_seed(1))
    return (m(ids[:, order]) - m(ids)[:, order]).abs().max().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
