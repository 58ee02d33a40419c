"""The gradient profile of a GPT-2 of transformers at its start, layer by layer.

python examples/probe_any_model.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from isograd.diagnose import Probe, Row


def main(layers: int = 12) -> list[Row]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=256, n_positions=32))
    batch = torch.randint(256, (8, 32))
    probe = Probe(model, [f"transformer.h.{i}" for i in range(layers)])
    with probe.step(0):
        model(input_ids=batch, labels=batch).loss.backward()
        probe.read_gradients()
    return probe.rows


if __name__ == "__main__":
    for row in main():
        numbers = "  ".join(f"{name} {value:.3g}" for name, value in row.items() if isinstance(value, float))
        print(f"{row['address']:<18}{numbers}")
