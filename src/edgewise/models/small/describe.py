"""describe(config) of a class that no hand-written family covers: small models of it are built, read and scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.behavior.describe import describe_reading
from edgewise.models.behavior.record import Stack
from edgewise.models.config.reader import DENSE, SYMMETRIC, ConfigReader, assume_tokens
from edgewise.models.config.translate import FAMILIES
from edgewise.models.small.full_size import at_full_size
from edgewise.models.small.power_law import NoPowerLaw
from edgewise.models.small.read_small import SmallModels
from edgewise.models.small.rotation import with_rotation
from edgewise.models.small.sizes import CONTEXT, DEPTH, DROPPED
from edgewise.models.small.small_model import blueprint, refuse_kernel
from edgewise.nouns.architecture import Architecture
from edgewise.progress import ProgressBar

MORE_SEEDS = (1, 2, 3)


def describe_config(
    values: Mapping[str, Any],
    *,
    depth: int | None = None,
    tokens: int | None = None,
    stack: str | None = None,
    name: str = "",
) -> Architecture:
    """The Architecture of a config of transformers, read from small models of its class."""
    config = _with_depth(_config(values), depth)
    with ProgressBar(f"building small models of {values['model_type']}") as bar:
        plan = blueprint(config)
        small = SmallModels(plan, stack, bar)
        try:
            full, own = at_full_size(plan, small.builds)
        except NoPowerLaw:  # perhaps by chance: narrow matrices scatter
            small.draw_again(MORE_SEEDS)
            full, own = at_full_size(plan, small.builds)
    reading, first = small.reading, small.builds[0].stack
    reader = ConfigReader({**own.to_dict(), "model_type": own.model_type}, tokens)
    reading = replace(reading, stacks=tuple(full if s.name == full.name else s for s in reading.stacks))
    label = name or str(values["model_type"])
    description = with_rotation(describe_reading(reading, tokens=_tokens(reader, full), name=label), reader)
    reader.assume(
        f"read from {plan.model_class.__name__} with random weights as this config draws them, at width {first.width} "
        f"and {first.depth} layers, and scaled to width {full.width} and {full.depth} layers"
    )
    if own is not config and len(reading.stacks) == 1:
        reader.assume(f"only {full.name} of this {config.model_type} config is described")
    reader.assume(
        "embedding_norm: scaled by one power of the width; parts that grow differently are not told apart"
    )
    reader.assume(f"what the config leaves out is the default of {type(config).__name__}")
    return replace(description, assumed=(*description.assumed, *reader.assumed))


def _config(values: Mapping[str, Any]) -> Any:
    """The config object of the installed transformers; never a class from the Hub."""
    kind, rest = values["model_type"], {k: v for k, v in values.items() if k != "model_type"}
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise BadInput(
            f"model_type {kind!r} has no hand-written family, and to read a model of it transformers is needed, which "
            "is not installed: pip install 'edgewise[hf]'. Or describe it with flat knobs: transformer(depth=..., "
            "width=..., heads=..., norm=...)."
        ) from error
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise _unknown(kind, values, list(CONFIG_MAPPING.keys()))
    refuse_kernel(values)
    try:
        return CONFIG_MAPPING[kind].from_dict(rest)
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(f"transformers does not take this {kind} config: {message}") from error


def _unknown(kind: Any, values: Mapping[str, Any], types: list[str]) -> BadInput:
    if values.get("auto_map"):
        return BadInput(
            f"model_type {kind!r} is not one of the installed transformers: its code comes from the Hub (auto_map), "
            "and such code is not run here. Build the model yourself and describe that: describe(model)."
        )
    near = get_close_matches(str(kind), [*FAMILIES, *types], n=3)
    hint = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return BadInput(
        f"model_type {kind!r} is neither a family written out here ({', '.join(sorted(FAMILIES))}) nor one of the "
        f"installed transformers.{hint} Describe it with flat knobs instead: transformer(depth=..., width=..., "
        "heads=..., norm=...), or the same keys in a JSON or YAML file without model_type."
    )


def _with_depth(config: Any, depth: int | None) -> Any:
    """The config at another depth; lists with one entry per layer are dropped, so that the class's pattern goes on."""
    if depth is None:
        return config
    values = {k: v for k, v in config.to_dict().items() if k not in DROPPED}
    inner = getattr(config, "text_config", None)
    if inner is not None:
        text = {**_with_depth(inner, depth).to_dict(), "model_type": inner.model_type}
        return type(config)(**values | {"text_config": text})
    names = [k for k, v in values.items() if DEPTH.match(k) and isinstance(v, int)]
    if not names:
        raise BadInput(f"depth = {depth}: this {config.model_type} config has no number of layers to change.")
    lengths = {values[name] for name in names}
    kept = {k: v for k, v in values.items() if not (isinstance(v, (list, tuple)) and len(v) in lengths)}
    return type(config)(**kept | dict.fromkeys(names, depth))


def _tokens(config: ConfigReader, stack: Stack) -> int:
    """Of images as many as there are patches; of text the usual length within the context."""
    if stack.tokens:
        return config.tokens or stack.tokens
    names = [name for name, value in config.values.items() if CONTEXT.match(name) and isinstance(value, int)]
    plain = not stack.causal and not any(stack.positions) and not any(stack.window)
    return assume_tokens(config, *names[:1], context=2048, most=SYMMETRIC if plain else DENSE)
