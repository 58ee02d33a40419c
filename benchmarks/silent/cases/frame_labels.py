"""Frame labeller reshapes (batch, class, frame) scores to (-1, class) without moving the class axis.

A video summarizer's network puts classes on axis 1, and the loss flattened its log-probabilities to rows of n_class with a
bare reshape. The rows mix frames of one class, so scores and targets do not belong together.
The healthy twin permutes the class axis to the end first.
"""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CASE = {
    "class": "loss",
    "shows": "step",
    "source": "https://github.com/weirme/FCSN/issues/32",
    "cause": "Scores of shape (batch, class, frame) are reshaped to (-1, class) without a permute, so rows of scores do not match the targets.",
    "number": "share of frames where the gradient raises the score of the frame's own label",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.4),
}
N_CLASS, FRAMES, FEAT, D = 6, 30, 16, 40


class FrameNet(nn.Module):
    """features (B, FEAT, FRAMES) -> scores (B, N_CLASS, FRAMES)"""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(FEAT, D, 3, padding=1)
        self.pos = nn.Parameter(torch.randn(1, FRAMES, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.1, batch_first=True, norm_first=True)
        self.mix = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.top = nn.Conv1d(D, N_CLASS, 1)

    def forward(self, x):
        h = self.stem(x).transpose(1, 2) + self.pos
        return self.top(self.norm(self.mix(h)).transpose(1, 2))


def clips(n=160, seed=0):
    g = torch.Generator().manual_seed(seed)
    tone = torch.randn(N_CLASS, FEAT, generator=torch.Generator().manual_seed(6))
    y = torch.randint(0, N_CLASS, (n, FRAMES // 3), generator=g).repeat_interleave(3, 1)
    x = tone[y] + 0.7 * torch.randn(n, FRAMES, FEAT, generator=g)
    return x.transpose(1, 2).contiguous(), y


def setup(faulty: bool):
    torch.manual_seed(0)
    model = FrameNet()

    def criterion(score, target):
        log_p = torch.log_softmax(score, dim=1)
        if not faulty:
            log_p = log_p.permute(0, 2, 1)
        return F.nll_loss(log_p.reshape(-1, N_CLASS), target.reshape(-1))

    def loss(model, batch):
        x, y = batch
        return criterion(model(x), y)

    data = DataLoader(TensorDataset(*clips()), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return {"model": model, "loss": loss, "data": data, "optimizer": optimizer, "steps": 60, "criterion": criterion}


def proof(faulty: bool) -> float:
    s = setup(faulty)
    x, y = next(iter(s["data"]))
    score = s["model"](x).detach().requires_grad_()
    s["criterion"](score, y).backward()
    own = score.grad.gather(1, y[:, None]).squeeze(1)
    return (own < 0).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
