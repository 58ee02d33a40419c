"""The run of the examples of `isograd preflight`: a healthy one, of which each example changes one thing.

A batch is a pair (inputs, targets), as a DataLoader gives it.
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def text(rows=256, length=17):
    """Token ids below 101; each follows from the two before it."""
    ids = torch.randint(1, 101, (rows, length))
    for t in range(2, length):
        ids[:, t] = 1 + (3 * ids[:, t - 1] + ids[:, t - 2]) % 100
    return ids


def loader(inputs, targets, batch_size=8, **options):
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True, **options)


def next_tokens(ids, **options):
    return loader(ids[:, :-1], ids[:, 1:].clone(), **options)


def loss(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs).transpose(1, 2), targets)
