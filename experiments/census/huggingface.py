"""Small models of every type of transformers, with the initialization of their class."""

from __future__ import annotations

from typing import Any

from torch import nn

from .shrink import shrink
from .torchvision_ops import declare

# What the rules of `shrink` cannot know. Multipliers that a published model sets and its class leaves at 1, indices of
# layers that must lie within four, and sizes under names of their own.
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "granite": {"residual_multiplier": 0.22},
    "granite_swa": {"residual_multiplier": 0.22},
    "idefics": {"cross_layer_interval": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "led": {"attention_window": 16, "max_encoder_position_embeddings": 512, "max_decoder_position_embeddings": 512},
    "longformer": {"attention_window": 16},
    "minimax": {"full_attn_alpha_factor": 3.5, "linear_attn_alpha_factor": 3.5, "mlp_alpha_factor": 3.5},
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
}


def build(row: dict[str, str]) -> nn.Module:
    """The model of one row of types.json, in evaluation mode; the error of the most cautious try if none builds."""
    declare()
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    model_class, config_class = getattr(transformers, row["class"]), CONFIG_MAPPING[row["type"]]
    for caution in (0, 1, 2):
        try:
            return _made(model_class, shrink(config_class, caution, SETTINGS.get(row["type"])))
        except Exception:  # noqa: BLE001  a stranger's constructor may raise anything; the last error is told
            if caution == 2:
                raise
    raise AssertionError("the last try returned or raised")


def _made(model_class: Any, config: Any) -> nn.Module:
    part = getattr(model_class, "config_class", None)
    if part is not None and not isinstance(config, part):  # a class of one part, such as the text model
        config = next(p for p in vars(config).values() if isinstance(p, part))
    model: nn.Module = model_class(config)
    return model.eval()
