"""Models without a fault: the twins, other sizes and seeds, trained ones, and designs that are legal and unusual."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import nn

from benchmarks.faults.base import BASES, BY_NAME, Base, Edit, build
from benchmarks.faults.in_code import (
    BERT_ATTN,
    BERT_LOOP,
    EIN_ATTN,
    EIN_MIX,
    EIN_SCORES,
    HF_SCORES,
    LLAMA_ATTN,
    LLAMA_FFN,
    LLAMA_LOOP,
    LLAMA_ROTATE,
    LLAMA_SDPA,
    NANO_ATTN,
    NANO_LOOP,
    NANO_MLP,
    NANO_SCORES,
    VIT_ATTN,
    VIT_LOOP,
    VIT_MLP,
    after,
)


@dataclass(frozen=True, kw_only=True)
class Clean:
    name: str
    base: str
    edits: tuple[Edit, ...] = ()
    change: Callable[[Base, nn.Module], None] | None = field(default=None)
    seed: int = 0
    cause: str = ""

    def build(self) -> nn.Module:
        model = build(BY_NAME[self.base], self.edits, self.seed)
        if self.change is not None:
            self.change(BY_NAME[self.base], model)
        return model


NANO_ZERO = (
    "for block in model.h:\n    nn.init.zeros_(block.attn.c_proj.weight)\n    nn.init.zeros_(block.mlp.c_proj.weight)"
)
NANO_WPE = ("self.drop(self.wte(idx) + self.wpe(pos))", "self.drop(self.wte(idx))")
NANO_NO_TABLE = ("        self.wpe = nn.Embedding(CONTEXT, WIDTH)\n", "")
ALIBI = (
    "        back = torch.arange(T)[None, :] - torch.arange(T)[:, None]\n"
    "        att = att + back * (0.5 ** torch.arange(1, HEADS + 1)).view(HEADS, 1, 1)"
)
SOFTMAX = "att = F.softmax(att, dim=-1)"
DESIGNS: dict[str, dict[str, tuple[Edit, ...]]] = {
    "nano_gpt": {
        "untied head": (("        self.lm_head.weight = self.wte.weight\n", ""),),
        "squared relu": (("x = F.gelu(self.c_fc(x))", "x = F.relu(self.c_fc(x)).square()"),),
        "outputs of branches at zero": (after(NANO_ZERO),),
        "parallel branches": (
            (
                f"        {NANO_ATTN}\n        {NANO_MLP}\n",
                "        x = x + self.attn(self.ln_1(x)) + self.mlp(self.ln_2(x))\n",
            ),
        ),
        "no positions": (NANO_WPE, NANO_NO_TABLE),
        "alibi": (NANO_WPE, NANO_NO_TABLE, (NANO_SCORES, f"{NANO_SCORES}\n{ALIBI}")),
        "sliding window": (("torch.ones(CONTEXT, CONTEXT)).bool()", "torch.ones(CONTEXT, CONTEXT)).triu(-7).bool()"),),
        "soft cap on logits": (("logits = self.lm_head(x)", "logits = 30 * torch.tanh(self.lm_head(x) / 30)"),),
        "soft cap on scores": ((NANO_SCORES, f"{NANO_SCORES}\n        att = 50 * torch.tanh(att / 50)"),),
        "norm of queries and keys": (
            (NANO_SCORES, f"q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])\n        {NANO_SCORES}"),
        ),
        "attention sink": ((SOFTMAX, "att = F.softmax(F.pad(att, (1, 0)), dim=-1)[..., 1:]"),),
        "dropout 0.2": (("DROPOUT = 0.0", "DROPOUT = 0.2"),),
        "one shared layer on purpose": (
            ("nn.ModuleList([Block(i) for i in range(LAYERS)])", "nn.ModuleList([Block(0)])"),
            (NANO_LOOP, "        for _ in range(LAYERS):\n            x = self.h[0](x)\n"),
        ),
        "norm on the embedding": (
            (
                "        self.drop = nn.Dropout(DROPOUT)\n        self.h",
                "        self.ln_e = nn.LayerNorm(WIDTH)\n        self.drop = nn.Dropout(DROPOUT)\n        self.h",
            ),
            ("self.drop(self.wte(idx) + self.wpe(pos))", "self.drop(self.ln_e(self.wte(idx) + self.wpe(pos)))"),
        ),
        "norms after the branches": (
            (NANO_ATTN, "x = x + self.ln_1(self.attn(x))"),
            (NANO_MLP, "x = x + self.ln_2(self.mlp(x))"),
        ),
        "norms on the sums": (
            (NANO_ATTN, "x = self.ln_1(x + self.attn(x))"),
            (NANO_MLP, "x = self.ln_2(x + self.mlp(x))"),
            ("        x = self.ln_f(x)\n", ""),
            ("        self.ln_f = nn.LayerNorm(WIDTH)\n", ""),
        ),
        "shortcuts between far layers": (
            (
                NANO_LOOP,
                "        kept = []\n        for i, block in enumerate(self.h):\n            if i >= LAYERS // 2:\n"
                "                x = x + kept.pop()\n"
                "            x = block(x)\n            if i < LAYERS // 2:\n                kept.append(x)\n",
            ),
        ),
        "the embedding mixed in at each layer": (
            (
                NANO_LOOP,
                "        first = x\n        for block in self.h:\n            x = block(0.9 * x + 0.1 * first)\n",
            ),
        ),
        "twelve layers": (
            (
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 4, 6, 32",
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 4, 12, 32",
            ),
        ),
        "one head": (
            (
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 4, 6, 32",
                "VOCAB, WIDTH, HEADS, LAYERS, CONTEXT = 64, 64, 1, 6, 32",
            ),
        ),
    },
    "mini_llama": {
        "tied head": (after("model.output.weight = model.tok_embeddings.weight"),),
        "one key for all heads": (
            (
                "n_heads, n_kv, n_layers, hidden, max_len = 64, 64, 4, 2,",
                "n_heads, n_kv, n_layers, hidden, max_len = 64, 64, 4, 1,",
            ),
        ),
        "norm weights stored around one": (
            ("nn.Parameter(torch.ones(size))", "nn.Parameter(torch.zeros(size))"),
            ("return self.weight * x * scale", "return (1 + self.weight) * x * scale"),
        ),
        "embedding times sqrt width": (
            ("x = self.tok_embeddings(tokens)", "x = self.tok_embeddings(tokens) * dim**0.5"),
        ),
        "no rotary in every third layer": ((LLAMA_ROTATE, f"if self.layer % 3 != 2:\n            {LLAMA_ROTATE}"),),
        "part of a head rotated": (
            (
                LLAMA_ROTATE,
                "turn = lambda y: torch.cat([rotate(y[..., ::2], cos[:, ::2], sin[:, ::2]), y[..., 1::2]], -1)\n"
                "        q, k = turn(q), turn(k)",
            ),
        ),
        "norms before and after": (
            (LLAMA_ATTN, "h = x + F.rms_norm(self.attention(self.attention_norm(x), cos, sin), (dim,))"),
            (LLAMA_FFN, "return h + F.rms_norm(self.feed_forward(self.ffn_norm(h)), (dim,))"),
        ),
        "gated attention": (
            (
                "        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)\n",
                "        self.wo = nn.Linear(n_heads * head_dim, dim, bias=False)\n"
                "        self.wg = nn.Linear(dim, dim, bias=False)\n",
            ),
            (
                "self.wo(out.transpose(1, 2).reshape(b, t, dim))",
                "self.wo(out.transpose(1, 2).reshape(b, t, dim) * self.wg(x).sigmoid())",
            ),
        ),
        "branches times 1 / sqrt(2 depth)": (
            (LLAMA_ATTN, "h = x + self.attention(self.attention_norm(x), cos, sin) / (2 * n_layers) ** 0.5"),
            (LLAMA_FFN, "return h + self.feed_forward(self.ffn_norm(h)) / (2 * n_layers) ** 0.5"),
        ),
        "local attention": (
            (
                LLAMA_SDPA,
                "near = torch.ones(t, t, dtype=torch.bool).tril().triu(-5)\n"
                "        out = F.scaled_dot_product_attention(q, k, v, attn_mask=near)",
            ),
        ),
        "local and global layers": (
            (
                LLAMA_SDPA,
                "near = torch.ones(t, t, dtype=torch.bool).tril().triu(-5 if self.layer % 2 else -t)\n"
                "        out = F.scaled_dot_product_attention(q, k, v, attn_mask=near)",
            ),
        ),
        "a zero row for the padding": (after("with torch.no_grad():\n        model.tok_embeddings.weight[0].zero_()"),),
        "a stack of two layers": (("max_len = 64, 64, 4, 2, 6, 160, 64", "max_len = 64, 64, 4, 2, 2, 160, 64"),),
        "checkpointed layers": (
            (
                LLAMA_LOOP,
                "        from torch.utils.checkpoint import checkpoint\n\n        for layer in self.layers:\n"
                "            x = checkpoint(layer, x, cos, sin, use_reentrant=False)\n",
            ),
        ),
    },
    "einsum_lm": {
        "parallel branches": (
            (
                f"        {EIN_ATTN}\n        {EIN_MIX}\n",
                "        y = self.norm_a(x)\n        x = x + self.heads(y) + self.mix(self.norm_b(x))\n",
            ),
        ),
        "std 0.02 everywhere": (
            ("return nn.Parameter(torch.randn(*shape) * std)", "return nn.Parameter(torch.randn(*shape) * 0.02)"),
        ),
        "cosine attention": (
            (EIN_SCORES, 'scores = einsum("bqhk,bshk->bhqs", F.normalize(q, dim=-1), F.normalize(k, dim=-1)) * 10'),
        ),
        "half logits": (("        return logits\n", "        return logits * 0.5\n"),),
        "layerscale": (
            (EIN_ATTN, "x = x + self.gamma * self.heads(self.norm_a(x))"),
            (
                "        self.norm_a = nn.LayerNorm(D)\n",
                "        self.norm_a = nn.LayerNorm(D)\n        self.gamma = nn.Parameter(torch.full((D,), 1e-4))\n",
            ),
        ),
        "rezero": (
            (EIN_ATTN, "x = x + self.gate * self.heads(x)"),
            (EIN_MIX, "x = x + self.gate * self.mix(x)"),
            ("        self.norm_a = nn.LayerNorm(D)\n", "        self.gate = nn.Parameter(torch.zeros(()))\n"),
            ("        self.norm_b = nn.LayerNorm(D)\n", ""),
        ),
    },
    "torch_encoder": {
        "norms on the sums": ((", norm_first=True", ", norm_first=False"), ("norm=norm, ", "")),
        "twelve layers": (("nlayers, dropout = 64, 64, 4, 4, 0.0", "nlayers, dropout = 64, 64, 4, 12, 0.0"),),
        "dropout 0.1": (("nlayers, dropout = 64, 64, 4, 4, 0.0", "nlayers, dropout = 64, 64, 4, 4, 0.1"),),
        "gelu": (('activation="relu"', 'activation="gelu"'),),
        "a bool mask": (("mask=mask)", "mask=mask.isinf())"),),
        "tied head": (
            (
                "        self.init_weights()\n",
                "        self.init_weights()\n        self.decoder.weight = self.encoder.weight\n",
            ),
        ),
        "time before batch": (
            ("batch_first=True", "batch_first=False"),
            (
                "x = self.transformer(x, mask=mask)",
                "x = self.transformer(x.transpose(0, 1), mask=mask).transpose(0, 1)",
            ),
        ),
    },
    "torch_seq2seq": {
        "norms first": (
            ("            batch_first=True,\n", "            batch_first=True,\n            norm_first=True,\n"),
        ),
        "dropout 0.1": (
            (
                "TGT, DIM, HEADS, LAYERS, FFN, DROP = 64, 64, 64, 4, 3, 256, 0.0",
                "TGT, DIM, HEADS, LAYERS, FFN, DROP = 64, 64, 64, 4, 3, 256, 0.1",
            ),
        ),
        "one vocabulary": (("self.target = Embed(TGT)", "self.target = self.source"),),
        "three tied matrices": (
            ("self.target = Embed(TGT)", "self.target = self.source"),
            after("model.generator.weight = model.source.tokens.weight"),
        ),
        "gelu": (
            ("            batch_first=True,\n", '            batch_first=True,\n            activation="gelu",\n'),
        ),
    },
    "small_vit": {
        "mean of the places": (("self.head(x[:, 0])", "self.head(x.mean(1))"),),
        "layerscale": (
            (VIT_ATTN, "x = x + self.gamma_1 * self.attn(self.norm1(x))"),
            (VIT_MLP, "x = x + self.gamma_2 * self.mlp(self.norm2(x))"),
            (
                "        self.norm1 = nn.LayerNorm(DIM, eps=1e-6)\n",
                "        self.gamma_1 = nn.Parameter(1e-5 * torch.ones(DIM))\n"
                "        self.gamma_2 = nn.Parameter(1e-5 * torch.ones(DIM))\n"
                "        self.norm1 = nn.LayerNorm(DIM, eps=1e-6)\n",
            ),
        ),
        "head at zero": (
            (
                "        self.apply(self._init)\n",
                "        self.apply(self._init)\n        nn.init.zeros_(self.head.weight)\n",
            ),
        ),
        "shortcut over the stack": (
            (
                VIT_LOOP,
                "        first = x\n"
                "        for block in self.blocks:\n            x = block(x)\n        x = x + first\n",
            ),
        ),
        "relu": (("self.act = nn.GELU()", "self.act = nn.ReLU()"),),
        "stochastic depth": (
            (
                VIT_ATTN,
                "keep = (torch.rand(x.shape[0], 1, 1) > 0.1) / 0.9 if self.training else 1.0\n"
                "        x = x + keep * self.attn(self.norm1(x))",
            ),
        ),
        "positions at each layer": (
            (VIT_LOOP, "        for block in self.blocks:\n            x = block(x + self.pos_embed)\n"),
        ),
    },
    "post_bert": {
        "norms first": (
            (BERT_ATTN, "return x + context"),
            ("return self.norm(x + h)", "return x + h"),
            ("q, k, v = self.split(self.query(x))", "y = self.norm(x)\n        q, k, v = self.split(self.query(y))"),
            (
                "self.split(self.key(x)), self.split(self.value(x))",
                "self.split(self.key(y)), self.split(self.value(y))",
            ),
            ("h = gelu(self.dense_in(x))", "h = gelu(self.dense_in(self.norm(x)))"),
            ("gelu(self.transform(x))", "gelu(self.transform(nn.functional.layer_norm(x, (hidden,))))"),
        ),
        "one shared layer on purpose": (
            ("nn.ModuleList([BertLayer(i) for i in range(num_layers)])", "nn.ModuleList([BertLayer(0)])"),
            (BERT_LOOP, "        for _ in range(num_layers):\n            x = self.layers[0](x)\n"),
        ),
        "weighted shortcut of deepnorm": (
            (BERT_ATTN, "return self.norm(1.7 * x + context)"),
            ("return self.norm(x + h)", "return self.norm(1.7 * x + h)"),
        ),
        "untied": (("        self.decoder.weight = self.embeddings.word.weight\n", ""),),
        "pooled class": (
            (
                "        x = self.transform_norm(gelu(self.transform(x)))\n        return self.decoder(x)\n",
                "        x = torch.tanh(self.transform(x[:, 0]))\n"
                "        return self.decoder(self.transform_norm(x))\n",
            ),
        ),
        "dropout 0.1": (("dropout_prob = 0.0", "dropout_prob = 0.1"),),
    },
    "hf_llama": {
        "tied head": (("tie_word_embeddings=False", "tie_word_embeddings=True"),),
        "biases": (
            (
                "        use_cache=False,\n",
                "        use_cache=False,\n        attention_bias=True,\n        mlp_bias=True,\n",
            ),
        ),
        "one key for each head": (("num_key_value_heads=2", "num_key_value_heads=4"),),
        "std 0.006": (("        use_cache=False,\n", "        use_cache=False,\n        initializer_range=0.006,\n"),),
        "scaled outputs": (
            after(
                "for layer in model.model.layers:\n        layer.self_attn.o_proj.weight.data /= (2 * LAYERS) ** 0.5\n"
                "        layer.mlp.down_proj.weight.data /= (2 * LAYERS) ** 0.5"
            ),
        ),
        "norm of queries and keys": (
            (
                HF_SCORES,
                f"q, k = nn.functional.rms_norm(q, q.shape[-1:]), nn.functional.rms_norm(k, k.shape[-1:])\n"
                f"    {HF_SCORES}",
            ),
        ),
        "heads wider than width over heads": (
            ("        use_cache=False,\n", "        use_cache=False,\n        head_dim=32,\n"),
        ),
    },
    "isograd_lm": {
        name: (('placement="pre-ln"', f'placement="{name}"'),)
        for name in (
            "post-ln",
            "deepnorm",
            "sandwich",
            "peri-ln",
            "layerscale",
            "rezero",
            "parallel",
            "normformer",
            "value-residual",
            "hyper-connections",
        )
    },
}


def doubled(base: Base, model: nn.Module) -> None:
    model.double()


def variants() -> Iterator[Clean]:
    """Everything without a fault, in a fixed order."""
    for base in BASES:
        for seed in range(3):
            yield Clean(name=f"seed {seed}", base=base.name, seed=seed)
        yield Clean(name="float64", base=base.name, change=doubled)
        for name, edits in DESIGNS[base.name].items():
            yield Clean(name=name, base=base.name, edits=edits)
