"""Types of transformers that the earlier lists do not have; truths with file and line."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ..truth import TOKENS, WORDS, Truth, ids, image
from .entry import LLAMA, entry

NO_WORDS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SMALL: dict[str, Any] = {**NO_WORDS, "vocab_size": WORDS}
FOUR: dict[str, Any] = {**SMALL, "num_hidden_layers": 4, "num_key_value_heads": 2, "pad_token_id": 0}


def hf(name, kind, *truths, batch=None, **settings):
    def make():
        maker = getattr(importlib.import_module("transformers"), kind)
        return maker(maker.config_class(**settings)).train()

    feed = batch or (lambda: {"input_ids": ids(), "use_cache": False})
    entry(name, *truths, batch=feed, origin="transformers", package="transformers")(make)


def only_ids():
    return {"input_ids": ids()}


# modeling_roformer.py 258, 319: norm of the sum; 427: sines for the turn of queries and keys
hf(
    "roformer",
    "RoFormerModel",
    Truth(3, sees="full", norm="post", positions="rotary", absolute=False),
    batch=only_ids,
    **SMALL,
    embedding_size=32,
    max_position_embeddings=32,
)
# modeling_biogpt.py 277-300: pre-norm; 329: words times the root of the width
hf("biogpt", "BioGptModel", Truth(3), **SMALL, max_position_embeddings=32)
# modeling_xglm.py 304-339: pre-norm; 462: sines added
hf(
    "xglm",
    "XGLMModel",
    Truth(3),
    vocab_size=WORDS,
    max_position_embeddings=32,
    d_model=32,
    ffn_dim=64,
    num_layers=3,
    attention_heads=4,
)
# modeling_squeezebert.py 121-138: convolutions of width one, channels first, norm of the sum
hf(
    "squeezebert",
    "SqueezeBertModel",
    Truth(3, sees="full", norm="post"),
    batch=only_ids,
    **SMALL,
    embedding_size=32,
    max_position_embeddings=32,
    q_groups=2,
    k_groups=2,
    v_groups=2,
    post_attention_groups=1,
    intermediate_groups=2,
    output_groups=2,
)
# modeling_convbert.py: half of the heads are convolutions whose filters are made from the tokens, beside attention
hf(
    "convbert",
    "ConvBertModel",
    Truth(
        3,
        heads=2,
        sees="full",
        norm="post",
        attention_branch=None,
        reason=("convol", "mixer", "branches", "inside", "without", "mix"),
    ),
    batch=only_ids,
    **SMALL,
    embedding_size=32,
    max_position_embeddings=32,
    head_ratio=2,
    conv_kernel_size=3,
)
# modeling_mobilebert.py: a narrow stream inside each layer, four feed-forwards, norms that only scale and shift
hf(
    "mobilebert",
    "MobileBertModel",
    Truth(
        3,
        sees="full",
        norm=None,
        norm_kind=None,
        activation="relu",
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("norm", "branches", "more than", "inside", "residual", "width", "narrow", "differ"),
    ),
    batch=only_ids,
    **SMALL,
    embedding_size=16,
    max_position_embeddings=32,
    intra_bottleneck_size=16,
    trigram_input=False,
    num_feedforward_networks=2,
)
# modeling_longformer.py: windows by chunks that overlap, two tokens to each side; softmax over the places of a window
hf(
    "longformer",
    "LongformerModel",
    Truth(
        3,
        sees=None,
        norm="post",
        reason=("window", "sees", "mask", "chosen", "local", "softmax", "keys", "neighbor"),
    ),
    batch=lambda: {"input_ids": ids() % 50 + 4},
    **SMALL,
    max_position_embeddings=40,
    attention_window=[4, 4, 4],
)
# modeling_visual_bert.py: words and regions of a picture in one row, norm of the sum
hf(
    "visualbert",
    "VisualBertModel",
    Truth(3, sees="full", norm="post"),
    batch=lambda: {"input_ids": ids(), "visual_embeds": torch.randn(2, 6, 12)},
    **SMALL,
    max_position_embeddings=32,
    visual_embedding_dim=12,
)
# modeling_siglip.py, SiglipEncoderLayer: pre-norm; the text sees both ways
hf(
    "siglip, two towers",
    "SiglipModel",
    Truth(2, sees="full"),
    Truth(3, sees="full"),
    batch=lambda: {"input_ids": ids(), "pixel_values": image()},
    text_config={
        **SMALL,
        "num_hidden_layers": 2,
        "max_position_embeddings": TOKENS,
        "projection_size": 32,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    vision_config={**NO_WORDS, "image_size": 32, "patch_size": 8},
)
# modeling_ijepa.py, IJepaLayer: pre-norm
hf(
    "i-jepa",
    "IJepaModel",
    Truth(3, sees="full"),
    batch=lambda: {"pixel_values": image()},
    **NO_WORDS,
    image_size=32,
    patch_size=8,
)
# modeling_dinov3_vit.py, DINOv3ViTLayer: pre-norm, layer scales of one; turned along two axes, but not the prefix
hf(
    "dinov3",
    "DINOv3ViTModel",
    Truth(3, sees="full", positions=None, absolute=False, reason=("position", "rotary", "axes", "turn")),
    batch=lambda: {"pixel_values": image()},
    **NO_WORDS,
    image_size=32,
    patch_size=8,
    num_register_tokens=2,
    pos_embed_rescale=None,
)
# modeling_audio_spectrogram_transformer.py, ASTLayer: pre-norm
hf(
    "audio spectrogram transformer",
    "ASTModel",
    Truth(3, sees="full"),
    batch=lambda: {"input_values": torch.randn(2, 32, 16)},
    **NO_WORDS,
    patch_size=8,
    frequency_stride=8,
    time_stride=8,
    max_length=32,
    num_mel_bins=16,
)
# modeling_wavlm.py 325-339: norm of the sum; a bias by distance made in the first layer, gated by the tokens in each
hf(
    "wavlm",
    "WavLMModel",
    Truth(
        3,
        sees="full",
        norm="post",
        positions=None,
        absolute=None,
        reason=("position", "bias", "gate", "input", "convol"),
    ),
    batch=lambda: {"input_values": torch.randn(2, 640)},
    **NO_WORDS,
    conv_dim=(16, 16),
    conv_kernel=(10, 4),
    conv_stride=(5, 4),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    layerdrop=0.0,
    apply_spec_augment=False,
)
# modeling_moonshine.py: pre-norm without biases, rotary in both stacks; gates in the decoder only
hf(
    "moonshine",
    "MoonshineModel",
    Truth(2, sees="full", positions="rotary", absolute=None),
    Truth(3, gated=True, activation="silu", positions="rotary", absolute=False, reason=("cross",)),
    batch=lambda: {"input_values": torch.randn(2, 6000), "decoder_input_ids": ids(), "use_cache": False},
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=64,
    encoder_num_hidden_layers=2,
    decoder_num_hidden_layers=3,
    encoder_num_attention_heads=4,
    decoder_num_attention_heads=4,
    partial_rotary_factor=1.0,
)


def trajectory():
    return {
        "states": torch.randn(2, 5, 6),
        "actions": torch.randn(2, 5, 3),
        "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, -1),
        "attention_mask": torch.ones(2, 5, dtype=torch.long),
    }


# modeling_decision_transformer.py 271-306: pre-norm, matrices (in, out); a step's vector is added to three tokens
hf(
    "decision transformer",
    "DecisionTransformerModel",
    Truth(3, activation="relu", absolute=None),
    batch=trajectory,
    state_dim=6,
    act_dim=3,
    hidden_size=32,
    n_layer=3,
    n_head=4,
    n_inner=64,
    n_positions=64,
    max_ep_len=16,
    vocab_size=1,
)
# modeling_nanochat.py 266-: pre-norm, RMS norms without gains; 222-226: turned, then normed; squared relu
hf(
    "nanochat",
    "NanoChatModel",
    Truth(4, kv_heads=2, qk_norm=True, norm_kind="rms", activation=None, positions="rotary", absolute=False),
    **FOUR,
    max_position_embeddings=32,
)
# modeling_olmoe.py 373-391: pre-norm; 238: norms of queries and keys over all heads together
hf(
    "olmoe",
    "OlmoeModel",
    Truth(
        4,
        **{**LLAMA, "gated": None, "activation": None},
        mlp_branch=None,
        kv_heads=2,
        qk_norm=True,
        reason=("expert", "route", "input", "chosen"),
    ),
    **FOUR,
    num_experts=4,
    num_experts_per_tok=2,
)
# modeling_bitnet.py 76, 215: a norm before the last matrix of each branch, besides the norm at its entrance
hf(
    "bitnet",
    "BitNetModel",
    Truth(4, **{**LLAMA, "activation": None}, kv_heads=2, reason=("norm", "inside")),
    **FOUR,
)
# modeling_cohere2.py, Cohere2DecoderLayer: both branches from one norm; 221: turned in the layers with a window only
hf(
    "cohere 2",
    "Cohere2Model",
    Truth(
        4,
        sees=("causal window", "causal window", "causal window", "causal"),
        window=5,
        kv_heads=2,
        parallel=True,
        gated=True,
        activation="silu",
        positions=None,
        absolute=False,
        reason=("differ", "window", "position", "rotary"),
    ),
    **FOUR,
    sliding_window=5,
)
# modeling_exaone4.py, Exaone4DecoderLayer: norms behind the branches only; 228: queries and keys normed, then turned
hf(
    "exaone 4, no windows",
    "Exaone4Model",
    Truth(4, **LLAMA, norm="branch", kv_heads=2, qk_norm=True),
    **FOUR,
    sliding_window=None,
    sliding_window_pattern=None,
    layer_types=["full_attention"] * 4,
)
# modeling_phi3.py: one matrix for queries, keys and values, one for gate and values; pre-norm
hf("phi 3", "Phi3Model", Truth(4, **LLAMA, kv_heads=2), **FOUR, max_position_embeddings=32)
# modeling_starcoder2.py: pre-norm, an ordinary feed-forward with tanh gelu, rotary
hf(
    "starcoder 2, window of five",
    "Starcoder2Model",
    Truth(4, sees="causal window", window=5, kv_heads=2, positions="rotary", absolute=False),
    **FOUR,
    sliding_window=5,
)
