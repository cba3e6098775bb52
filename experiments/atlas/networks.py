"""Networks of the atlas as users build them: classes of Hugging Face from config, torch's encoder, a GPT by hand.

A shape is one row of `shapes.json`: `family`, `task`, sizes, and for the family `hand` the places of norms, positions
and scales. `network(shape, data, seed)` is its sound start: the family's own initialization, called as model(inputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import Data

Shape = dict[str, Any]
STD = 0.02  # of GPT-2 [Radford 2019] and of most configs since
LAYER_SCALE = 0.1  # of CaiT [Touvron 2021] up to 18 blocks
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def network(shape: Shape, data: Data, seed: int) -> nn.Module:
    """Return the sound start of a shape; the same weights for the same seed."""
    torch.manual_seed(10_000 + seed)
    return FAMILIES[shape["family"]](shape, data)


class Stream(nn.Module):
    """Put an embedding, positions and a readout around blocks that map (B, n, d) to (B, n, d)."""

    def __init__(
        self, shape: Shape, data: Data, blocks: nn.Module, position: Tensor | None, norm: nn.Module
    ) -> None:
        super().__init__()
        width = shape["width"]
        self.embedding = nn.Linear(data.inputs, width) if data.vectors else nn.Embedding(data.inputs, width)
        self.position = None if position is None else nn.Parameter(position)
        self.blocks, self.norm = blocks, norm
        self.head = nn.Linear(width, data.outputs, bias=False)
        self.pooled = data.pooled

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embedding(inputs)
        if self.position is not None:
            x = x + self.position
        x = self.norm(self.blocks(x))
        return self.head(x.mean(1) if self.pooled else x)


class RMSNorm(nn.RMSNorm):
    """An RMSNorm with the epsilon of Llama."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)


class Attention(nn.Module):
    """Grouped attention with optional rotary positions and norms of queries and keys."""

    def __init__(self, shape: Shape, causal: bool) -> None:
        super().__init__()
        width, self.heads = shape["width"], shape["heads"]
        self.groups, self.size, self.causal = shape.get("kv_heads") or self.heads, width // self.heads, causal
        self.rotary = shape["positions"] == "rotary"
        self.query = nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, self.groups * self.size) for _ in range(2))
        self.output = nn.Linear(width, width)
        self.query_norm, self.key_norm = (
            RMSNorm(self.size) if shape.get("qk_norm") else nn.Identity() for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = self.query_norm(q), self.key_norm(k)
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


def _rotated(x: Tensor) -> Tensor:
    """Turn pairs of coordinates by angles that grow with the place [Su 2021]."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
    )


class MLP(nn.Module):
    """Two layers, or three with a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape["width"], (2 if shape.get("gated") else 4) * shape["width"]
        self.gate = nn.Linear(width, hidden) if shape.get("gated") else None
        self.into, self.output = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation = ACTIVATIONS[shape["activation"]]

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.output(self.activation(self.gate(x)) * self.into(x))
        return self.output(self.activation(self.into(x)))


class Residual(nn.Module):
    """One branch and its skip: x -> skip x + scale branch(x), with norms where the shape has them."""

    def __init__(self, shape: Shape, branch: nn.Module) -> None:
        super().__init__()
        width, place = shape["width"], shape["norm"]
        kind = RMSNorm if shape.get("rms") else nn.LayerNorm
        self.branch = branch
        self.before = kind(width) if place in ("pre", "sandwich") else nn.Identity()
        self.inside = kind(width) if place == "sandwich" else nn.Identity()
        self.after = kind(width) if place in ("post", "deep") else nn.Identity()
        self.skip = (2 * shape["depth"]) ** 0.25 if place == "deep" else 1.0  # alpha of DeepNorm [Wang 2022]
        self.skip = self.skip if shape.get("skips", True) else 0.0
        start = {"layer": LAYER_SCALE, "zero": 0.0}.get(shape.get("scale", ""))
        size = width if shape.get("scale") == "layer" else 1
        self.scale = None if start is None else nn.Parameter(torch.full((size,), start))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(self.branch(self.before(x)))
        return self.after(self.skip * x + (y if self.scale is None else self.scale * y))


def _hand(shape: Shape, data: Data) -> nn.Module:
    """A GPT or encoder by hand, drawn as GPT-2; DeepNorm and plain stacks with their own published gains."""
    width, depth, place = shape["width"], shape["depth"], shape["norm"]
    causal = not data.pooled
    blocks = nn.Sequential(
        *(
            nn.Sequential(Residual(shape, Attention(shape, causal)), Residual(shape, MLP(shape)))
            for _ in range(depth)
        )
    )
    position = torch.empty(data.tokens, width).normal_(std=STD) if shape["positions"] == "learned" else None
    kind = RMSNorm if shape.get("rms") else nn.LayerNorm
    model = Stream(
        shape, data, blocks, position, kind(width) if place in ("pre", "sandwich") else nn.Identity()
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or name == "position":
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        elif place == "deep":  # Xavier, with beta on values, outputs and the MLP [Wang 2022]
            small = not any(part in name for part in ("query", "key", "embedding", "head"))
            nn.init.xavier_normal_(parameter, (8 * depth) ** -0.25 if small else 1.0)
        elif place == "none":  # plain stacks keep their scale by fan-in
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if "blocks" in name else STD)
        else:
            nn.init.normal_(
                parameter, std=STD / (math.sqrt(2 * depth) if name.endswith("output.weight") else 1.0)
            )
    if place == "none" and shape.get("scale") is None:
        with torch.no_grad():  # branches of a stack without norms add up; their outputs shrink with depth
            for name, parameter in model.named_parameters():
                if name.endswith("output.weight"):
                    parameter /= math.sqrt(2 * depth)
    if place in ("post", "deep", "none"):
        nn.init.normal_(model.embedding.weight, std=1.0 if not data.vectors else data.inputs**-0.5)
    return model


def _torch(shape: Shape, data: Data) -> nn.Module:
    """torch.nn.TransformerEncoder as its tutorials build it, each layer drawn on its own."""
    width = shape["width"]
    layers = [
        nn.TransformerEncoderLayer(
            width,
            shape["heads"],
            2 * width,
            dropout=0.0,
            activation=shape["activation"],
            batch_first=True,
            norm_first=shape["norm"] == "pre",
        )
        for _ in range(shape["depth"])
    ]
    blocks = _Masked(nn.ModuleList(layers), causal=not data.pooled)
    norm = nn.LayerNorm(width) if shape["norm"] == "pre" else nn.Identity()
    return Stream(shape, data, blocks, torch.randn(data.tokens, width) * STD, norm)


class _Masked(nn.Module):
    """Run layers of torch one after another, with a causal mask where the task is text."""

    def __init__(self, layers: nn.ModuleList, causal: bool) -> None:
        super().__init__()
        self.layers, self.causal = layers, causal

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=self.causal)
        return x


class Text(nn.Module):
    """A causal language model of Hugging Face on ids: its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


class Images(nn.Module):
    """An image classifier of Hugging Face on patches, which are put together to one picture again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, patches: Tensor) -> Tensor:
        n, count, features = patches.shape
        side, size = math.isqrt(count), math.isqrt(features)
        picture = patches.reshape(n, side, side, size, size).transpose(2, 3)
        return self.model(pixel_values=picture.reshape(n, 1, side * size, side * size)).logits


# What a config calls its sizes, where it is not hidden_size, num_hidden_layers, num_attention_heads.
SIZES = {
    "gpt2": ("n_embd", "n_layer", "n_head"),
    "gptj": ("n_embd", "n_layer", "n_head"),
    "bloom": ("hidden_size", "n_layer", "n_head"),
}
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "opt": ("OPTConfig", "OPTForCausalLM"),
    "bert": ("BertConfig", "BertLMHeadModel"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "phi": ("PhiConfig", "PhiForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "gptj": ("GPTJConfig", "GPTJForCausalLM"),
    "bloom": ("BloomConfig", "BloomForCausalLM"),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM"),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM"),
    "vit": ("ViTConfig", "ViTForImageClassification"),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification"),
    "deit": ("DeiTConfig", "DeiTForImageClassification"),
}
# What else a small model of the class needs: no dropout, and what its defaults tie to other sizes.
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gptj": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "rotary_dim": 4},
    "bert": {"is_decoder": True, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "opt": {"dropout": 0.0, "activation_dropout": 0.0},
    "phi": {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_dropout": 0.0},
    "bloom": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "starcoder2": {"embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.0},
    "vit": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "dinov2": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "deit": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt_neox": {"hidden_dropout": 0.0, "attention_dropout": 0.0, "rotary_pct": 0.5},
    "stablelm": {"attention_dropout": 0.0, "partial_rotary_factor": 0.5},
}
GROUPED = ("llama", "qwen3", "gemma2", "olmo2", "mistral", "starcoder2", "stablelm")
HIDDEN = {
    "opt": "ffn_dim",
    "gpt2": None,
    "gptj": None,
    "bloom": None,
    "dinov2": None,
}  # None: four times the width


def _hugging_face(shape: Shape, data: Data) -> nn.Module:
    import transformers

    family = shape["family"]
    wide, deep, heads = SIZES.get(family, ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    settings = {wide: shape["width"], deep: shape["depth"], heads: shape["heads"]} | SETTINGS.get(family, {})
    hidden = HIDDEN.get(family, "intermediate_size")
    if hidden is not None:
        settings[hidden] = 2 * shape["width"]
    if family in GROUPED:
        settings["num_key_value_heads"] = shape["heads"] // 2
    if family in ("qwen3", "gemma2"):
        settings["head_dim"] = shape["width"] // shape["heads"]
    if family == "gemma2":
        settings["query_pre_attn_scalar"] = shape["width"] // shape["heads"]
    if family == "opt":
        settings |= {"word_embed_proj_dim": shape["width"], "do_layer_norm_before": shape["norm"] == "pre"}
    if data.pooled:
        side, size = math.isqrt(data.tokens), math.isqrt(data.inputs)
        settings |= {
            "image_size": side * size,
            "patch_size": size,
            "num_channels": 1,
            "num_labels": data.outputs,
        }
    else:
        settings |= {"vocab_size": data.inputs, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
        settings["n_positions" if family in ("gpt2", "gptj") else "max_position_embeddings"] = 2 * data.tokens
    config, model = (getattr(transformers, name) for name in CLASSES[family])
    built = model(config(**settings))
    return Images(built) if data.pooled else Text(built)


FAMILIES: dict[str, Callable[[Shape, Data], nn.Module]] = {
    "hand": _hand,
    "torch": _torch,
    **dict.fromkeys(CLASSES, _hugging_face),
}
