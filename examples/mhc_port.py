"""A port of mHC in plain PyTorch and its adapter: `isograd conform mhc --adapter examples/mhc_port.py:Port`."""

import math

import torch
from torch import nn


class Maps(nn.Module):  # the port
    def __init__(self, width, n, iterations, eps, norm_eps):
        super().__init__()
        self.n, self.iterations, self.eps, self.norm_eps = n, iterations, eps, norm_eps
        self.weight = nn.Parameter(torch.randn((2 + n) * n, n * width) * 0.02)
        mix = 8.0 * torch.eye(n)
        self.base = nn.Parameter(torch.cat([torch.full((n,), -math.log(n - 1)), torch.zeros(n), mix.flatten()]))
        self.scale = nn.Parameter(torch.full((3,), 0.01))

    def forward(self, streams):  # (batch, time, n, width)
        n = self.n
        flat = streams.flatten(-2)
        flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        read, write, mix = (flat @ self.weight.T).split([n, n, n * n], -1)
        read_base, write_base, mix_base = self.base.split([n, n, n * n])
        read = torch.sigmoid(read * self.scale[0] + read_base) + self.eps
        write = 2 * torch.sigmoid(write * self.scale[1] + write_base)
        mix = (mix * self.scale[2] + mix_base).unflatten(-1, (n, n))
        mix = torch.softmax(mix, dim=-1) + self.eps
        mix = mix / (mix.sum(-2, keepdim=True) + self.eps)
        for _ in range(self.iterations - 1):
            mix = mix / (mix.sum(-1, keepdim=True) + self.eps)
            mix = mix / (mix.sum(-2, keepdim=True) + self.eps)
        return (read[..., None] * streams).sum(-2), write, mix.transpose(-1, -2) @ streams


class Head(nn.Module):
    def __init__(self, width, n, eps, norm_eps):
        super().__init__()
        self.eps, self.norm_eps = eps, norm_eps
        self.weight = nn.Parameter(torch.randn(n, n * width) * 0.02)
        self.base = nn.Parameter(torch.full((n,), -math.log(n - 1)))
        self.scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, streams):
        flat = streams.flatten(-2)
        flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        read = torch.sigmoid(flat @ self.weight.T * self.scale + self.base) + self.eps
        return (read[..., None] * streams).sum(-2)


class Port(nn.Module):  # the adapter
    def __init__(self, setting):
        super().__init__()
        s, width = setting.stream, setting.width
        self.n = s.copies
        self.maps = nn.ModuleList(
            Maps(width, s.copies, s.iterations, s.eps, setting.eps) for _ in range(setting.sublayers)
        )
        self.head = Head(width, s.copies, s.eps, setting.eps)

    def load(self, weights):
        self.double()
        places = {f"parts.{k}.stream": maps for k, maps in enumerate(self.maps)} | {"ends": self.head}
        for place, module in places.items():
            module.load_state_dict(
                {
                    "weight": weights[f"{place}.projection"],
                    "base": weights[f"{place}.base"],
                    "scale": weights[f"{place}.factors"],
                }
            )

    def open(self, x):  # (batch, time, width) -> the state, whatever it is
        return x[..., None, :].repeat(1, 1, self.n, 1)

    def read(self, state, k):  # -> what branch k reads, and what `write` needs
        maps = self.maps[k]
        x, write, mixed = maps(state)
        return x, (mixed, write)

    def write(self, held, u, k):  # branch k wrote u -> the state
        mixed, write = held
        return mixed + write[..., None] * u[..., None, :]

    def close(self, state):  # -> (batch, time, width)
        return self.head(state)
