"""The models of x-transformers: each of its options and wrappers once, with what its arguments say is true."""

from __future__ import annotations

from typing import Any

from .foreign import HEADS, IMAGE, LAYERS, PATCH, VOCABULARY, WIDTH, Foreign, Part
from .handwritten import PLAIN

WRAPPER = "x_transformers.TransformerWrapper"


def layers(kind: str, **options: Any) -> Part:
    sizes = {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "attn_dim_head": WIDTH // HEADS, "verbose": False}
    return Part(f"x_transformers.{kind}", {**sizes, **options})


def wrapped(kind: str, **options: Any) -> dict[str, Any]:
    return {"num_tokens": VOCABULARY, "max_seq_len": 64, "attn_layers": layers(kind, **options)}


def text(kind: str, facts: dict[str, Any] | None = None, **options: Any) -> Foreign:
    """A language model around a stack; without facts it is a plain pre-norm transformer with learned positions."""
    label = {**PLAIN, "causal": kind == "Decoder", **(facts or {})}
    return Foreign(WRAPPER, wrapped(kind, **options), "ids", label)


MODELS = {
    "decoder": text("Decoder"),
    "encoder": text("Encoder"),
    "decoder, rotary": text("Decoder", {"positions": "rotary"}, rotary_pos_emb=True),
    "decoder, xpos": text("Decoder", {"positions": "rotary"}, rotary_xpos=True),
    "decoder, ALiBi": text("Decoder", {"positions": "alibi"}, alibi_pos_bias=True, disable_abs_pos_emb=True),
    "decoder, relative bias": text("Decoder", {"positions": "relative"}, rel_pos_bias=True),
    "encoder, dynamic bias": text("Encoder", {"positions": None}, dynamic_pos_bias=True),
    "encoder, polar positions": text("Encoder", {"positions": None}, polar_pos_emb=True),
    "decoder, qk-norm": text("Decoder", {"qk_norm": True}, attn_qk_norm=True),
    "decoder, gated": text("Decoder", {"gated": True}, ff_glu=True, ff_swish=True),
    "decoder, llama-like": text(
        "Decoder",
        {"positions": "rotary", "gated": True},
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        attn_kv_heads=2,
    ),
    "decoder, one key head": text("Decoder", attn_one_kv_head=True),
    "decoder, relu squared": text("Decoder", ff_relu_squared=True),
    "decoder, post-norm": text("Decoder", {"norm": "post"}, pre_norm=False),
    "decoder, sandwich norm": text("Decoder", {"norm": "sandwich"}, sandwich_norm=True),
    "decoder, scale norm": text("Decoder", use_scalenorm=True),
    "decoder, simple RMS norm": text("Decoder", use_simple_rmsnorm=True),
    "decoder, dynamic tanh": text("Decoder", {"norm": None}, use_dynamic_tanh=True),
    "decoder, derf": text("Decoder", {"norm": None}, use_derf=True),
    "decoder, macaron": text("Decoder", {"depth": None}, macaron=True),
    "decoder, sandwich order": text("Decoder", {"depth": None}, sandwich_coef=2),
    "decoder, attention only": text("Decoder", {"gated": None}, only_attn=True),
    "decoder, layer scale": text("Decoder", {"branch": None}, use_layerscale=True),
    "decoder, scaled residual": text("Decoder", {"skip": None, "branch": None}, scale_residual=True),
    "decoder, gated residual": text("Decoder", {"skip": None, "branch": None}, gate_residual=True),
    "decoder, orthogonal residual": text("Decoder", {"skip": None, "branch": None}, orthog_residual=True),
    "decoder, two streams": text("Decoder", {"skip": None, "branch": None}, num_residual_streams=2),
    "decoder, value residual": text("Decoder", add_value_residual=True),
    "decoder, residual attention": text("Decoder", residual_attn=True),
    "encoder, U-net skips": text("Encoder", {"skip": None}, unet_skips=True),
    "decoder, shared weights": text("Decoder", weight_tie_layers=True),
    "decoder, shifted tokens": text("Decoder", shift_tokens=1),
    "decoder, gated values": text("Decoder", attn_gate_values=True),
    "decoder, memory keys": text("Decoder", attn_num_mem_kv=4),
    "decoder, talking heads": text("Decoder", attn_pre_talking_heads=True),
    "decoder, silent start": text("Decoder", {"branch": 0.0}, zero_init_branch_output=True),
    "prefix decoder": text("PrefixDecoder", {"causal": True}),  # no prefix is given
    "flash decoder": text("Decoder", attn_flash=True),
    "vision": Foreign(
        "x_transformers.ViTransformerWrapper",
        {"image_size": IMAGE, "patch_size": PATCH, "num_classes": 10, "attn_layers": layers("Encoder")},
        "image",
        PLAIN,
    ),
    "continuous": Foreign(
        "x_transformers.ContinuousTransformerWrapper",
        {"dim_in": WIDTH, "dim_out": 10, "max_seq_len": 64, "attn_layers": layers("Encoder")},
        "stream",
        PLAIN,
    ),
    "encoder and decoder": Foreign(
        "x_transformers.XTransformer",
        {
            "dim": WIDTH,
            "enc_num_tokens": VOCABULARY,
            "enc_depth": LAYERS,
            "enc_heads": HEADS,
            "enc_max_seq_len": 64,
            "dec_num_tokens": VOCABULARY,
            "dec_depth": LAYERS,
            "dec_heads": HEADS,
            "dec_max_seq_len": 64,
        },
        "two ids",
        {**PLAIN, "name": "decoder.net.attn_layers.layers", "causal": True},
    ),
    "autoregressive wrapper": Foreign(
        "x_transformers.AutoregressiveWrapper",
        {"net": Part(WRAPPER, wrapped("Decoder"))},
        "ids",
        {**PLAIN, "causal": True},
    ),
    "several inputs": Foreign(
        "x_transformers.MultiInputTransformerWrapper",
        {
            "num_tokens": {"a": VOCABULARY, "b": VOCABULARY},
            "max_seq_len": 64,
            "attn_layers": layers("Encoder"),
        },
        "named ids",
        PLAIN,
    ),
    "numbers and ids": Foreign(
        "x_transformers.XValTransformerWrapper",
        {
            "num_tokens": VOCABULARY,
            "numerical_token_id": 3,
            "max_seq_len": 64,
            "attn_layers": layers("Decoder"),
        },
        "ids and numbers",
        {**PLAIN, "causal": True},
    ),
    "NeoMLP": Foreign(
        "x_transformers.NeoMLP",
        {"dim_in": 5, "dim_hidden": 20, "dim_out": 7, "dim_model": WIDTH, "depth": LAYERS},
        "numbers",
        {**PLAIN, "positions": None},
    ),
    "GPT with a latent": Foreign(
        "x_transformers.gpt_vae.GPTVAE",
        {
            "num_tokens": VOCABULARY,
            "dim": WIDTH,
            "depth": LAYERS,
            "enc_depth": LAYERS,
            "heads": HEADS,
            "max_seq_len": 64,
        },
        "ids",
        {**PLAIN, "name": "encoder.attn_layers.layers"},
    ),
    "free transformer": Foreign(
        "x_transformers.free_transformer.FreeTransformer",
        {
            "num_tokens": VOCABULARY,
            "dim": WIDTH,
            "dec_head_depth": LAYERS,
            "dec_tail_depth": LAYERS,
            "heads": HEADS,
            "max_seq_len": 64,
        },
        "ids",
    ),
    "continuous autoencoder": Foreign(
        "x_transformers.continuous_autoencoder.ContinuousTransformerAutoencoder",
        {"dim": WIDTH, "enc_depth": LAYERS, "dec_depth": LAYERS, "heads": HEADS, "max_seq_len": 64},
        "stream",
        {**PLAIN, "name": "encoder.attn_layers.layers"},
    ),
}
