"""Small models of every type of transformers, with the initialization of their class."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import nn

from .shrink import shrink
from .torchvision_ops import declare

# What the rules of `shrink` cannot know. Multipliers that a published model sets and its class leaves at 1, indices of
# layers that must lie within four, and sizes under names of their own.
THREE_AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}}
HYBRID = ["conv", "conv", "full_attention", "conv"]
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "colqwen2": {"vlm_config": {"text_config": THREE_AXES}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "esm": {"vocab_size": 512, "pad_token_id": 1, "mask_token_id": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "granite": {"residual_multiplier": 0.22},
    "granite_swa": {"residual_multiplier": 0.22},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64, "num_experts": 4, "moe_topk": 2},
    "idefics": {"cross_layer_interval": 2},
    "informer": {"prediction_length": 8, "context_length": 32},
    "autoformer": {"prediction_length": 8, "context_length": 32},
    "time_series_transformer": {"prediction_length": 8, "context_length": 32},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "led": {
        "attention_window": 16,
        "max_encoder_position_embeddings": 512,
        "max_decoder_position_embeddings": 512,
    },
    "lfm2": {"layer_types": HYBRID},
    "lfm2_moe": {"layer_types": HYBRID, "num_dense_layers": 1},
    "lilt": {"hidden_size": 384},
    "longformer": {"attention_window": 16},
    "luke": {"entity_vocab_size": 512},
    "mamba2": {"num_heads": 8, "head_dim": 64, "expand": 2},
    "ministral": {"head_dim": 64},
    "minimax": {"full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 3.5, "mlp_alpha_factor": 3.5},
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
    "nemotron": {"head_dim": 64, "num_key_value_heads": 2},
    "paddleocr_vl": {"text_config": THREE_AXES},
    "qwen2_5_omni_thinker": {"text_config": THREE_AXES},
    "qwen2_5_vl": {"text_config": THREE_AXES},
    "qwen2_5_vl_text": THREE_AXES,
    "qwen2_vl": {"text_config": THREE_AXES},
    "qwen2_vl_text": THREE_AXES,
}


@cache
def preload() -> None:
    """Import in this process what the processes of all cases need, so that it is imported once."""
    declare()
    import transformers

    transformers.logging.set_verbosity_error()
    for name in ("llama", "clip", "t5", "llava"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def build(row: dict[str, str]) -> nn.Module:
    """The model of one row of types.json, in evaluation mode; the error of the first try if none builds."""
    preload()
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class, config_class = getattr(transformers, row["class"]), CONFIG_MAPPING[row["type"]]
    errors = []
    for caution in (0, 1, 2):
        try:
            return _made(model_class, shrink(config_class, caution, SETTINGS.get(row["type"])))
        except Exception as error:  # noqa: BLE001  a stranger's constructor may raise anything
            errors.append(error)
    raise errors[0]


def _made(model_class: Any, config: Any) -> nn.Module:
    part = getattr(model_class, "config_class", None)
    if part is not None and not isinstance(config, part):  # a class of one part, such as the text model
        config = next(p for p in vars(config).values() if isinstance(p, part))
    torch.manual_seed(0)
    model: nn.Module = model_class(config)
    return model.eval()
