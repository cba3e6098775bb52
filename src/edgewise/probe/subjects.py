"""What is measured of a source: a module with its weights, or a factory that redraws them for every seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.small.small_model import named_classes, refuse_counts, refuse_kernel
from edgewise.models.source import PICKLES, pickle_refused, read_source
from edgewise.models.unwrap import unwrap
from edgewise.nouns.architecture import Architecture, Perceptron

OTHER_WEIGHTS = (".h5", ".msgpack", ".gguf", ".onnx")
Factory = Callable[[], nn.Module]
VOCABULARY = 1024  # of a network built from knobs, which do not say how many tokens there are to choose from
# How a config without `architectures` becomes a class: the first of these that knows its model_type.
AUTO = (
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


@dataclass(frozen=True)
class Measurable:
    """A module with its weights, or a factory that draws new ones; a factory may come from a config."""

    name: str
    module: nn.Module | None = None
    factory: Factory | None = None
    config: Any = None  # an object of transformers: its blocks can be streamed one at a time


def subject(source: object) -> Measurable:
    """The subject of a source, as `edgewise.models.source` lists them."""
    if isinstance(source, Measurable):
        return source
    content = read_source(source)
    if content.config is not None:
        config = as_config(content.config)
        values = content.config if isinstance(content.config, Mapping) else vars(content.config)
        refuse_counts(values)
        if content.folder is not None and any(
            path.is_file() for path in content.folder.glob("*.safetensors")
        ):
            model = unwrap(_load(content.folder, config))
            return Measurable(type(model).__name__, module=model)
        for path in sorted(content.folder.iterdir()) if content.folder is not None else ():
            if path.suffix.lower() in PICKLES:
                raise pickle_refused(path)
            if path.suffix.lower() in OTHER_WEIGHTS:
                raise BadInput(
                    f"{path.name} holds weights in a form that is not read here. Convert them to safetensors, or give "
                    "the file config.json itself: then new ones are drawn."
                )
        if isinstance(config, Mapping):
            return Measurable(config["model_type"], factory=lambda: build(config))
        return Measurable(config.model_type, factory=lambda: build(config), config=config)
    if content.description is not None:
        return _of_knobs(content.description)
    if content.factory is not None:
        factory = content.factory
        return Measurable(content.name, factory=lambda: _call(factory))
    assert content.model is not None
    return Measurable(type(unwrap(content.model)).__name__, module=unwrap(content.model))


def _of_knobs(description: Architecture | Perceptron) -> Measurable:
    """A network of edgewise's own, built from the description."""
    from edgewise.nets.build import build as build_network

    if isinstance(description, Perceptron):
        raise BadInput(
            "a perceptron has no tokens to measure. Predict it, or build an edgewise.nets.RandomPerceptron."
        )
    size = max(VOCABULARY, description.tokens)
    name = description.name or "transformer"
    return Measurable(name, factory=lambda: build_network(description, inputs=size, outputs=size))


def _call(factory: Callable[[], object]) -> nn.Module:
    model = factory()
    if not isinstance(model, nn.Module):
        raise BadInput(f"the function must return a torch.nn.Module, got a {type(model).__name__}.")
    return unwrap(model)


def as_config(config: Any) -> Any:
    """A config object of transformers from a dict; the sizes of torch's own encoder stay a dict."""
    if not isinstance(config, Mapping) or config.get("model_type") == "torch_encoder":
        return config
    refuse_kernel(config)
    refuse_counts(config)
    values = dict(config)
    library = transformers()
    with _told("transformers cannot build this config"):
        return library.AutoConfig.for_model(values.pop("model_type"), **values)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in a sentence what another library raises on a config or a checkpoint: it has an error for each mistake."""
    try:
        yield
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        raise BadInput(f"{what}: {on_one_line(error)}") from error


def on_one_line(error: Exception, longest: int = 300) -> str:
    """An error of another library, by its kind if it is not one of values; some list every model they know."""
    kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
    text = kind + " ".join(str(error).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def transformers() -> Any:
    """The optional library, imported when a config is to become a module and never before."""
    try:
        import transformers as library
    except ImportError as error:
        raise BadInput(
            "building a model from a config needs the library transformers, which is not installed. "
            "Install edgewise[hf], or give a module or a function that returns one."
        ) from error
    return library


def build(config: object) -> nn.Module:
    """The module of a config with its own initialization, in float32 unless the config says otherwise."""
    if isinstance(config, Mapping):
        with _told("torch cannot build this encoder"):
            layer = nn.TransformerEncoderLayer(
                config["d_model"],
                config["nhead"],
                config.get("dim_feedforward", 2048),
                batch_first=True,
                activation=config.get("activation", "relu"),
                norm_first=config.get("norm_first", False),
            )
            return nn.TransformerEncoder(layer, config["num_layers"], enable_nested_tensor=False)
    kind = model_class(config)
    with _told(f"{kind.__name__} cannot be built from this config"):
        model: nn.Module = kind(config)
    return model


def model_class(config: object) -> Any:
    """The class a config names, or the first automatic class that knows its type."""
    library = transformers()
    for kind in named_classes(config):
        return kind
    for auto in AUTO:
        mapping = getattr(library, auto)._model_mapping
        if type(config) in mapping:
            classes = mapping[type(config)]
            return classes[0] if isinstance(classes, (tuple, list)) else classes
    raise BadInput(
        f"transformers has no model for {type(config).__name__}. Give a function that returns one."
    )


def _load(folder: Path, config: object) -> nn.Module:
    """Load all weights from the files; raise if one is missing, since transformers would draw it silently."""
    transformers().utils.logging.disable_progress_bar()  # bars are ours to draw, and only for a terminal
    options = {
        "use_safetensors": True,
        "local_files_only": True,
        "output_loading_info": True,
        "trust_remote_code": False,
        # without one, some versions run custom_generate/generate.py of the folder
        "generation_config": transformers().GenerationConfig(),
    }
    with _told(f"the checkpoint in {folder} cannot be loaded"):
        model, info = model_class(config).from_pretrained(folder, **options)
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadInput(
            f"the checkpoint in {folder} has no weights for {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}. Expected all of {type(model).__name__}: "
            "name the class it was saved from as `architectures` in config.json."
        )
    loaded: nn.Module = model
    return loaded


def seeded(factory: Factory, seed: int) -> nn.Module:
    """A new initialization; the caller protects the global streams."""
    torch.manual_seed(seed)
    return factory()
