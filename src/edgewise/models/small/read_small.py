"""A config of any class, described by building small models of it and reading them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read, reread, reread_windows
from edgewise.models.behavior.record import Block, Reading, Stack
from edgewise.models.behavior.to_architecture import describe_reading
from edgewise.models.config.reader import (
    DENSE,
    SYMMETRIC,
    ConfigReader,
    assume_tokens,
    one_or_all,
    rope_parameters,
)
from edgewise.models.config.translate import FAMILIES
from edgewise.models.inputs import default_batches
from edgewise.models.small.full_size import (
    TOLERANCE,
    UNIT,
    Build,
    FullNumbers,
    NoPowerLaw,
    at_full_size,
    full_kinds,
)
from edgewise.models.small.sizes import CONTEXT, DEPTH, DROPPED, EXPERTS, WINDOWS, Scale, configs
from edgewise.models.small.small_model import Blueprint, blueprint, refuse_counts, refuse_kernel
from edgewise.nouns.architecture import Architecture
from edgewise.progress import ProgressBar


def router_weights(model: nn.Module, config: Any, stack: Stack, width: int) -> list[nn.Parameter]:
    """The matrices from the stream to one logit per expert: by their shape, outside attention."""
    counts = {
        v
        for _, values in configs(config)
        for k, v in values.items()
        if EXPERTS.match(k) and isinstance(v, int)
    }
    layer = re.compile(rf"^{re.escape(stack.name)}\.\d+\.")
    attention = tuple(layer.sub("", branch.module) for branch in stack.attentions)
    places: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        place = layer.sub("", name)
        shape = set(parameter.shape) if parameter.dim() == 2 else set()
        if place != name and width in shape and shape & counts - {width} and not place.startswith(attention):
            places.setdefault(place, []).append(parameter)
    if len(places) != 1:
        raise BadInput(
            f"the routers of {stack.name} could not be told from its other matrices, so that the weights of experts at "
            "full width are unknown. Build the model and describe that."
        )
    return next(iter(places.values()))


def draw_exponent(narrow: list[nn.Parameter], wide: list[nn.Parameter], factor: int) -> float:
    """The power of the width that the standard deviation of routers goes with: 0, or -1/2 where fan-in is counted."""
    small, large = (math.sqrt(sum(float(w.detach().var()) for w in ws) / len(ws)) for ws in (narrow, wide))
    slope = math.log(large / small) / math.log(factor) if small and large else 0.0
    exponent = UNIT * round(slope / UNIT)
    if abs(slope - exponent) > TOLERANCE:
        raise BadInput(
            f"the routers' weights grow as the width to the power {slope:.2f}. Expected a multiple of 1/2, so how much "
            "each expert weighs at full width is not known. Build the model and describe that."
        )
    return exponent


def spread_as(weights: list[nn.Parameter], ratio: float, exponent: float) -> None:
    """Multiply routers so that their logits spread as at `ratio` times the width."""
    with torch.no_grad():
        for weight in weights:
            weight.mul_(ratio ** (exponent + 0.5))


BASES = ("rope_theta", "rotary_emb_base", "rope_base")


def with_rotation(description: Architecture, config: ConfigReader) -> Architecture:
    """The description with what its config says about rotation."""
    rope = (
        description.rope if isinstance(description.rope, tuple) else (description.rope,) * description.depth
    )
    if not any(rope):
        return description
    types = config.get("layer_types")
    kinds = types if types and len(types) == description.depth else ["full_attention"] * description.depth
    bases = [_base(config, kind) for kind in kinds]
    fractions = [_fraction(config, kind, description.head_width) for kind in kinds]
    turned = [fraction if rotates else 0.0 for fraction, rotates in zip(fractions, rope, strict=True)]
    changes: dict[str, Any] = {"rope": one_or_all(turned)}
    assumed = description.assumed
    if None not in bases:
        changes["rope_base"] = one_or_all(bases)
        assumed = tuple(line for line in assumed if not line.startswith("rope_base"))
    return replace(description.replace(**changes), assumed=assumed)


def _base(config: ConfigReader, kind: str) -> float | None:
    inside = rope_parameters(config, kind).get("rope_theta")
    value = inside if inside is not None else config.get(*BASES)
    return None if value is None else float(value)


def _fraction(config: ConfigReader, kind: str, head_width: int) -> float:
    part = config.get("rotary_dim", "qk_rope_head_dim")
    if part is not None:
        return float(part) / head_width
    inside = rope_parameters(config, kind).get("partial_rotary_factor")
    return float(inside if inside is not None else config.get("partial_rotary_factor", "rotary_pct") or 1.0)


SHALLOW = 4  # up to here a second depth is twice the first
TEXT = {"input_ids", "decoder_input_ids"}
Result = TypeVar("Result")


class SmallModels:
    """The first reading, and the stack that is described at every scale, the first one first."""

    def __init__(self, plan: Blueprint, stack: str | None, bar: ProgressBar) -> None:
        self._plan, self._bar = plan, bar
        first = _first_scale(plan)
        self.reading, text = _guarded(plan, lambda: _first_reading(plan, first, stack))
        chosen = self.reading.default
        if chosen is None:
            reasons = "; ".join(self.reading.not_read) or "no chain of residual sums was found"
            raise BadInput(f"{plan.model_class.__name__} has no stack to describe: {reasons}.")
        describe_reading(self.reading)  # raises if no Architecture describes it, before more is built
        self._again = _guarded(plan, lambda: _Again(plan, Build(first, chosen), text))
        scales = [first, *_other_scales(plan, first)]
        self.builds = [
            Build(scale, stack) for scale, stack in zip(scales, self._read(scales, 0), strict=True)
        ]

    def draw_again(self, seeds: Sequence[int]) -> None:
        """The same with other weights."""
        numbers = [build for build in self.builds if build.scale.window == self.builds[0].scale.window]
        for seed in seeds:
            stacks = self._read([build.scale for build in numbers], seed)
            numbers = [replace(b, others=(*b.others, s)) for b, s in zip(numbers, stacks, strict=True)]
        self.builds = numbers + self.builds[len(numbers) :]

    def _read(self, scales: Sequence[Scale], seed: int) -> list[Stack]:
        stacks = []
        for number, scale in enumerate(scales):
            self._bar.count("reading small models", number, len(scales))
            stacks.append(_guarded(self._plan, lambda at=scale: self._again.read(at, seed)))  # type: ignore[misc]
        return stacks


def _guarded(plan: Blueprint, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except BadInput:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(f"a small {plan.model_class.__name__} could not be built and read: {text}") from error


def _first_reading(plan: Blueprint, scale: Scale, stack: str | None) -> tuple[Reading, bool]:
    """Also whether it was read on text alone: with images beside it, the stream would start from both."""
    model = plan.build(scale)
    batch = _text(model) if stack is None and len(plan.towers) > 1 else None
    if batch is not None:
        try:
            return read(model, batch), True
        except BadInput:
            return read(model), False  # the model wants images, too; what it says then is the reason
    return read(model, stack=stack), False


def _text(model: nn.Module) -> dict[str, Any] | None:
    return next((batch for batch in default_batches(model) if set(batch) <= TEXT), None)


def _first_scale(plan: Blueprint) -> Scale:
    return Scale(depth=plan.full_depth if plan.full_depth <= _deeper(plan) else plan.depth)


def _deeper(plan: Blueprint) -> int:
    return 2 * plan.depth if plan.depth <= SHALLOW else math.ceil(1.5 * plan.depth)


def _other_scales(plan: Blueprint, first: Scale) -> Iterator[Scale]:
    if plan.narrow and any(tower.shrinks for tower in plan.towers.values()):
        yield Scale(stream=2, depth=first.depth)
        if any(tower.splits_heads for tower in plan.towers.values()):
            yield Scale(head=2, depth=first.depth)
    if first.depth != plan.full_depth:
        yield Scale(depth=_deeper(plan))
    if plan.windowed:
        yield Scale(window=WINDOWS[1], depth=first.depth)


class _Again:
    """The stack of the first small model, read at any scale."""

    def __init__(self, plan: Blueprint, first: Build, text: bool) -> None:
        self.plan, self.first, self.text = plan, first, text
        self.routed = plan.narrow and any(branch.experts for branch in first.stack.branches)
        if self.routed:
            self.width = FullNumbers(plan, [(first.scale, first.stack)]).tower.width
            wide = replace(first.scale, stream=2)
            weights = [self._routers(plan.build(scale), scale) for scale in (first.scale, wide)]
            self.exponent = draw_exponent(weights[0], weights[1], wide.stream)

    def read(self, scale: Scale, seed: int) -> Stack:
        """Read the first stack with these windows if they are longer, else with these numbers."""
        longer = scale.window != self.first.scale.window
        if longer and not any(self.first.stack.window):
            return self.first.stack
        model = self.plan.build(scale, seed)
        batch = _text(model) if self.text else None
        if longer:
            return reread_windows(model, self.first.stack, batch)
        if self.routed:
            ratio = self.width / (self.first.stack.width * scale.stream)
            spread_as(self._routers(model, scale), ratio, self.exponent)
        return reread(model, self.first.stack, _blocks(self.plan, scale, self.first), batch)

    def _routers(self, model: nn.Module, scale: Scale) -> list[nn.Parameter]:
        return router_weights(
            model, self.plan.config, self.first.stack, self.first.stack.width * scale.stream
        )


def _blocks(plan: Blueprint, scale: Scale, first: Build) -> Sequence[Block]:
    """The blocks that a model of this scale has; each is like the first of its kind."""
    stack, kinds = first.stack, full_kinds(plan, first.scale, first.stack)
    if scale.depth == first.scale.depth:
        return stack.blocks
    assert scale.depth and first.scale.depth
    if kinds is None:
        return (stack.blocks[0],) * (stack.depth * scale.depth // first.scale.depth)
    length = len(plan.lists[stack.name].kinds)
    step = min(length, first.scale.depth) // stack.depth
    return tuple(stack.blocks[kinds.index(kind)] for kind in kinds[: min(length, scale.depth) // step])


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
    refuse_counts(values)
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
    """The config at another depth; lists with one entry per layer are dropped: the class's pattern continues."""
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
