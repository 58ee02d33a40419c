"""Decoder attends to the padded frames of the encoder.

In an encoder-decoder model the padding mask reached the encoder's self-attention and not the attention from decoder to encoder,
so short inputs get context from silence frames that depends on the longest input of the batch. The healthy twin passes the mask there too.
"""
import torch
import torch.nn as nn

CASE = {
    "class": "masks",
    "shows": "model",
    "source": "https://github.com/facebookresearch/fairseq/issues/318",
    "cause": "The encoder padding mask is not passed to cross-attention (memory_key_padding_mask missing), so the decoder attends to padded source positions.",
    "number": "relative change of the logits when only the content of padded source frames changes",
    "healthy": (0.0, 1e-4),
    "faulty": (0.02, 10.0),
}


class SpeechTransformer(nn.Module):
    def __init__(self, n_mels=20, vocab=30, d_model=64, max_src=40, max_tgt=12, faulty=False):
        super().__init__()
        self.variant = faulty
        self.frontend = nn.Linear(n_mels, d_model)
        self.src_pos = nn.Parameter(torch.randn(max_src, d_model) * 0.1)
        self.tgt_pos = nn.Parameter(torch.randn(max_tgt, d_model) * 0.1)
        self.embed = nn.Embedding(vocab, d_model)
        nn.init.normal_(self.embed.weight, std=0.1)
        opts = dict(nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d_model, **opts), 2,
                                             norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d_model, **opts), 2, norm=nn.LayerNorm(d_model))
        self.out = nn.Linear(d_model, vocab)

    def forward(self, frames, lengths, tokens):
        t, u = frames.shape[1], tokens.shape[1]
        pad = torch.arange(t, device=frames.device)[None, :] >= lengths[:, None]
        memory = self.encoder(self.frontend(frames) + self.src_pos[:t], src_key_padding_mask=pad)
        ahead = torch.ones(u, u, dtype=torch.bool, device=frames.device).triu(1)
        y = self.embed(tokens) + self.tgt_pos[:u]
        if self.variant:
            y = self.decoder(y, memory, tgt_mask=ahead)
        else:
            y = self.decoder(y, memory, tgt_mask=ahead, memory_key_padding_mask=pad)
        return self.out(y)


def build(faulty):
    torch.manual_seed(7)
    return SpeechTransformer(faulty=faulty)


def batch():
    g = torch.Generator().manual_seed(3)
    lengths = torch.tensor([40, 12, 25, 9, 31, 16])
    frames = torch.randn(6, 40, 20, generator=g)
    frames = frames.masked_fill((torch.arange(40)[None] >= lengths[:, None])[..., None], 0.0)
    tokens = torch.randint(1, 30, (6, 12), generator=g)
    return {"frames": frames, "lengths": lengths, "tokens": tokens}


def loss(output, batch):
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def proof(faulty):
    model, data = build(faulty).eval(), batch()
    pad = torch.arange(40)[None] >= data["lengths"][:, None]
    noisy = dict(data, frames=data["frames"].masked_fill(pad[..., None], 2.0))
    with torch.no_grad():
        a, b = model(**data), model(**noisy)
    return ((a - b).abs().max() / a.std()).item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
