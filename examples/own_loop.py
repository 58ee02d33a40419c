"""ADMIN in a training loop of your own: calibrate once, on the first batch, before the first step.

    python examples/own_loop.py [SEED]

24 layers at a learning rate of 1e-3 without warm-up, where Post-LN stays at the unigram entropy (printed first).
"""

import sys

import torch

from isograd import IsogradConfig, IsogradForCausalLM, calibrate
from isograd.lab import load_corpus


def main(seed: int = 0, layers: int = 24, steps: int = 200, **options: bool) -> tuple[list[float], float]:
    """The losses, and the entropy of the character frequencies, in nats."""
    corpus = load_corpus("embedded")
    text = torch.tensor(corpus.train, dtype=torch.long)
    torch.manual_seed(seed)
    config = IsogradConfig(
        placement="admin",
        vocab_size=corpus.vocab_size,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        **options,
    )
    model = IsogradForCausalLM(config)
    batches = [text[torch.randint(len(text) - 32, (16, 1)) + torch.arange(32)] for _ in range(steps)]
    calibrate(model, {"input_ids": batches[0]})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    losses = []
    for batch in batches:
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, corpus.unigram_entropy


if __name__ == "__main__":
    losses, entropy = main(*map(int, sys.argv[1:]))
    print(f"unigram entropy {entropy:.3f}; mean of the last 20 losses {sum(losses[-20:]) / 20:.3f} nats")
