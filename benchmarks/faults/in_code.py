"""Mistakes in the code: the edits that make them, by base."""

from benchmarks.faults.base import Edit
from benchmarks.faults.fault import Fault


def code(name: str, cause: str, layer: int | None = None, training: bool = False, **edits: object) -> Fault:
    """Edits by base: (old, new), or a tuple of such pairs."""
    made = {base: one if isinstance(one[0], tuple) else (one,) for base, one in edits.items()}  # type: ignore[index]
    return Fault(name=name, cause=cause, layer=layer, training=training, edits=made)  # type: ignore[arg-type]


NANO_MASK = 'att = att.masked_fill(~self.mask[:T, :T], float("-inf"))'
NANO_SCORES = "att = q @ k.transpose(-2, -1) / math.sqrt(C // HEADS)"
NANO_MERGE = "y = y.transpose(1, 2).contiguous().view(B, T, C)"
NANO_ATTN, NANO_MLP = "x = x + self.attn(self.ln_1(x))", "x = x + self.mlp(self.ln_2(x))"
NANO_LOOP = "        for block in self.h:\n            x = block(x)\n"
LLAMA_SDPA = "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
LLAMA_ROTATE = "q, k = rotate(q, cos, sin), rotate(k, cos, sin)"
LLAMA_ATTN, LLAMA_FFN = (
    "h = x + self.attention(self.attention_norm(x), cos, sin)",
    "return h + self.feed_forward(self.ffn_norm(h))",
)
LLAMA_LOOP = "        for layer in self.layers:\n            x = layer(x, cos, sin)\n"
EIN_MASK = "scores = torch.where(future, -torch.inf, scores)"
EIN_SCORES = 'scores = einsum("bqhk,bshk->bhqs", q, k) * K**-0.5'
EIN_ATTN, EIN_MIX = "x = x + self.heads(self.norm_a(x))", "x = x + self.mix(self.norm_b(x))"
HF_MASK = 'scores = scores + torch.full((t, t), float("-inf"), dtype=q.dtype).triu(1)'
HF_SCORES = "scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling"
HF_ROTATE = "q, k = hf.apply_rotary_pos_emb(q, k, cos, sin)"
HF_ATTN = "    hidden_states = residual + hidden_states\n    residual = hidden_states\n"
HF_MERGE = "out = out.transpose(1, 2).reshape(b, t, -1)"
ENC_RUN = "x = self.transformer(x, mask=mask)"
ENC_LAYER = 'd_model, nhead, 4 * d_model, dropout, activation="relu", batch_first=True, norm_first=True'
S2S_RUN = "out = self.transformer(x, y, tgt_mask=tgt_mask)"
S2S_DIAGONAL = "dtype=torch.bool, device=tgt.device), diagonal=1)"
VIT_ATTN, VIT_MLP = "x = x + self.attn(self.norm1(x))", "x = x + self.mlp(self.norm2(x))"
VIT_LOOP = "        for block in self.blocks:\n            x = block(x)\n"
VIT_MERGE = "x = (attn @ v).transpose(1, 2).reshape(B, N, C)"
BERT_SCORES = "scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(hidden // num_heads)"
BERT_LOOP = "        for layer in self.layers:\n            x = layer(x)\n"
BERT_ATTN, BERT_FFN = "return self.norm(x + context)", "return self.norm(x + h)"


def after(lines: str) -> Edit:
    """Lines between building the model and returning it, by the variable `model`."""
    return ("    return model\n", "".join(f"    {line}\n" for line in lines.split("\n")) + "    return model\n")


MASKS = (
    code(
        "mask-forgotten",
        "no-mask",
        nano_gpt=(NANO_MASK, "pass"),
        mini_llama=(LLAMA_SDPA, "out = F.scaled_dot_product_attention(q, k, v)"),
        einsum_lm=(EIN_MASK, "pass"),
        torch_encoder=(ENC_RUN, "x = self.transformer(x)"),
        torch_seq2seq=(S2S_RUN, "out = self.transformer(x, y)"),
        hf_llama=(HF_MASK, "pass"),
    ),
    code(
        "mask-forgotten-in-one-layer",
        "no-mask",
        layer=2,
        nano_gpt=(NANO_MASK, f"if self.layer != 2:\n            {NANO_MASK}"),
        mini_llama=(LLAMA_SDPA, "out = F.scaled_dot_product_attention(q, k, v, is_causal=self.layer != 2)"),
        einsum_lm=(EIN_MASK, f"if self.index != 2:\n            {EIN_MASK}"),
        hf_llama=(HF_MASK, f"if self.layer_idx != 2:\n        {HF_MASK}"),
        isograd_lm=after("model.lm.model.layers[2].attn.branch.is_causal = False"),
    ),
    code(
        "mask-one-place-late",
        "mask-shifted",
        nano_gpt=("torch.tril(torch.ones(CONTEXT, CONTEXT))", "torch.tril(torch.ones(CONTEXT, CONTEXT), diagonal=1)"),
        einsum_lm=(".triu(1)", ".triu(2)"),
        hf_llama=(HF_MASK, HF_MASK.replace("triu(1)", "triu(2)")),
        torch_encoder=(ENC_RUN, "x = self.transformer(x, mask=mask.triu(2))"),
        torch_seq2seq=(S2S_DIAGONAL, S2S_DIAGONAL.replace("1", "2")),
    ),
    code(
        "mask-blocks-self",
        "mask-shifted",
        nano_gpt=("torch.tril(torch.ones(CONTEXT, CONTEXT))", "torch.tril(torch.ones(CONTEXT, CONTEXT), diagonal=-1)"),
        einsum_lm=(".triu(1)", ".triu(0)"),
        hf_llama=(HF_MASK, HF_MASK.replace("triu(1)", "triu(0)")),
        mini_llama=(
            LLAMA_SDPA,
            "mask = torch.ones(t, t, dtype=torch.bool).tril(-1)\n"
            "        weights = (q @ k.transpose(2, 3) / head_dim**0.5).masked_fill(~mask, float('-inf')).softmax(-1)\n"
            "        out = weights @ v",
        ),
    ),
    code(
        "mask-transposed",
        "mask-turned",
        nano_gpt=("torch.tril(torch.ones(CONTEXT, CONTEXT))", "torch.triu(torch.ones(CONTEXT, CONTEXT))"),
        einsum_lm=(".triu(1)", ".tril(-1)"),
        hf_llama=(HF_MASK, HF_MASK.replace("triu(1)", "tril(-1)")),
        torch_encoder=(ENC_RUN, "x = self.transformer(x, mask=mask.T)"),
        torch_seq2seq=(S2S_RUN, "out = self.transformer(x, y, tgt_mask=tgt_mask.T)"),
    ),
    code(
        "mask-with-zero",
        "mask-weak",
        nano_gpt=(NANO_MASK, NANO_MASK.replace('float("-inf")', "0.0")),
        einsum_lm=(EIN_MASK, "scores = torch.where(future, 0.0, scores)"),
        hf_llama=(HF_MASK, "scores = scores * torch.ones(t, t).tril()"),
        torch_encoder=(ENC_RUN, "x = self.transformer(x, mask=torch.ones_like(mask).triu(1) * -1.0)"),
    ),
    code(
        "mask-after-softmax",
        "mask-weak",
        nano_gpt=(
            f"{NANO_MASK}\n        att = F.softmax(att, dim=-1)",
            "att = F.softmax(att, dim=-1)\n        att = att * self.mask[:T, :T]",
        ),
        einsum_lm=(
            f"{EIN_MASK}\n        weights = scores.softmax(-1)",
            "weights = scores.softmax(-1).masked_fill(future, 0.0)",
        ),
        hf_llama=(
            f"{HF_MASK}\n    probs = nn.functional.softmax(scores, dim=-1)",
            "probs = nn.functional.softmax(scores, dim=-1).tril()",
        ),
    ),
    code(
        "softmax-over-queries",
        "softmax-axis",
        nano_gpt=("att = F.softmax(att, dim=-1)", "att = F.softmax(att, dim=-2)"),
        einsum_lm=("weights = scores.softmax(-1)", "weights = scores.softmax(2)"),
        hf_llama=("softmax(scores, dim=-1)", "softmax(scores, dim=2)"),
        small_vit=("attn.softmax(dim=-1)", "attn.softmax(dim=-2)"),
        post_bert=("probs = softmax(scores, dim=-1)", "probs = softmax(scores, dim=2)"),
    ),
    code(
        "softmax-over-heads",
        "softmax-axis",
        nano_gpt=(
            f"{NANO_MASK}\n        att = F.softmax(att, dim=-1)",
            "att = F.softmax(att, dim=1) * self.mask[:T, :T]",
        ),
        einsum_lm=(
            f"{EIN_MASK}\n        weights = scores.softmax(-1)",
            "weights = scores.softmax(1).masked_fill(future, 0.0)",
        ),
        small_vit=("attn.softmax(dim=-1)", "attn.softmax(dim=1)"),
        post_bert=("probs = softmax(scores, dim=-1)", "probs = softmax(scores, dim=1)"),
    ),
    code(
        "attention-over-the-batch",
        "batch-mixed",
        nano_gpt=(NANO_ATTN, "x = x + self.attn(self.ln_1(x).transpose(0, 1)[:, :CONTEXT]).transpose(0, 1)"),
        torch_encoder=(
            (ENC_LAYER, ENC_LAYER.replace("batch_first=True", "batch_first=False")),
            (ENC_RUN, "x = self.transformer(x, mask=mask[:1, :1].expand(src.size(0), src.size(0)))"),
        ),
        torch_seq2seq=(
            ("batch_first=True", "batch_first=False"),
            (S2S_RUN, "out = self.transformer(x, y)"),
        ),
        small_vit=(VIT_ATTN, "x = x + self.attn(self.norm1(x).transpose(0, 1)).transpose(0, 1)"),
        post_bert=(
            BERT_LOOP,
            "        for layer in self.layers:\n            x = layer(x.transpose(0, 1)).transpose(0, 1)\n",
        ),
    ),
)

ATTENTION = (
    code(
        "scale-forgotten",
        "attention-scale",
        nano_gpt=(NANO_SCORES, "att = q @ k.transpose(-2, -1)"),
        mini_llama=(LLAMA_SDPA, "out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)"),
        einsum_lm=(EIN_SCORES, 'scores = einsum("bqhk,bshk->bhqs", q, k)'),
        small_vit=("(q * self.scale) @", "q @"),
        post_bert=(BERT_SCORES, "scores = torch.matmul(q, k.transpose(-1, -2))"),
        hf_llama=(HF_SCORES, "scores = torch.matmul(q, k.transpose(2, 3))"),
        isograd_lm=after("for layer in model.lm.model.layers:\n    layer.attn.branch.scaling = 1.0"),
    ),
    code(
        "scale-by-width",
        "attention-scale",
        nano_gpt=(NANO_SCORES, "att = q @ k.transpose(-2, -1) / math.sqrt(C)"),
        mini_llama=(LLAMA_SDPA, LLAMA_SDPA.replace("True)", "True, scale=dim**-0.5)")),
        einsum_lm=("* K**-0.5", "* D**-0.5"),
        small_vit=("self.scale = (DIM // HEADS) ** -0.5", "self.scale = DIM**-0.5"),
        post_bert=(BERT_SCORES, BERT_SCORES.replace("hidden // num_heads", "hidden")),
    ),
    code(
        "scale-twice",
        "attention-scale",
        nano_gpt=(NANO_SCORES, "att = q @ k.transpose(-2, -1) / (C // HEADS)"),
        mini_llama=(LLAMA_SDPA, LLAMA_SDPA.replace("(q,", "(q / head_dim**0.5,")),
        small_vit=("(q * self.scale) @ k.transpose(-2, -1)", "(q * self.scale) @ k.transpose(-2, -1) * self.scale"),
        hf_llama=(HF_SCORES, "scores = torch.matmul(q, k.transpose(2, 3)) * self.scaling / self.head_dim**0.5"),
    ),
    code(
        "scale-inverted",
        "attention-scale",
        nano_gpt=(NANO_SCORES, "att = q @ k.transpose(-2, -1) * math.sqrt(C // HEADS)"),
        einsum_lm=("* K**-0.5", "* K**0.5"),
        post_bert=(BERT_SCORES, BERT_SCORES.replace("/ math", "* math")),
        isograd_lm=after("for layer in model.lm.model.layers:\n    layer.attn.branch.scaling **= -1"),
    ),
    code(
        "scale-in-one-layer",
        "attention-scale",
        layer=1,
        nano_gpt=(NANO_SCORES, f"{NANO_SCORES} * (4.0 if self.layer == 1 else 1.0)"),
        mini_llama=(LLAMA_SDPA, LLAMA_SDPA.replace("True)", "True, scale=1.0 if self.layer == 1 else None)")),
        hf_llama=(HF_SCORES, f"{HF_SCORES} * (4.0 if self.layer_idx == 1 else 1.0)"),
        isograd_lm=after("model.lm.model.layers[1].attn.branch.scaling = 1.0"),
    ),
    code(
        "heads-merged-without-transpose",
        "head-order",
        nano_gpt=(NANO_MERGE, "y = y.contiguous().view(B, T, C)"),
        mini_llama=("out.transpose(1, 2).reshape(b, t, dim)", "out.reshape(b, t, dim)"),
        small_vit=(VIT_MERGE, "x = (attn @ v).reshape(B, N, C)"),
        post_bert=("torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()", "torch.matmul(probs, v).contiguous()"),
        hf_llama=(HF_MERGE, "out = out.reshape(b, t, -1)"),
    ),
    code(
        "heads-split-without-transpose",
        "head-order",
        nano_gpt=(
            ("q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)", "q = q.reshape(B, HEADS, T, C // HEADS)"),
            ("k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)", "k = k.reshape(B, HEADS, T, C // HEADS)"),
            ("v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)", "v = v.reshape(B, HEADS, T, C // HEADS)"),
        ),
        mini_llama=(
            (
                "q = self.wq(x).view(b, t, n_heads, head_dim).transpose(1, 2)",
                "q = self.wq(x).view(b, n_heads, t, head_dim)",
            ),
            ("k = self.wk(x).view(b, t, n_kv, head_dim).transpose(1, 2)", "k = self.wk(x).view(b, n_kv, t, head_dim)"),
            ("v = self.wv(x).view(b, t, n_kv, head_dim).transpose(1, 2)", "v = self.wv(x).view(b, n_kv, t, head_dim)"),
        ),
        post_bert=(
            "x.view(x.size(0), x.size(1), num_heads, hidden // num_heads).permute(0, 2, 1, 3)",
            "x.view(x.size(0), num_heads, x.size(1), hidden // num_heads)",
        ),
        hf_llama=(
            (
                "q = self.q_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)",
                "q = self.q_proj(hidden_states).view(b, -1, t, self.head_dim)",
            ),
            (
                "k = self.k_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)",
                "k = self.k_proj(hidden_states).view(b, -1, t, self.head_dim)",
            ),
            (
                "v = self.v_proj(hidden_states).view(b, t, -1, self.head_dim).transpose(1, 2)",
                "v = self.v_proj(hidden_states).view(b, -1, t, self.head_dim)",
            ),
        ),
    ),
    code(
        "key-is-the-query",
        "projection-unused",
        nano_gpt=(
            "q, k, v = self.c_attn(x).split(WIDTH, dim=2)",
            "q, _, v = self.c_attn(x).split(WIDTH, dim=2)\n        k = q",
        ),
        einsum_lm=('k = einsum("btd,dhk->bthk", x, self.k)', 'k = einsum("btd,dhk->bthk", x, self.q)'),
        post_bert=("self.split(self.key(x))", "self.split(self.query(x))"),
        small_vit=("q, k, v = qkv.unbind(0)", "q, k, v = qkv[0], qkv[0], qkv[2]"),
    ),
    code(
        "value-is-the-key",
        "projection-unused",
        mini_llama=("v = self.wv(x)", "v = self.wk(x)"),
        einsum_lm=('v = einsum("btd,dhk->bthk", x, self.v)', 'v = einsum("btd,dhk->bthk", x, self.k)'),
        post_bert=("self.split(self.value(x))", "self.split(self.key(x))"),
        hf_llama=("v = self.v_proj(hidden_states)", "v = self.k_proj(hidden_states)"),
    ),
)

POSITIONS = (
    code(
        "positions-not-added",
        "positions-missing",
        nano_gpt=("self.drop(self.wte(idx) + self.wpe(pos))", "self.drop(self.wte(idx))"),
        torch_encoder=("        x = self.pos_encoder(x)\n", ""),
        torch_seq2seq=("        x = x + self.table[: ids.shape[1]]\n", ""),
        small_vit=("        x = x + self.pos_embed\n", ""),
        post_bert=("self.word(input_ids) + self.position(positions) +", "self.word(input_ids) +"),
    ),
    code(
        "rotary-not-called",
        "positions-missing",
        mini_llama=(LLAMA_ROTATE, "pass"),
        einsum_lm=("q, k = rope(q), rope(k)", "pass"),
        hf_llama=(HF_ROTATE, "pass"),
    ),
    code(
        "positions-all-zero",
        "positions-equal",
        nano_gpt=(
            "pos = torch.arange(T, device=idx.device)",
            "pos = torch.zeros(T, dtype=torch.long, device=idx.device)",
        ),
        torch_encoder=("x = x + self.pe[:, : x.size(1)]", "x = x + self.pe[:, :1]"),
        post_bert=(
            "torch.arange(input_ids.size(1), device=input_ids.device).expand_as(input_ids)",
            "torch.zeros_like(input_ids)",
        ),
        mini_llama=("cos, sin = self.cos[:t], self.sin[:t]", "cos, sin = self.cos[:1], self.sin[:1]"),
        hf_llama=("cos, sin = position_embeddings", "cos, sin = (one[:, :1] for one in position_embeddings)"),
    ),
    code(
        "rotary-over-the-heads",
        "positions-equal",
        mini_llama=(LLAMA_ROTATE, "q, k = rotate(q, cos[:1], sin[:1]), rotate(k, cos[:1], sin[:1])"),
        einsum_lm=("torch.arange(x.shape[1], device", "torch.zeros(x.shape[1], device"),
        hf_llama=(HF_ROTATE, "q, k = hf.apply_rotary_pos_emb(q, k, cos[:, :1], sin[:, :1])"),
    ),
    code(
        "rotary-on-the-values",
        "rotary-on-values",
        mini_llama=(LLAMA_ROTATE, f"{LLAMA_ROTATE}\n        v = rotate(v, cos, sin)"),
        einsum_lm=("q, k = rope(q), rope(k)", "q, k, v = rope(q), rope(k), rope(v)"),
        hf_llama=(HF_ROTATE, f"{HF_ROTATE}\n    v, _ = hf.apply_rotary_pos_emb(v, v, cos, sin)"),
    ),
    code(
        "rotary-on-the-queries-alone",
        "rotary-one-side",
        mini_llama=(LLAMA_ROTATE, "q = rotate(q, cos, sin)"),
        einsum_lm=("q, k = rope(q), rope(k)", "q = rope(q)"),
        hf_llama=(HF_ROTATE, "q, _ = hf.apply_rotary_pos_emb(q, k, cos, sin)"),
    ),
)

RESIDUALS = (
    code(
        "no-shortcut-around-attention",
        "residual-dropped",
        nano_gpt=(NANO_ATTN, "x = self.attn(self.ln_1(x))"),
        mini_llama=(LLAMA_ATTN, "h = self.attention(self.attention_norm(x), cos, sin)"),
        einsum_lm=(EIN_ATTN, "x = self.heads(self.norm_a(x))"),
        small_vit=(VIT_ATTN, "x = self.attn(self.norm1(x))"),
        post_bert=(BERT_ATTN, "return self.norm(context)"),
        hf_llama=(HF_ATTN, "    residual = hidden_states\n"),
    ),
    code(
        "no-shortcut-around-the-ffn",
        "residual-dropped",
        nano_gpt=(NANO_MLP, "x = self.mlp(self.ln_2(x))"),
        mini_llama=(LLAMA_FFN, "return self.feed_forward(self.ffn_norm(h))"),
        einsum_lm=(EIN_MIX, "x = self.mix(self.norm_b(x))"),
        small_vit=(VIT_MLP, "x = self.mlp(self.norm2(x))"),
        post_bert=(BERT_FFN, "return self.norm(h)"),
        hf_llama=("return residual + hidden_states", "return hidden_states"),
    ),
    code(
        "no-shortcut-in-one-layer",
        "residual-dropped",
        layer=2,
        nano_gpt=(NANO_ATTN, "x = (x if self.layer != 2 else 0) + self.attn(self.ln_1(x))"),
        mini_llama=(LLAMA_FFN, "return (0 if self.layer == 2 else h) + self.feed_forward(self.ffn_norm(h))"),
        einsum_lm=(EIN_MIX, "x = self.mix(self.norm_b(x)) if self.index == 2 else x + self.mix(self.norm_b(x))"),
        small_vit=(VIT_ATTN, "x = (x if self.index != 2 else 0) + self.attn(self.norm1(x))"),
        post_bert=(BERT_ATTN, "return self.norm(context if self.layer_idx == 2 else x + context)"),
    ),
    code(
        "shortcut-twice",
        "residual-doubled",
        nano_gpt=(NANO_ATTN, "x = x + (x + self.attn(self.ln_1(x)))"),
        mini_llama=(LLAMA_ATTN, "h = x + self.attention(self.attention_norm(x), cos, sin) + x"),
        einsum_lm=(EIN_ATTN, "x = x + (x + self.heads(self.norm_a(x)))"),
        small_vit=(VIT_MLP, "x = x + self.mlp(self.norm2(x)) + x"),
        hf_llama=("return residual + hidden_states", "return residual + (residual + hidden_states)"),
    ),
    code(
        "shortcut-starts-after-the-norm",
        "residual-after-norm",
        nano_gpt=(NANO_ATTN, "x = self.ln_1(x)\n        x = x + self.attn(x)"),
        mini_llama=(LLAMA_ATTN, "x = self.attention_norm(x)\n        h = x + self.attention(x, cos, sin)"),
        einsum_lm=(EIN_MIX, "x = self.norm_b(x)\n        x = x + self.mix(x)"),
        small_vit=(VIT_MLP, "x = self.norm2(x)\n        x = x + self.mlp(x)"),
        hf_llama=(
            "    hidden_states = self.input_layernorm(hidden_states)\n",
            "    residual = hidden_states = self.input_layernorm(hidden_states)\n",
        ),
    ),
    code(
        "stray-factor-on-the-branch",
        "scale-stray",
        nano_gpt=(NANO_MLP, "x = x + 5.0 * self.mlp(self.ln_2(x))"),
        mini_llama=(LLAMA_FFN, "return h + 0.05 * self.feed_forward(self.ffn_norm(h))"),
        einsum_lm=(EIN_ATTN, "x = x + 7 * self.heads(self.norm_a(x))"),
        small_vit=(VIT_ATTN, "x = 0.3 * x + self.attn(self.norm1(x))"),
        post_bert=(BERT_FFN, "return self.norm(x + 0.03 * h)"),
    ),
)

NORMS = (
    code(
        "final-norm-not-called",
        "final-norm-missing",
        nano_gpt=("        x = self.ln_f(x)\n", ""),
        mini_llama=("        x = self.norm(x)\n", ""),
        einsum_lm=("        x = self.final(x)\n", ""),
        torch_encoder=("nn.TransformerEncoder(layer, nlayers, norm=norm,", "nn.TransformerEncoder(layer, nlayers,"),
        small_vit=("        x = self.norm(x)\n", ""),
        hf_llama=after("model.model.norm = nn.Identity()"),
        isograd_lm=after("model.lm.model.norm = nn.Identity()"),
    ),
    code(
        "ffn-reads-without-its-norm",
        "norm-missing",
        nano_gpt=(NANO_MLP, "x = x + self.mlp(x)"),
        mini_llama=(LLAMA_FFN, "return h + self.feed_forward(h)"),
        einsum_lm=(EIN_MIX, "x = x + self.mix(x)"),
        small_vit=(VIT_MLP, "x = x + self.mlp(x)"),
        hf_llama=("    hidden_states = self.post_attention_layernorm(hidden_states)\n", ""),
        isograd_lm=after("for layer in model.lm.model.layers:\n    layer.ffn.pre = nn.Identity()"),
    ),
    code(
        "one-layer-reads-without-its-norm",
        "norm-missing",
        layer=1,
        nano_gpt=(NANO_ATTN, "x = x + self.attn(self.ln_1(x) if self.layer != 1 else x)"),
        mini_llama=(LLAMA_FFN, "return h + self.feed_forward(h if self.layer == 1 else self.ffn_norm(h))"),
        small_vit=(VIT_ATTN, "x = x + self.attn(x if self.index == 1 else self.norm1(x))"),
        hf_llama=after("model.model.layers[1].input_layernorm = nn.Identity()"),
        isograd_lm=after("model.lm.model.layers[1].attn.pre = nn.Identity()"),
    ),
    code(
        "first-norm-used-twice",
        "norm-wrong-one",
        training=True,  # fresh norms are all alike
        nano_gpt=(NANO_MLP, "x = x + self.mlp(self.ln_1(x))"),
        mini_llama=(LLAMA_FFN, "return h + self.feed_forward(self.attention_norm(h))"),
        einsum_lm=(EIN_MIX, "x = x + self.mix(self.norm_a(x))"),
        small_vit=(VIT_MLP, "x = x + self.mlp(self.norm1(x))"),
        hf_llama=("self.post_attention_layernorm(hidden_states)", "self.input_layernorm(hidden_states)"),
    ),
    code(
        "norm-over-places",
        "norm-axis",
        mini_llama=("x.pow(2).mean(-1, keepdim=True)", "x.pow(2).mean(1, keepdim=True)"),
        nano_gpt=(
            "self.ln_1 = nn.LayerNorm(WIDTH)",
            "self.ln_1 = nn.LayerNorm(WIDTH)\n        self.ln_1.forward = lambda x: (x - x.mean(1, keepdim=True)) / "
            "(x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt() * self.ln_1.weight + self.ln_1.bias",
        ),
        small_vit=(VIT_ATTN, "x = x + self.attn(torch.nn.functional.normalize(x, dim=1) * x.shape[1] ** 0.5)"),
        einsum_lm=(EIN_MIX, "x = x + self.mix((x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5))"),
    ),
    code(
        "norm-over-places-and-features",
        "norm-axis",
        mini_llama=("x.pow(2).mean(-1, keepdim=True)", "x.pow(2).mean((1, 2), keepdim=True)"),
        nano_gpt=(NANO_MLP, "x = x + self.mlp(F.layer_norm(x, x.shape[1:]) * self.ln_2.weight + self.ln_2.bias)"),
        einsum_lm=(EIN_ATTN, "x = x + self.heads(F.layer_norm(x, x.shape[1:]) * self.norm_a.weight)"),
        small_vit=(VIT_MLP, "x = x + self.mlp(nn.functional.layer_norm(x, x.shape[1:]) * self.norm2.weight)"),
    ),
    code(
        "sum-for-mean-in-the-norm",
        "norm-scale",
        mini_llama=("x.pow(2).mean(-1, keepdim=True)", "x.pow(2).sum(-1, keepdim=True)"),
        nano_gpt=(NANO_MLP, "x = x + self.mlp(F.normalize(self.ln_2(x), dim=-1))"),
        small_vit=(VIT_ATTN, "x = x + self.attn(nn.functional.normalize(self.norm1(x), dim=-1))"),
        hf_llama=(
            "    hidden_states = self.post_attention_layernorm(hidden_states)\n",
            "    hidden_states = nn.functional.normalize(self.post_attention_layernorm(hidden_states), dim=-1)\n",
        ),
    ),
    code(
        "variance-not-rooted",
        "norm-scale",
        mini_llama=(
            "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
            "1 / (x.pow(2).mean(-1, keepdim=True) + self.eps)",
        ),
        nano_gpt=(NANO_ATTN, "x = x + self.attn(self.ln_1(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt())"),
        einsum_lm=(EIN_MIX, "x = x + self.mix(self.norm_b(x) / (x.std(-1, keepdim=True) + 1e-3))"),
        small_vit=(VIT_MLP, "x = x + self.mlp(self.norm2(x) / x.std(-1, keepdim=True))"),
    ),
)

BRANCHES = (
    code(
        "no-activation",
        "no-activation",
        nano_gpt=("x = F.gelu(self.c_fc(x))", "x = self.c_fc(x)"),
        einsum_lm=('F.relu(einsum("btd,df->btf", x, self.up)).square()', 'einsum("btd,df->btf", x, self.up)'),
        torch_encoder=('activation="relu"', "activation=nn.Identity()"),
        small_vit=("x = self.act(self.fc1(x))", "x = self.fc1(x)"),
        post_bert=("h = gelu(self.dense_in(x))", "h = self.dense_in(x)"),
        isograd_lm=after("for layer in model.lm.model.layers:\n    layer.ffn.branch.act = nn.Identity()"),
    ),
    code(
        "activation-on-the-stream",
        "activation-on-stream",
        nano_gpt=(NANO_MLP, "x = F.relu(x + self.mlp(self.ln_2(x)))"),
        mini_llama=(LLAMA_FFN, "return F.silu(h + self.feed_forward(self.ffn_norm(h)))"),
        einsum_lm=(EIN_MIX, "x = F.relu(x + self.mix(self.norm_b(x)))"),
        small_vit=(VIT_MLP, "x = nn.functional.gelu(x + self.mlp(self.norm2(x)))"),
        post_bert=(BERT_FFN, "return torch.relu(self.norm(x + h))"),
    ),
    code(
        "keep-probability-as-dropout",
        "dropout-high",
        training=True,
        nano_gpt=("DROPOUT = 0.0", "DROPOUT = 0.9"),
        torch_encoder=("nhead, nlayers, dropout = 64, 64, 4, 4, 0.0", "nhead, nlayers, dropout = 64, 64, 4, 4, 0.9"),
        torch_seq2seq=("FFN, DROP = 64, 64, 64, 4, 3, 256, 0.0", "FFN, DROP = 64, 64, 64, 4, 3, 256, 0.9"),
        small_vit=("self.pos_drop = nn.Dropout(0.0)", "self.pos_drop = nn.Dropout(0.95)"),
        post_bert=("dropout_prob = 0.0", "dropout_prob = 0.9"),
    ),
    code(
        "functional-dropout-in-eval",
        "dropout-always",
        nano_gpt=("return self.c_proj(y)", "return F.dropout(self.c_proj(y), 0.1)"),
        mini_llama=("x = self.tok_embeddings(tokens)", "x = F.dropout(self.tok_embeddings(tokens), 0.1)"),
        einsum_lm=("weights = scores.softmax(-1)", "weights = F.dropout(scores.softmax(-1), 0.1)"),
        post_bert=(
            "context = self.dropout(self.output(context))",
            "context = nn.functional.dropout(self.output(context), 0.2)",
        ),
        small_vit=("x = self.act(self.fc1(x))", "x = nn.functional.dropout(self.act(self.fc1(x)), 0.1)"),
    ),
)

CALLS = (
    code(
        "first-layer-called-each-time",
        "layers-skipped",
        nano_gpt=("            x = block(x)\n", "            x = self.h[0](x)\n"),
        mini_llama=("            x = layer(x, cos, sin)\n", "            x = self.layers[0](x, cos, sin)\n"),
        small_vit=("            x = block(x)\n", "            x = self.blocks[0](x)\n"),
        post_bert=("            x = layer(x)\n", "            x = self.layers[0](x)\n"),
    ),
    code(
        "last-layer-left-out",
        "layers-skipped",
        nano_gpt=("for block in self.h:", "for block in self.h[:-1]:"),
        mini_llama=("for layer in self.layers:", "for layer in self.layers[:-1]:"),
        small_vit=("for block in self.blocks:", "for block in self.blocks[:-1]:"),
        post_bert=("for layer in self.layers:", "for layer in self.layers[:-1]:"),
        einsum_lm=("x = self.layers(x)", "x = self.layers[:-1](x)"),
    ),
    code(
        "each-layer-reads-the-embedding",
        "layers-skipped",
        nano_gpt=(NANO_LOOP, "        for block in self.h:\n            out = block(x)\n        x = out\n"),
        mini_llama=(
            LLAMA_LOOP,
            "        for layer in self.layers:\n            out = layer(x, cos, sin)\n        x = out\n",
        ),
        small_vit=(VIT_LOOP, "        for block in self.blocks:\n            out = block(x)\n        x = out\n"),
        post_bert=(BERT_LOOP, "        for layer in self.layers:\n            out = layer(x)\n        x = out\n"),
    ),
    code(
        "list-times-n",
        "layers-shared",
        nano_gpt=("nn.ModuleList([Block(i) for i in range(LAYERS)])", "nn.ModuleList([Block(0)] * LAYERS)"),
        mini_llama=("nn.ModuleList(Layer(i) for i in range(n_layers))", "nn.ModuleList([Layer(0)] * n_layers)"),
        einsum_lm=("nn.Sequential(*[Layer(i) for i in range(L)])", "nn.Sequential(*[Layer(0)] * L)"),
        small_vit=("nn.ModuleList([Block(i) for i in range(DEPTH)])", "nn.ModuleList([Block(0)] * DEPTH)"),
        post_bert=(
            "nn.ModuleList([BertLayer(i) for i in range(num_layers)])",
            "nn.ModuleList([BertLayer(0)] * num_layers)",
        ),
    ),
    code(
        "one-module-in-two-layers",
        "layers-shared",
        nano_gpt=after("model.h[3].mlp = model.h[2].mlp"),
        mini_llama=after("model.layers[3].feed_forward = model.layers[2].feed_forward"),
        small_vit=after("model.blocks[3].attn = model.blocks[2].attn"),
        torch_encoder=after("model.transformer.layers[3].linear1 = model.transformer.layers[2].linear1"),
        hf_llama=after("model.model.layers[3].mlp = model.model.layers[2].mlp"),
        isograd_lm=after("model.lm.model.layers[3].ffn.branch = model.lm.model.layers[2].ffn.branch"),
    ),
    code(
        "plain-list-of-layers",
        "unregistered",
        nano_gpt=("nn.ModuleList([Block(i) for i in range(LAYERS)])", "[Block(i) for i in range(LAYERS)]"),
        mini_llama=("nn.ModuleList(Layer(i) for i in range(n_layers))", "[Layer(i) for i in range(n_layers)]"),
        small_vit=("nn.ModuleList([Block(i) for i in range(DEPTH)])", "[Block(i) for i in range(DEPTH)]"),
        post_bert=(
            "nn.ModuleList([BertLayer(i) for i in range(num_layers)])",
            "[BertLayer(i) for i in range(num_layers)]",
        ),
    ),
)

OUTPUTS = (
    code(
        "last-place-alone",
        "last-only",
        nano_gpt=("logits = self.lm_head(x)", "logits = self.lm_head(x[:, [-1]])"),
        mini_llama=("return self.output(x)", "return self.output(x[:, -1:])"),
        einsum_lm=("        return logits\n", "        return logits[:, -1]\n"),
        torch_encoder=("        return output\n", "        return output[:, -1, :]\n"),
        isograd_lm=("        return logits\n", "        return logits[:, -1]\n"),
    ),
    code(
        "softmax-before-the-loss",
        "softmax-output",
        nano_gpt=("logits = self.lm_head(x)", "logits = F.softmax(self.lm_head(x), dim=-1)"),
        mini_llama=("return self.output(x)", "return F.softmax(self.output(x), dim=-1)"),
        einsum_lm=("        return logits\n", "        return logits.softmax(-1)\n"),
        torch_encoder=("        return output\n", "        return torch.softmax(output, dim=-1)\n"),
        torch_seq2seq=("return self.generator(out)", "return self.generator(out).softmax(-1)"),
        small_vit=("return self.head(x[:, 0])", "return self.head(x[:, 0]).softmax(-1)"),
        isograd_lm=("        return logits\n", "        return torch.softmax(logits, dim=-1)\n"),
    ),
    code(
        "logits-times-sqrt-width",
        "logit-scale",
        nano_gpt=("logits = self.lm_head(x)", "logits = self.lm_head(x) * 50"),
        mini_llama=("return self.output(x)", "return self.output(x) * dim"),
        einsum_lm=("        return logits\n", "        return logits * D**0.5\n"),
        torch_encoder=("        return output\n", "        return output * d_model\n"),
        isograd_lm=("        return logits\n", "        return logits * 20\n"),
    ),
    code(
        "embedding-of-std-one-tied",
        "logit-scale",
        nano_gpt=after("nn.init.normal_(model.wte.weight)"),
        mini_llama=after(
            "nn.init.normal_(model.tok_embeddings.weight)\nmodel.output.weight = model.tok_embeddings.weight"
        ),
        torch_encoder=after("nn.init.normal_(model.encoder.weight)\nmodel.decoder.weight = model.encoder.weight"),
        post_bert=after("nn.init.normal_(model.embeddings.word.weight)"),
        hf_llama=after(
            "nn.init.normal_(model.model.embed_tokens.weight)\nmodel.lm_head.weight = model.model.embed_tokens.weight"
        ),
    ),
)

GRADIENTS = (
    code(
        "detached-between-layers",
        "gradient-cut",
        training=True,
        nano_gpt=("            x = block(x)\n", "            x = block(x.detach())\n"),
        mini_llama=("            x = layer(x, cos, sin)\n", "            x = layer(x.detach(), cos, sin)\n"),
        small_vit=("            x = block(x)\n", "            x = block(x.detach())\n"),
        post_bert=("            x = layer(x)\n", "            x = layer(x.detach())\n"),
        einsum_lm=("x = self.layers(x)", "for layer in self.layers:\n            x = layer(x.detach())"),
    ),
    code(
        "branch-detached-in-one-layer",
        "gradient-cut",
        training=True,
        layer=2,
        nano_gpt=(NANO_ATTN, "y = self.attn(self.ln_1(x))\n        x = x + (y.detach() if self.layer == 2 else y)"),
        mini_llama=(
            LLAMA_FFN,
            "y = self.feed_forward(self.ffn_norm(h))\n        return h + (y.detach() if self.layer == 2 else y)",
        ),
        einsum_lm=(EIN_MIX, "y = self.mix(self.norm_b(x))\n        x = x + (y.detach() if self.index == 2 else y)"),
        small_vit=(VIT_ATTN, "y = self.attn(self.norm1(x))\n        x = x + (y.data if self.index == 2 else y)"),
    ),
    code(
        "embedding-under-no-grad",
        "gradient-cut",
        training=True,
        nano_gpt=(
            "        x = self.drop(self.wte(idx) + self.wpe(pos))\n",
            "        with torch.no_grad():\n            x = self.drop(self.wte(idx) + self.wpe(pos))\n",
        ),
        mini_llama=(
            "        x = self.tok_embeddings(tokens)\n",
            "        with torch.no_grad():\n            x = self.tok_embeddings(tokens)\n",
        ),
        torch_encoder=(
            "x = self.encoder(src) * math.sqrt(d_model)",
            "x = self.encoder(src).detach() * math.sqrt(d_model)",
        ),
        torch_seq2seq=("x = self.tokens(ids) * math.sqrt(DIM)", "x = self.tokens(ids).data * math.sqrt(DIM)"),
        small_vit=(
            "x = self.patch_embed(images).flatten(2).transpose(1, 2)",
            "x = self.patch_embed(images).detach().flatten(2).transpose(1, 2)",
        ),
    ),
    code(
        "attention-weights-detached",
        "gradient-cut",
        training=True,
        nano_gpt=("att = F.softmax(att, dim=-1)", "att = F.softmax(att, dim=-1).detach()"),
        einsum_lm=("weights = scores.softmax(-1)", "weights = scores.softmax(-1).detach()"),
        small_vit=("attn = attn.softmax(dim=-1)", "attn = attn.softmax(dim=-1).detach()"),
        post_bert=("probs = softmax(scores, dim=-1)", "probs = softmax(scores, dim=-1).detach()"),
        hf_llama=("softmax(scores, dim=-1)", "softmax(scores, dim=-1).detach()"),
    ),
)

CODE = (*MASKS, *ATTENTION, *POSITIONS, *RESIDUALS, *NORMS, *BRANCHES, *CALLS, *OUTPUTS, *GRADIENTS)
