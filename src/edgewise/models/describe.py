"""describe(source): any source becomes an Architecture (or a Perceptron), once, at the entrance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput
from edgewise.models.config.translate import has_family, translate
from edgewise.models.source import read_source
from edgewise.nouns.architecture import PERCEPTRON_KNOBS, Architecture, Perceptron
from edgewise.nouns.knobs import KNOBS, refuse_unknown

if TYPE_CHECKING:
    from torch import nn

Description = Architecture | Perceptron


def describe(
    source: Any,
    batch: Any = None,
    *,
    depth: int | None = None,
    tokens: int | None = None,
    stack: str | None = None,
    **knobs: Any,
) -> Description:
    """Return the description of a source: a preset name, a config, knobs, a file, a folder, a function, a model.

    source  see `edgewise.models.source`, whose list holds for every verb; an Architecture passes unchanged
    batch   for a model: what it is read on, (a cut of) whatever it accepts; default: made from its own signature
    depth   number of blocks instead of the source's. A config is changed before it is translated, so that what its
            family derives from the depth follows (GPT-2 scales its output matrices by 1/sqrt(2 depth))
    tokens  sequence length instead of the source's
    stack   which stack of a model or config with several (see `edgewise.models.stacks`); default: the language stack
    knobs   other knobs that are changed, as in `transformer`; the name of the description then says so

    >>> describe("gpt2", depth=48, norm="post").name
    'gpt2 with norm=post'
    """
    description = _describe(source, batch, depth, tokens, stack)
    return change_knobs(description, knobs) if knobs else description


def change_knobs(description: Description, knobs: Mapping[str, Any]) -> Description:
    """Return the description with other knobs, and a name that says so: a verdict must not blame the original."""
    if isinstance(description, Architecture):
        refuse_unknown(knobs, KNOBS, "knob")
        name = description.name or "this network"
    else:
        refuse_unknown(knobs, PERCEPTRON_KNOBS, "knob of a perceptron")
        name = description.name or f"mlp:{description.to_dict()['activation']}"
    return description.replace(**knobs, name=f"{name} with {knobs_text(knobs)}")


def knobs_text(knobs: Mapping[str, Any], longest: int = 3) -> str:
    """Return knobs as they are shown beside a name, long lists of them cut.

    >>> knobs_text({"norm": "post", "rope": True})
    'norm=post, rope=true'
    """
    texts = {k: v if isinstance(v, str) else json.dumps(v, default=_name) for k, v in knobs.items()}
    shown = [f"{name}={text}" for name, text in texts.items()]
    more = len(shown) - longest
    return ", ".join(shown[:longest]) + (f" and {more} more" if more > 0 else "")


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__name__))


def _describe(
    source: Any, batch: Any, depth: int | None, tokens: int | None, stack: str | None
) -> Description:
    depth, tokens = _count("depth", depth), _count("tokens", tokens)
    if isinstance(source, (Architecture, Perceptron)):
        _refuse_without_model(source.name, batch, stack)
        return _override(source, depth, tokens)
    content = read_source(source)
    if content.model is None and content.factory is None:
        _refuse_without_model(content.name, batch, stack if content.config is None else None)
    if content.description is not None:
        return _override(content.description, depth, tokens)
    if content.config is not None:
        architecture = _from_config(_as_mapping(content.config), depth, tokens, stack, content.name)
        return (
            replace(architecture, assumed=(*architecture.assumed, *content.notes))
            if content.notes
            else architecture
        )
    from edgewise.models.module_description import describe_module

    model = content.model if content.model is not None else first_model(content.factory)
    return describe_module(model, batch, depth=depth, tokens=tokens, stack=stack)


def _from_config(
    config: Mapping[str, Any], depth: int | None, tokens: int | None, stack: str | None, name: str
) -> Architecture:
    """By the hand-written family; a config of another class, or a stack by its name, by building small models."""
    if stack is None and has_family(config):
        return translate(config, depth=depth, tokens=tokens, name=name)
    from edgewise.models.small.read_small import describe_config

    return describe_config(config, depth=depth, tokens=tokens, stack=stack, name=name)


def _refuse_without_model(name: str, batch: Any, stack: str | None) -> None:
    for word, value in (("batch", batch), ("stack", stack)):
        if value is not None:
            raise BadInput(
                f"{word} is for a model, and {name} has no modules yet. Build it, or leave {word} out."
            )


def _count(name: str, value: Any) -> int | None:
    return None if value is None else KNOBS[name].check(value, 1)


def _override(description: Description, depth: int | None, tokens: int | None) -> Description:
    changes = {name: value for name, value in (("depth", depth), ("tokens", tokens)) if value is not None}
    if tokens is not None and isinstance(description, Perceptron):
        raise BadInput(f"a perceptron has no tokens, got tokens = {tokens}. Leave tokens out.")
    return description.replace(**changes) if changes else description


def _as_mapping(config: Any) -> Mapping[str, Any]:
    """A config object of transformers, noticed by its shape and not by its import."""
    return config if isinstance(config, Mapping) else {"model_type": config.model_type, **config.to_dict()}


def first_model(factory: Callable[[], Any] | None) -> nn.Module:
    """The model of seed 0, as measure draws it first; torch's global stream continues as if nothing had been drawn."""
    import torch

    from edgewise.models.state import random_streams

    assert factory is not None
    with random_streams():
        torch.manual_seed(0)
        model = factory()
    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the function must return a torch.nn.Module, got a {type(model).__name__}.")
    return model
