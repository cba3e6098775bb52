"""A Hugging Face config (a dictionary) becomes an Architecture; transformers itself is never imported.

Gains follow from how transformers draws the weights of each family (checked against measured ones in
tests/models/measured_gains.json). A new family is one function `ConfigReader -> knobs` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgewise.models.config.families import decoders, encoders
from edgewise.models.config.reader import DEPTH_KEYS, ConfigReader
from edgewise.nouns.architecture import Architecture, transformer

if TYPE_CHECKING:
    from torch import nn

Family = Callable[[ConfigReader], dict[str, Any]]
FAMILIES: dict[str, Family] = {
    "gpt2": decoders.gpt2,
    "opt": decoders.opt,
    "gpt_neox": decoders.gpt_neox,
    "phi": decoders.phi,
    "falcon": decoders.falcon,
    "llama": decoders.llama,
    "mistral": decoders.mistral,
    "qwen2": decoders.qwen2,
    "qwen3": decoders.qwen3,
    "phi3": decoders.phi3,
    "olmo2": decoders.olmo2,
    "granite": decoders.granite,
    "gemma2": decoders.gemma2,
    "gemma3_text": decoders.gemma3,
    "gemma3": decoders.gemma3,
    "mixtral": decoders.mixtral,
    "qwen3_moe": decoders.qwen3_moe,
    "deepseek_v3": decoders.deepseek_v3,
    "gpt_oss": decoders.gpt_oss,
    "bert": encoders.bert,
    "roberta": encoders.bert,
    "modernbert": encoders.modernbert,
    "t5": encoders.t5,
    "torch_encoder": encoders.torch_encoder,
    "vit": encoders.vit,
    "deit": encoders.deit,
    "dinov2": encoders.dinov2,
}


def translate(
    config: Mapping[str, Any], *, depth: int | None = None, tokens: int | None = None, name: str = ""
) -> Architecture:
    """The Architecture of a config of a listed family; `depth` replaces the config's own before anything is derived."""
    values = _with_depth(_text_part(config), depth)
    reader = ConfigReader(values, tokens)
    knobs = FAMILIES[values["model_type"]](reader)
    if values is not config and "text_config" in config:
        reader.assume(f"only the text decoder of this {config['model_type']} config is described")
    return replace(
        transformer(**knobs),
        name=name or str(config.get("_name_or_path") or config["model_type"]),
        assumed=tuple(dict.fromkeys(reader.assumed)),
        unmodelled=tuple(dict.fromkeys(reader.unmodelled)),
    )


def has_family(config: Mapping[str, Any]) -> bool:
    """Tell if the config, or the text decoder's inside it, is of a hand-written family."""
    kind = _text_part(config).get("model_type")
    return isinstance(kind, str) and kind in FAMILIES


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Models of text and images keep the decoder's config inside their own."""
    inside = config.get("text_config")
    return {"model_type": config["model_type"], **inside} if isinstance(inside, Mapping) else config


def _with_depth(config: Mapping[str, Any], depth: int | None) -> Mapping[str, Any]:
    """The config at another depth; a list of layer types is dropped, so that the family's pattern continues."""
    if depth is None:
        return config
    rest = {key: value for key, value in config.items() if key not in (*DEPTH_KEYS, "layer_types")}
    return rest | {DEPTH_KEYS[0]: depth}


def config_of(model: nn.Module) -> dict[str, Any]:
    """The config of a Hugging Face model as a dictionary; empty if it has none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        return {}
    return {**config.to_dict(), "model_type": config.model_type}


def described_by_config(
    model: nn.Module, tokens: int | None = None, config: Mapping[str, Any] | None = None
) -> Architecture | None:
    """Describe the model by its own config, if its family is known, or return the description it was built from.

    config  what `config_of(model)` gives, if it is at hand
    """
    config, built_from = config_of(model) if config is None else config, getattr(model, "architecture", None)
    if isinstance(built_from, Architecture):
        return built_from if tokens is None else built_from.replace(tokens=tokens)
    return translate(config, tokens=tokens) if config.get("model_type") in FAMILIES else None
