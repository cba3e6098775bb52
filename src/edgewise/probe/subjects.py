"""What can be measured: a module as it is, or a factory or config that is initialised anew for every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from edgewise.adapters import presets
from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput

Factory = Callable[[], nn.Module]
# How a config without `architectures` becomes a class: the first of these that knows its model_type.
AUTO = (
    "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForImageClassification",
    "AutoModel",
)  # fmt: skip


def subject(source: Any) -> tuple[nn.Module | None, Factory | None, str]:
    """(module, None, name) for given weights, (None, factory, name) for what is initialised anew."""
    if isinstance(source, nn.Module):
        return unwrap(source), None, type(unwrap(source)).__name__
    if is_config(source):
        config = as_config(source)
        name = config["model_type"] if isinstance(config, Mapping) else config.model_type
        return None, lambda: build(config), name
    if callable(source):
        return None, lambda: _made(source), getattr(source, "__name__", type(source).__name__)
    raise BadInput(
        f"cannot measure a {type(source).__name__}. Give a module, a function that makes one, a Hugging Face config "
        "(object or dict), or a preset name."
    )


def is_config(source: Any) -> bool:
    return isinstance(source, (str, Mapping)) or (hasattr(source, "to_dict") and hasattr(source, "model_type"))


def _made(factory: Callable[[], Any]) -> nn.Module:
    model = factory()
    if not isinstance(model, nn.Module):
        raise BadInput(f"the factory returned a {type(model).__name__}; expected a torch.nn.Module.")
    return unwrap(model)


def as_config(source: Any) -> Any:
    """A config object of transformers (or torch's own encoder's sizes as a dict) from a preset name or a dict."""
    if isinstance(source, str):
        if source not in presets.names():
            raise BadInput(f"{source!r} is no preset. Presets: {', '.join(presets.names())}.")
        source = presets.config(source)
    if not isinstance(source, Mapping) or source.get("model_type") == "torch_encoder":
        return source
    if "model_type" not in source:
        raise BadInput("a config needs model_type to be built, for example 'llama'. A dict of knobs has no module.")
    values = dict(source)
    try:
        return transformers().AutoConfig.for_model(values.pop("model_type"), **values)
    except ValueError as error:
        raise BadInput(f"transformers does not build this config: {shortened(error)}") from error


def shortened(error: Exception, longest: int = 300) -> str:
    """An error of another library on one line; some list every model they know."""
    text = " ".join(str(error).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def transformers() -> Any:
    """The optional library, imported when a config is to become a module and never before."""
    try:
        import transformers as library
    except ImportError as error:
        raise BadInput(
            "building a model from a config needs the library transformers, which is not installed. "
            "Install edgewise[hf], or give a module or a factory."
        ) from error
    return library


def build(config: Any) -> nn.Module:
    """The module of a config with its own initialization, in float32 unless the config says otherwise."""
    if isinstance(config, Mapping):
        return _torch_encoder(config)
    model: nn.Module = model_class(config)(config)
    return model


def model_class(config: Any) -> Any:
    """The class a config names, or the first automatic class that knows its type."""
    library = transformers()
    for name in getattr(config, "architectures", None) or ():
        if hasattr(library, name):
            return getattr(library, name)
    for auto in AUTO:
        mapping = getattr(library, auto)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, (tuple, list)) else found
    raise BadInput(f"transformers has no model for {type(config).__name__}. Give a factory.")


def _torch_encoder(config: Mapping[str, Any]) -> nn.Module:
    """torch.nn.TransformerEncoder as its documentation builds it: copies of one layer, identical at the start."""
    layer = nn.TransformerEncoderLayer(
        config["d_model"], config["nhead"], config.get("dim_feedforward", 2048), batch_first=True,
        activation=config.get("activation", "relu"), norm_first=config.get("norm_first", False),
    )  # fmt: skip
    return nn.TransformerEncoder(layer, config["num_layers"], enable_nested_tensor=False)


def seeded(factory: Factory, seed: int) -> nn.Module:
    """A new initialization; the caller protects the global streams."""
    torch.manual_seed(seed)
    return factory()
