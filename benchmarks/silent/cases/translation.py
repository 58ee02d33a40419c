"""Decoder inputs begin with another token in training than in generation.

The shift of the labels puts the closing token first, as one model family wants it, while this model's generation begins with the start token of its
configuration (the padding id). That token was never first in training. The healthy twin shifts with the configured start token.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASE = {
    "class": "generation",
    "shows": "step",
    "source": "https://github.com/huggingface/transformers/issues/7719",
    "cause": "shift_tokens_right starts decoder inputs with EOS instead of decoder_start_token_id, so training and generation begin with different tokens.",
    "number": "share of training rows that begin with the token generation begins with",
    "healthy": (0.99, 1.0),
    "faulty": (0.0, 0.01),
}
CONFIG = {"vocab_size": 36, "eos_token_id": 0, "pad_token_id": 35, "decoder_start_token_id": 35, "d_model": 64}


def shift_tokens_right(labels, start):
    out = labels.new_full(labels.shape, start)
    out[:, 1:] = labels[:, :-1]
    return out.masked_fill(out == -100, CONFIG["pad_token_id"])


class Marian(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg["d_model"]
        self.config = cfg
        self.shared = nn.Embedding(cfg["vocab_size"], d)
        self.place = nn.Parameter(0.1 * torch.randn(16, d))
        nn.init.normal_(self.shared.weight, std=0.1)
        opts = dict(nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, **opts), 2, nn.LayerNorm(d), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, **opts), 2, nn.LayerNorm(d))
        self.bias = nn.Parameter(torch.zeros(cfg["vocab_size"]))

    def forward(self, input_ids, decoder_input_ids):
        pad = input_ids == self.config["pad_token_id"]
        n = decoder_input_ids.shape[1]
        memory = self.encoder(self.shared(input_ids) + self.place[: input_ids.shape[1]], src_key_padding_mask=pad)
        ahead = torch.ones(n, n, dtype=torch.bool, device=input_ids.device).triu(1)
        y = self.decoder(self.shared(decoder_input_ids) + self.place[:n], memory, tgt_mask=ahead, memory_key_padding_mask=pad)
        return y @ self.shared.weight.T + self.bias

    @torch.no_grad()
    def generate(self, input_ids, count):
        ids = input_ids.new_full((len(input_ids), 1), self.config["decoder_start_token_id"])
        for _ in range(count):
            ids = torch.cat([ids, self(input_ids, ids)[:, -1].argmax(-1, keepdim=True)], 1)
        return ids[:, 1:]


class Pairs(torch.utils.data.Dataset):
    def __init__(self, size=128):
        g = torch.Generator().manual_seed(22)
        self.rows = []
        for _ in range(size):
            n = int(torch.randint(5, 15, (1,), generator=g))
            text = torch.randint(1, 35, (n,), generator=g)
            self.rows.append((text, torch.cat([text.flip(0), torch.zeros(1, dtype=torch.long)])))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def setup(faulty: bool):
    torch.manual_seed(13)
    model = Marian(CONFIG)
    start = CONFIG["eos_token_id"] if faulty else CONFIG["decoder_start_token_id"]

    def collate(rows):
        pad = lambda seqs, value: nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=value)
        labels = pad([t for _, t in rows], -100)
        return {"input_ids": pad([s for s, _ in rows], CONFIG["pad_token_id"]), "labels": labels,
                "decoder_input_ids": shift_tokens_right(labels, start)}

    def loss(model, batch):
        logits = model(batch["input_ids"], batch["decoder_input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    data = torch.utils.data.DataLoader(Pairs(), batch_size=16, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(2))
    return {"model": model, "loss": loss, "data": data, "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3), "accumulate": 1, "clip": 1.0}


def proof(faulty: bool) -> float:
    s, used = setup(faulty), []
    hook = s["model"].register_forward_pre_hook(lambda m, a: used.append(a[1][:, 0]))
    s["model"].eval().generate(next(iter(s["data"]))["input_ids"], 1)
    first, hook = used[0][0], hook.remove()
    return torch.cat([b["decoder_input_ids"][:, 0] == first for b in s["data"]]).float().mean().item()


if __name__ == "__main__":
    import sys
    print(proof("--faulty" in sys.argv))
