"""Small models of every family, built from their configs with random weights: nothing is downloaded.

FAMILIES["llama"]()      a model in eval mode, the same weights every time
batch("llama")           keyword arguments it accepts, labels included, so that it has a loss
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="models of Hugging Face need the extra `hf`")

VOCABULARY, TOKENS, SEQUENCES = 96, 12, 2
DEPTH, WIDTH, HEADS, KV_HEADS, HIDDEN = 3, 48, 4, 2, 80
TEXT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = TEXT | {"intermediate_size": HIDDEN, "max_position_embeddings": 64}
GROUPED = PLAIN | {"num_key_value_heads": KV_HEADS}
IMAGE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "image_size": 16,
    "patch_size": 4,
}
EXPERTS = {"num_experts_per_tok": 2}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "n_embd": WIDTH,
            "n_layer": DEPTH,
            "n_head": HEADS,
            "vocab_size": VOCABULARY,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", GROUPED | {"head_dim": 16}),
    "mistral": ("MistralConfig", "MistralForCausalLM", GROUPED | {"sliding_window": 8}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        GROUPED | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        GROUPED | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", GROUPED),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", GROUPED),
    "pythia": ("GPTNeoXConfig", "GPTNeoXForCausalLM", PLAIN),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", GROUPED),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", GROUPED | EXPERTS | {"num_local_experts": 4}),
    "qwen3moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        GROUPED
        | EXPERTS
        | {"num_experts": 4, "moe_intermediate_size": 20, "head_dim": 16, "mlp_only_layers": [1]},
    ),
    "deepseek3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        PLAIN
        | EXPERTS
        | {
            "num_key_value_heads": HEADS,
            "moe_intermediate_size": 20,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "first_k_dense_replace": 1,
        },
    ),
    "bert": ("BertConfig", "BertForMaskedLM", PLAIN),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", PLAIN),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", PLAIN | {"local_attention": 8}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": WIDTH,
            "num_layers": DEPTH,
            "num_decoder_layers": DEPTH - 1,
            "num_heads": HEADS,
            "d_kv": 16,
            "d_ff": HIDDEN,
            "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", IMAGE | {"intermediate_size": HIDDEN}),
    "deit": ("DeiTConfig", "DeiTForImageClassification", IMAGE | {"intermediate_size": HIDDEN}),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", IMAGE),
    "falcon": ("FalconConfig", "FalconForCausalLM", TEXT),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        TEXT | {"ffn_dim": HIDDEN, "max_position_embeddings": 64, "word_embed_proj_dim": WIDTH},
    ),
    "gptoss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        GROUPED | EXPERTS | {"num_local_experts": 4, "head_dim": 16, "sliding_window": 8},
    ),
}


def build(name: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A family's model in eval mode; `changes` go into its config; the caller's random stream is kept."""
    config_class, model_class, sizes = CONFIGS[name]
    config = getattr(transformers, config_class)(**(sizes | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return getattr(transformers, model_class)(config).eval()


def _factory(name: str) -> Callable[[], nn.Module]:
    return lambda: build(name)


FAMILIES: dict[str, Callable[[], nn.Module]] = {name: _factory(name) for name in CONFIGS}


def batch(name: str, seed: int = 0) -> dict[str, Tensor]:
    """Keyword arguments for one forward pass with a loss: SEQUENCES x TOKENS ids, or as many images."""
    generator = torch.Generator().manual_seed(seed)
    if "image_size" in CONFIGS[name][2]:
        side = IMAGE["image_size"]
        pixels = torch.randn(SEQUENCES, 3, side, side, generator=generator)
        return {"pixel_values": pixels, "labels": torch.arange(SEQUENCES) % 2}
    ids = torch.randint(3, VOCABULARY, (SEQUENCES, TOKENS), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}
