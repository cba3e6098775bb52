"""By hand: text models in the manner of well-known repositories."""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import BATCH, TOKENS, WORDS, Truth, ids
from .entry import LLAMA, D, H, K, entry


@dataclass
class Config:
    block_size: int = TOKENS
    padded_vocab_size: int = 64
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 32
    head_size: int = 8
    n_query_groups: int = 2
    rotary_percentage: float = 0.5
    bias: bool = True
    mlp_class_name: str = "GptNeoxMLP"
    norm_class_name: str = "LayerNorm"
    intermediate_size: int = 64
    rope_n_elem: int = field(init=False)

    def __post_init__(self):
        self.rope_n_elem = int(self.rotary_percentage * self.head_size)

    @property
    def mlp_class(self):
        return globals()[self.mlp_class_name]

    @property
    def norm_class(self):
        return getattr(nn, self.norm_class_name)


class GptNeoxMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(config.n_embd, config.intermediate_size, bias=config.bias)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=config.bias)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


def apply_rope(x, cos, sin):
    half = x.size(-1) // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + rotated * sin).to(x.dtype)


class GroupedQKV(nn.Module):
    """One matrix whose rows are, for each group of queries, the queries, then one key and one value."""

    def __init__(self, config):
        super().__init__()
        rows = (config.n_head + 2 * config.n_query_groups) * config.head_size
        self.attn = nn.Linear(config.n_embd, rows, bias=config.bias)
        self.proj = nn.Linear(config.head_size * config.n_head, config.n_embd, bias=config.bias)
        self.config = config

    def forward(self, x, cos, sin, mask=None):
        B, T, _ = x.size()
        c = self.config
        q_per_kv = c.n_head // c.n_query_groups
        qkv = self.attn(x).view(B, T, c.n_query_groups, q_per_kv + 2, c.head_size).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((q_per_kv, 1, 1), dim=2)
        k, v = (t.expand(B, c.n_query_groups, q_per_kv, T, c.head_size) for t in (k, v))
        q, k, v = (t.reshape(B, -1, T, c.head_size) for t in (q, k, v))
        n = c.rope_n_elem
        q = torch.cat((apply_rope(q[..., :n], cos, sin), q[..., n:]), dim=-1)
        k = torch.cat((apply_rope(k[..., :n], cos, sin), k[..., n:]), dim=-1)
        scale = 1.0 / math.sqrt(c.head_size)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, is_causal=mask is None)
        return self.proj(y.transpose(1, 2).reshape(B, T, c.head_size * c.n_head))


class LitBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_1, self.norm_2 = config.norm_class(config.n_embd), config.norm_class(config.n_embd)
        self.attn, self.mlp = GroupedQKV(config), config.mlp_class(config)

    def forward(self, x, cos, sin, mask=None):
        x = self.attn(self.norm_1(x), cos, sin, mask) + x
        return self.mlp(self.norm_2(x)) + x


@entry(
    "one config for all families, queries, key and value of a group in one matrix",
    Truth(3, kv_heads=2, positions="rotary", absolute=False),
    batch=ids,
)
class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = config = Config()
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.padded_vocab_size, config.n_embd),
                h=nn.ModuleList(LitBlock(config) for _ in range(config.n_layer)),
                ln_f=config.norm_class(config.n_embd),
            )
        )
        n = config.rope_n_elem
        theta = 1.0 / (10000 ** (torch.arange(0, n, 2).float() / n))
        angles = torch.outer(torch.arange(config.block_size), theta).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, idx, input_pos=None):  # noqa: ARG002
        n = idx.size(1)
        if n > self.config.block_size:
            raise ValueError(f"{n} tokens, block size is only {self.config.block_size}")
        x = self.transformer.wte(idx)
        for block in self.transformer.h:
            x = block(x, self.cos[:n], self.sin[:n])
        return self.lm_head(self.transformer.ln_f(x))


class CachedAttention(nn.Module):
    """A cache of plain tensors, written in place outside of training."""

    def __init__(self, n_kv=2):
        super().__init__()
        self.n_rep = H // n_kv
        self.wq, self.wo = nn.Linear(D, H * K, bias=False), nn.Linear(H * K, D, bias=False)
        self.wk, self.wv = nn.Linear(D, n_kv * K, bias=False), nn.Linear(D, n_kv * K, bias=False)
        self.cache_k = torch.zeros(8, TOKENS, n_kv, K)
        self.cache_v = torch.zeros(8, TOKENS, n_kv, K)

    def forward(self, x, start_pos, freqs_cis, mask):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, -1, K) for w in (self.wq, self.wk, self.wv))
        xq, xk = (
            torch.view_as_real(torch.view_as_complex(t.float().unflatten(-1, (-1, 2))) * freqs_cis)
            .flatten(3)
            .type_as(t)
            for t in (xq, xk)
        )
        if not self.training:
            with torch.no_grad():
                self.cache_k[:bsz, start_pos : start_pos + seqlen] = xk
                self.cache_v[:bsz, start_pos : start_pos + seqlen] = xv
            if start_pos:
                xk = torch.cat([self.cache_k[:bsz, :start_pos], xk], 1)
                xv = torch.cat([self.cache_v[:bsz, :start_pos], xv], 1)
        keys, values = (t.repeat_interleave(self.n_rep, 2).transpose(1, 2) for t in (xk, xv))
        scores = torch.matmul(xq.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(K)
        if mask is not None:
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        return self.wo(torch.matmul(scores, values).transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class FeedForward(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, hidden, bias=False), nn.Linear(hidden, D, bias=False)
        self.w3 = nn.Linear(D, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class RootMeanSquare(nn.Module):
    def __init__(self, dim=D, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


@entry(
    "llama by hand with start_pos and a cache that is no buffer",
    Truth(4, kv_heads=2, **LLAMA),
    batch=lambda: {"tokens": ids(), "start_pos": 0},
)
class CachedLlama(nn.Module):
    class TransformerBlock(nn.Module):
        def __init__(self, layer_id):
            super().__init__()
            self.layer_id, self.attention, self.feed_forward = layer_id, CachedAttention(), FeedForward()
            self.attention_norm, self.ffn_norm = RootMeanSquare(), RootMeanSquare()

        def forward(self, x, start_pos, freqs_cis, mask):
            h = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask)
            return h + self.feed_forward(self.ffn_norm(h))

    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(WORDS, D), RootMeanSquare()
        self.layers = nn.ModuleList(self.TransformerBlock(i) for i in range(4))
        self.output = nn.Linear(D, WORDS, bias=False)
        freqs = torch.outer(torch.arange(2 * TOKENS), 1.0 / (10000.0 ** (torch.arange(0, K, 2) / K)))
        self.freqs_cis = torch.polar(torch.ones_like(freqs), freqs)

    def forward(self, tokens, start_pos):
        _, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        freqs_cis = self.freqs_cis[start_pos : start_pos + seqlen, None]
        mask = None
        if seqlen > 1:
            mask = torch.triu(torch.full((seqlen, seqlen), float("-inf")), diagonal=1)
            mask = torch.hstack([torch.zeros((seqlen, start_pos)), mask]).type_as(h)
        for layer in self.layers:
            h = layer(h, start_pos, freqs_cis, mask)
        return self.output(self.norm(h)).float()


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class LayerNormA2(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = LayerNormA2(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


def attention(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn, self.dropout = None, nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class AnnotatedLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward):
        super().__init__()
        self.size, self.self_attn, self.src_attn, self.feed_forward = size, self_attn, src_attn, feed_forward
        self.sublayer = clones(SublayerConnection(size, 0.1), 2 if src_attn is None else 3)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        if self.src_attn is not None:
            x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, memory_mask))
        return self.sublayer[-1](x, self.feed_forward)


class AnnotatedStack(nn.Module):
    def __init__(self, layer, n):
        super().__init__()
        self.layers, self.norm = clones(layer, n), LayerNormA2(layer.size)

    def forward(self, x, *rest):
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut, self.d_model = nn.Embedding(vocab, d_model), d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)].requires_grad_(False))


class AnnotatedTransformer(nn.Module):
    def __init__(self, encoder, decoder, src_embed, tgt_embed, generator):
        super().__init__()
        self.encoder, self.decoder, self.generator = encoder, decoder, generator
        self.src_embed, self.tgt_embed = src_embed, tgt_embed

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory = self.encoder(self.src_embed(src), src_mask)
        return self.generator(self.decoder(self.tgt_embed(tgt), tgt_mask, memory, src_mask))


def translation_batch():
    src, tgt = ids(), ids()[:, :12]
    tgt_mask = torch.triu(torch.ones(1, 12, 12), diagonal=1) == 0
    return src, tgt, torch.ones(BATCH, 1, TOKENS, dtype=torch.bool), tgt_mask


@entry(
    "the annotated transformer, whole",
    Truth(2, sees="full", activation="relu"),
    Truth(3, activation="relu", reason=("cross",)),
    batch=translation_batch,
)
def make_model():
    c = copy.deepcopy
    attn, ff = MultiHeadedAttention(H, D), PositionwiseFeedForward(D, 64)
    position = PositionalEncoding(D, 0.1)
    model = AnnotatedTransformer(
        AnnotatedStack(AnnotatedLayer(D, c(attn), None, c(ff)), 2),
        AnnotatedStack(AnnotatedLayer(D, c(attn), c(attn), c(ff)), 3),
        nn.Sequential(Embeddings(D, WORDS), c(position)),
        nn.Sequential(Embeddings(D, WORDS), c(position)),
        nn.Sequential(nn.Linear(D, WORDS), nn.LogSoftmax(-1)),
    )
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model


class ColumnParallelLinear(nn.Module):
    """The bias is not added but returned, for a fused kernel to add."""

    def __init__(self, input_size, output_size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size).normal_(0, 0.1))
        self.bias = nn.Parameter(torch.zeros(output_size))

    def forward(self, input_):
        return torch.matmul(input_, self.weight.t()), self.bias


def bias_gelu(bias, y):
    x = bias + y
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def bias_dropout_add(x, bias, residual, prob, training):
    out = F.dropout(x + bias, p=prob, training=training)
    return residual + out


class ParallelAttention(nn.Module):
    def __init__(self, layer_number):
        super().__init__()
        self.layer_number, self.norm_factor = max(1, layer_number), math.sqrt(K)
        self.query_key_value, self.dense = ColumnParallelLinear(D, 3 * D), ColumnParallelLinear(D, D)

    def forward(self, hidden_states, attention_mask):
        mixed, bias = self.query_key_value(hidden_states)
        mixed = (mixed + bias).view(*mixed.shape[:-1], H, 3 * K)  # [sq, b, np, 3 * hn]
        query, key, value = mixed.split(K, dim=-1)
        sq, b = query.shape[:2]
        query, key = query.reshape(sq, b * H, K), key.reshape(sq, b * H, K)
        scores = torch.empty(b * H, sq, sq, dtype=query.dtype)
        scores = torch.baddbmm(
            scores,
            query.transpose(0, 1),
            key.transpose(0, 1).transpose(1, 2),
            beta=0.0,
            alpha=1.0 / (self.norm_factor * self.layer_number),
        )
        scores = scores.view(b, H, sq, sq) * self.layer_number
        probs = torch.softmax(scores.masked_fill(attention_mask, -10000.0), dim=-1)
        value = value.reshape(sq, b * H, K)
        context = torch.bmm(probs.view(b * H, sq, sq), value.transpose(0, 1))
        context = context.view(b, H, sq, K).permute(2, 0, 1, 3).reshape(sq, b, D)
        return self.dense(context)


class ParallelMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense_h_to_4h, self.dense_4h_to_h = (
            ColumnParallelLinear(D, 4 * D),
            ColumnParallelLinear(4 * D, D),
        )

    def forward(self, hidden_states):
        intermediate, bias = self.dense_h_to_4h(hidden_states)
        return self.dense_4h_to_h(bias_gelu(bias, intermediate))


class ParallelTransformerLayer(nn.Module):
    def __init__(self, layer_number):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.self_attention, self.mlp, self.hidden_dropout = (
            ParallelAttention(layer_number),
            ParallelMLP(),
            0.1,
        )

    def forward(self, hidden_states, attention_mask):
        output, bias = self.self_attention(self.input_layernorm(hidden_states), attention_mask)
        layernorm_input = bias_dropout_add(output, bias, hidden_states, self.hidden_dropout, self.training)
        output, bias = self.mlp(self.post_attention_layernorm(layernorm_input))
        return bias_dropout_add(output, bias, layernorm_input, self.hidden_dropout, self.training)


@entry(
    "tokens first inside, biases returned and added with the dropout, tied readout",
    Truth(3, tied=True),
    batch=lambda: {"input_ids": ids(), "position_ids": torch.arange(TOKENS).expand(BATCH, -1)},
)
class ParallelGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.ModuleDict(
            dict(word_embeddings=nn.Embedding(WORDS, D), position_embeddings=nn.Embedding(TOKENS, D))
        )
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(ParallelTransformerLayer(i + 1) for i in range(3))
        self.encoder.final_layernorm = nn.LayerNorm(D)

    def forward(self, input_ids, position_ids):
        words = self.embedding.word_embeddings
        x = words(input_ids) + self.embedding.position_embeddings(position_ids)
        x = x.transpose(0, 1).contiguous()
        s = x.shape[0]
        mask = torch.tril(torch.ones(1, 1, s, s)) < 0.5
        for layer in self.encoder.layers:
            x = layer(x, mask)
        x = self.encoder.final_layernorm(x)
        return torch.matmul(x, words.weight.t()).transpose(0, 1).contiguous()


EncoderOut = namedtuple("EncoderOut", ["encoder_out", "encoder_padding_mask"])


class SequenceAttention(nn.Module):
    """Tokens, batch, channels; heads folded into the batch; queries scaled before the product."""

    def __init__(self, embed_dim=D, num_heads=H):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        q = self.q_proj(query) * self.scaling
        k, v = self.k_proj(key), self.v_proj(value)
        q, k, v = (
            t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1) for t in (q, k, v)
        )
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights += attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, -1)
            attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None], float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, -1)
        probs = F.softmax(attn_weights, dim=-1, dtype=torch.float32).type_as(attn_weights)
        attn = torch.bmm(probs, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn), probs.view(bsz, self.num_heads, tgt_len, -1).mean(1)


class SequenceLayer(nn.Module):
    def __init__(self, cross, normalize_before=False):
        super().__init__()
        self.normalize_before = normalize_before
        self.self_attn, self.self_attn_layer_norm = SequenceAttention(), nn.LayerNorm(D)
        self.encoder_attn = SequenceAttention() if cross else None
        self.encoder_attn_layer_norm = nn.LayerNorm(D) if cross else None
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(D, 64), nn.Linear(64, D), nn.LayerNorm(D)

    def maybe_layer_norm(self, layer_norm, x, after=False):
        return layer_norm(x) if after ^ self.normalize_before else x

    def forward(self, x, padding=None, memory=None, attn_mask=None):
        residual = x
        x = self.maybe_layer_norm(self.self_attn_layer_norm, x)
        own = padding if memory is None else None
        x, _ = self.self_attn(x, x, x, key_padding_mask=own, attn_mask=attn_mask)
        x = self.maybe_layer_norm(self.self_attn_layer_norm, residual + x, after=True)
        if self.encoder_attn is not None:
            residual = x
            x = self.maybe_layer_norm(self.encoder_attn_layer_norm, x)
            x, _ = self.encoder_attn(x, memory, memory, key_padding_mask=padding)
            x = self.maybe_layer_norm(self.encoder_attn_layer_norm, residual + x, after=True)
        residual = x
        x = self.maybe_layer_norm(self.final_layer_norm, x)
        x = self.fc2(F.relu(self.fc1(x)))
        return self.maybe_layer_norm(self.final_layer_norm, residual + x, after=True)


class SequencePart(nn.Module):
    def __init__(self, embed_tokens, layers, cross):
        super().__init__()
        self.embed_tokens, self.embed_scale = embed_tokens, math.sqrt(D)
        self.embed_positions = nn.Embedding(TOKENS + 2, D, padding_idx=1)
        self.layers = nn.ModuleList(SequenceLayer(cross) for _ in range(layers))

    def embed(self, tokens):
        places = torch.arange(tokens.shape[1]) + 2
        return (self.embed_scale * self.embed_tokens(tokens) + self.embed_positions(places)).transpose(0, 1)


@entry(
    "translation, post-norm, batch on the second axis, one table for source, target and readout",
    Truth(2, sees="full", norm="post", activation="relu", tied=True),
    Truth(3, norm="post", activation="relu", tied=True, reason=("cross",)),
    batch=lambda: {
        "src_tokens": ids() % 50 + 4,
        "src_lengths": torch.tensor([TOKENS, TOKENS]),
        "prev_output_tokens": ids()[:, :10] % 50 + 4,
    },
)
class SequenceToSequence(nn.Module):
    def __init__(self):
        super().__init__()
        table = nn.Embedding(WORDS, D, padding_idx=1)
        nn.init.normal_(table.weight, std=D**-0.5)
        self.encoder, self.decoder = SequencePart(table, 2, False), SequencePart(table, 3, True)

    def forward(self, src_tokens, src_lengths, prev_output_tokens):  # noqa: ARG002
        x, padding = self.encoder.embed(src_tokens), src_tokens.eq(1)
        for layer in self.encoder.layers:
            x = layer(x, padding)
        memory = EncoderOut(x, padding)
        x = self.decoder.embed(prev_output_tokens)
        future = torch.full((len(x), len(x)), float("-inf")).triu(1)
        for layer in self.decoder.layers:
            x = layer(x, memory.encoder_padding_mask, memory.encoder_out, future)
        return F.linear(x.transpose(0, 1), self.decoder.embed_tokens.weight), {"memory": memory.encoder_out}


class ScaledHeads(nn.Module):
    """One factor for each head, and norms behind attention and inside the feed-forward."""

    def __init__(self):
        super().__init__()
        self.ln_in, self.ln_attn, self.ln_ff, self.ln_mid = (
            *(nn.LayerNorm(D) for _ in range(3)),
            nn.LayerNorm(64),
        )
        self.c_attn = nn.Parameter(torch.ones(H))
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.ln_in(x)).view(b, n, 3, H, K).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = torch.einsum("bhtd,h->bthd", y, self.c_attn).reshape(b, n, D)
        x = x + self.ln_attn(self.o(y))
        return x + self.down(self.ln_mid(F.gelu(self.up(self.ln_ff(x)))))


class PlainText(nn.Module):
    def __init__(self, *blocks, places=True):
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D) if places else None
        self.blocks, self.norm, self.unembed = nn.Sequential(*blocks), nn.LayerNorm(D), nn.Linear(D, WORDS)

    def forward(self, tokens):
        x = self.tok(tokens)
        if self.pos is not None:
            x = x + self.pos.weight[: tokens.shape[1]]
        return self.unembed(self.norm(self.blocks(x)))


entry(
    "a factor for each head, norms behind attention and in the middle of the feed-forward",
    Truth(3, norm=None, reason=("norm", "differ", "inside")),
    batch=ids,
)(lambda: PlainText(*(ScaledHeads() for _ in range(3))))


class Zeroed(nn.Module):
    """RMS norm of gain 1 + weight."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), eps=1e-6) * (1.0 + self.weight)


class GatedQueries(nn.Module):
    """One matrix makes the queries and the gate of what attention gives; half of a head turns."""

    def __init__(self, kv=2):
        super().__init__()
        self.kv, self.q_proj = kv, nn.Linear(D, 2 * D, bias=False)
        self.k_proj, self.v_proj = nn.Linear(D, kv * K, bias=False), nn.Linear(D, kv * K, bias=False)
        self.o_proj, self.q_norm, self.k_norm = nn.Linear(D, D, bias=False), Zeroed(K), Zeroed(K)

    def forward(self, x, cos, sin):
        shape = *x.shape[:-1], -1, K
        q, gate = self.q_proj(x).view(*x.shape[:-1], -1, 2 * K).chunk(2, dim=-1)
        gate = gate.reshape(*x.shape[:-1], -1)
        q, k = self.q_norm(q).transpose(1, 2), self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        r = cos.shape[-1]
        q, k = (torch.cat([apply_rope(t[..., :r], cos, sin), t[..., r:]], -1) for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2) * torch.sigmoid(gate))


@entry(
    "queries and an output gate by one matrix, norms of gain one plus zero, half of a head turned",
    Truth(3, kv_heads=2, qk_norm=True, attention_branch=None, reason=("gate", "value", "sigmoid"), **LLAMA),
    batch=ids,
)
class Gated(nn.Module):
    class DecoderLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = GatedQueries(), FeedForward(64)
            self.input_layernorm, self.post_attention_layernorm = Zeroed(D), Zeroed(D)

        def forward(self, hidden_states, position_embeddings):
            residual = hidden_states
            hidden_states = self.self_attn(self.input_layernorm(hidden_states), *position_embeddings)
            hidden_states = residual + hidden_states
            return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(WORDS, D), Zeroed(D)
        self.layers = nn.ModuleList(self.DecoderLayer() for _ in range(3))
        self.lm_head = nn.Linear(D, WORDS, bias=False)

    def forward(self, input_ids):
        r = K // 2
        angle = torch.outer(torch.arange(input_ids.shape[1]), 10000.0 ** (-torch.arange(0, r, 2) / r))
        turn = torch.cat([angle, angle], -1)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, (turn.cos(), turn.sin()))
        return self.lm_head(self.norm(x))


@entry(
    "bert with token types, a mask of -10000 and a loss before the logits",
    Truth(3, sees="full", norm="post", tied=True),
    batch=lambda: {
        "input_ids": ids(),
        "token_type_ids": (torch.arange(TOKENS) > 7).long().expand(BATCH, -1),
        "attention_mask": torch.ones(BATCH, TOKENS),
        "masked_lm_labels": ids(),
    },
)
class Bert(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.dense = (nn.Linear(D, D) for _ in range(4))
            self.intermediate, self.output = nn.Linear(D, 64), nn.Linear(64, D)
            self.attention_norm, self.output_norm = nn.LayerNorm(D, eps=1e-12), nn.LayerNorm(D, eps=1e-12)
            self.dropout = nn.Dropout(0.1)

        def transpose_for_scores(self, x):
            return x.view(*x.size()[:-1], H, K).permute(0, 2, 1, 3)

        def forward(self, hidden_states, attention_mask):
            query, key, value = (
                self.transpose_for_scores(f(hidden_states)) for f in (self.query, self.key, self.value)
            )
            scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(K) + attention_mask
            probs = self.dropout(nn.Softmax(dim=-1)(scores))
            context = torch.matmul(probs, value).permute(0, 2, 1, 3).contiguous()
            context = self.dropout(self.dense(context.view(*context.size()[:-2], D)))
            hidden_states = self.attention_norm(context + hidden_states)
            x = self.intermediate(hidden_states)
            x = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
            return self.output_norm(self.dropout(self.output(x)) + hidden_states)

    def __init__(self):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(WORDS, D), nn.Embedding(TOKENS, D)
        self.token_type_embeddings, self.norm = nn.Embedding(2, D), nn.LayerNorm(D)
        self.layer, self.bias = (
            nn.ModuleList(self.Layer() for _ in range(3)),
            nn.Parameter(torch.zeros(WORDS)),
        )
        self.pooler, self.apart = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, input_ids, token_type_ids, attention_mask, masked_lm_labels=None):
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        x = self.norm(x + self.position_embeddings(torch.arange(input_ids.size(1))[None]))
        mask = (1.0 - attention_mask[:, None, None]) * -10000.0
        for layer in self.layer:
            x = layer(x, mask)
        scores = F.linear(x, self.word_embeddings.weight, self.bias)
        apart = self.apart(torch.tanh(self.pooler(x[:, 0])))
        if masked_lm_labels is None:
            return scores, apart
        loss = F.cross_entropy(scores.view(-1, WORDS), masked_lm_labels.view(-1), ignore_index=-1)
        return loss + 0.1 * apart.square().mean(), scores, apart


class Small(nn.Module):
    """A post-norm encoder of any width."""

    class Layer(nn.Module):
        def __init__(self, d, h):
            super().__init__()
            self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = self.norm1(x + self.out(y))
            return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))

    def __init__(self, word, place, d, h, layers):
        super().__init__()
        self.word, self.place = word, place
        self.enter = nn.Linear(word.embedding_dim, d)
        self.layers = nn.ModuleList(self.Layer(d, h) for _ in range(layers))

    def forward(self, tokens):
        x = self.enter(self.word(tokens) + self.place.weight)
        for layer in self.layers:
            x = layer(x)
        return x


@entry(
    "a small net guesses words, a larger one tells which are guessed",
    Truth(2, heads=2, sees="full", norm="post"),
    Truth(3, sees="full", norm="post"),
    batch=lambda: {"masked": ids(), "original": ids()},
)
class Detective(nn.Module):
    def __init__(self):
        super().__init__()
        word, place = nn.Embedding(WORDS, 24), nn.Embedding(TOKENS, 24)
        self.generator, self.discriminator = Small(word, place, 16, 2, 2), Small(word, place, D, H, 3)
        self.guess, self.tell = nn.Linear(16, WORDS), nn.Linear(D, 1)

    def forward(self, masked, original):
        guesses = self.guess(self.generator(masked))
        with torch.no_grad():
            mixed = torch.where(original % 5 == 0, guesses.argmax(-1), original)
        return torch.cat([guesses, self.tell(self.discriminator(mixed))], -1)


class Reduced(nn.Module):
    """Queries, keys and values are products of two small tensors made from the token."""

    def __init__(self, rank=3):
        super().__init__()
        self.rank, self.norm, self.ffn_norm, self.ffn = rank, nn.RMSNorm(D), nn.RMSNorm(D), FeedForward()
        self.a = nn.ModuleDict({s: nn.Linear(D, rank * H, bias=False) for s in "qkv"})
        self.b = nn.ModuleDict({s: nn.Linear(D, rank * K, bias=False) for s in "qkv"})
        self.o = nn.Linear(D, D, bias=False)
        angle = torch.outer(torch.arange(TOKENS), 10000.0 ** (-torch.arange(0, K, 2) / K)).repeat(1, 2)
        self.register_buffer("cos", angle.cos()[:, None]), self.register_buffer("sin", angle.sin()[:, None])

    def product(self, x, s):
        a = self.a[s](x).unflatten(-1, (self.rank, H))
        b = self.b[s](x).unflatten(-1, (self.rank, K))
        if s != "v":
            b = apply_rope(b, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        return torch.einsum("btrh,btrk->bhtk", a, b) / self.rank

    def forward(self, x):
        y = self.norm(x)
        y = F.scaled_dot_product_attention(*(self.product(y, s) for s in "qkv"), is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.ffn(self.ffn_norm(x))


entry(
    "queries, keys and values as sums of products of two factors",
    Truth(3, reason=("quer", "product", "input", "factor", "value"), **LLAMA),
    batch=ids,
)(lambda: PlainText(*(Reduced() for _ in range(3)), places=False))


class Interpolated(nn.Module):
    """Positions counted by gates of the content, read from a table between whole numbers."""

    def __init__(self, most=8):
        super().__init__()
        self.most, self.qkv, self.o = most, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(K, most) * 0.2)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def counted(self, q, logits):
        gates = torch.sigmoid(logits).tril()
        pos = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.most - 1)
        up, down = pos.ceil().long(), pos.floor().long()
        e = q @ self.table
        w = pos - down
        return e.gather(-1, up) * w + e.gather(-1, down) * (1 - w)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (H, K)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        logits = q @ k.mT / math.sqrt(K)
        logits = (logits + self.counted(q, logits)).masked_fill(
            torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), float("-inf")
        )
        x = x + self.o((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.ff(self.n2(x))


entry(
    "positions counted by gates of the content",
    Truth(3, positions=None, absolute=False, reason=("position", "bias", "input", "logit", "score")),
    batch=ids,
)(lambda: PlainText(*(Interpolated() for _ in range(3)), places=False))


class LogitFilter(nn.Module):
    """The logits of a head are filtered over neighboring queries and keys before the softmax."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.kernel = nn.Conv2d(H, H, (3, 3), groups=H, bias=False)
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.ffn = FeedForward()

    def forward(self, x):
        y, n = self.n1(x), x.shape[1]
        q, k, v = (f(y).unflatten(-1, (H, K)).transpose(1, 2) for f in (self.q, self.k, self.v))
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
        logits = (q @ k.mT / K**0.5).masked_fill(ahead, 0.0)
        logits = self.kernel(F.pad(logits, (1, 1, 2, 0))).masked_fill(ahead, -torch.inf)
        x = x + self.o((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.ffn(self.n2(x))


entry(
    "logits filtered over neighboring queries and keys",
    Truth(3, norm_kind="rms", gated=True, activation="silu", reason=("logit", "convol", "mix", "score")),
    batch=ids,
)(lambda: PlainText(*(LogitFilter() for _ in range(3))))


class Ternary(nn.Linear):
    """Weights of -1, 0 and 1 times their mean size, activations of eight bits, gradients straight through."""

    def forward(self, x):
        x = F.rms_norm(x, (x.shape[-1],))
        scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        x = x + ((x * scale).round().clamp(-128, 127) / scale - x).detach()
        size = self.weight.abs().mean().clamp(min=1e-5)
        w = self.weight + ((self.weight / size).round().clamp(-1, 1) * size - self.weight).detach()
        return F.linear(x, w)


class TernaryBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = Ternary(D, 3 * D, bias=False), Ternary(D, D, bias=False)
        self.up, self.down = Ternary(D, 64, bias=False), Ternary(64, D, bias=False)

    def forward(self, x):
        q, k, v = self.wqkv(x).unflatten(-1, (3, H, K)).permute(2, 0, 3, 1, 4)
        x = x + self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


entry(
    "three values for a weight, a norm inside each matrix",
    Truth(3, norm=None, norm_kind="rms", reason=("norm", "inside", "round", "quant", "step")),
    batch=ids,
)(lambda: PlainText(*(TernaryBlock() for _ in range(3))))
