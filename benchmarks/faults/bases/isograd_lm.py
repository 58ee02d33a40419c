"""isograd's own causal model, Pre-LN, in a wrapper of one's own that returns the logits alone."""

import torch  # noqa: F401 - a fault of this file uses it
from torch import nn

from isograd import IsogradConfig, IsogradForCausalLM

LAYERS = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm = IsogradForCausalLM(
            IsogradConfig(
                placement="pre-ln",
                vocab_size=64,
                hidden_size=64,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )

    def forward(self, input_ids):
        logits = self.lm(input_ids=input_ids).logits
        return logits


def build():
    model = Net()
    return model
