"""Small models of a config's class, with at least one layer of every kind and the config's own initialization.

Code from the Hub is never run: only classes of the installed transformers are built.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from edgewise.errors import BadInput
from edgewise.models.small.sizes import DEPTH, WINDOW, WINDOWS, Scale, Tower, configs, small_config, towers
from edgewise.models.state import random_streams
from edgewise.nouns.knobs import DEEPEST as DEEPEST_CONFIG
from edgewise.nouns.knobs import shown

DEEPEST, MOST_PARAMETERS = 64, 2e8
MOST_CALLS = 1_000_000  # of torch while a full model is made without weights: seconds
PARTS = re.compile(r"(^|_)(n_)?(layers?|blocks|depths?)$")
PERIOD = re.compile(r"(pattern|period|interval|every_n_layers|layer_freq|sparse_step)$")
AUTO = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
)


@dataclass(frozen=True)
class Layers:
    """The kind of every layer of a list, as a number in order of appearance, and the facts that tell kinds apart."""

    kinds: tuple[int, ...]
    modules: tuple[int, ...]  # kinds as the modules alone show them, without what the config lists
    telling: tuple[str, ...]

    @property
    def needed(self) -> int:
        """Count the first layers that hold one of every kind; two at least."""
        return min(max(self.kinds.index(max(self.kinds)) + 1, 2), len(self.kinds))


@dataclass(frozen=True)
class Blueprint:
    """A class, a config, and what the layers of its full depth are; small models are built from it."""

    model_class: Any
    config: Any
    towers: dict[str, Tower]
    lists: dict[str, Layers]  # the lists of layers at full depth, by path
    depth: int  # layers that a small model needs to have every kind
    narrow: bool

    @property
    def full_depth(self) -> int:
        """Of the longest stack: lists of layers, and what the config says where layers share their weights."""
        numbers = (v for _, values in configs(self.config) for k, v in values.items() if DEPTH.match(k))
        lengths = [len(layers.kinds) for layers in self.lists.values()]
        return max([*lengths, *(n for n in numbers if isinstance(n, int))], default=0)

    @property
    def windowed(self) -> bool:
        """Tell if a window of the config is shortened."""
        numbers = [(k, v) for _, values in configs(self.config) for k, v in values.items() if WINDOW.match(k)]
        return any(isinstance(v, int) and v > max(WINDOWS) for _, v in numbers)

    def small(self, scale: Scale) -> Any:
        return small_config(self.config, self.towers, replace(scale, narrow=self.narrow))

    def build(self, scale: Scale, seed: int = 0) -> nn.Module:
        """A small model with random weights; its layers must be the first ones of the full depth."""
        config = self.small(scale)
        with random_streams():
            torch.manual_seed(seed)
            model: nn.Module = self.model_class(config).eval()
        for path, layers in self.lists.items():
            blocks = list(model.get_submodule(path).children())
            kinds = _records([dict(_facts(block)) for block in blocks], layers.telling)
            if _order(kinds) != layers.modules[: len(kinds)]:
                raise BadInput(
                    f"the layers of {path} alternate in another way in a {self.model_class.__name__} of {len(kinds)} "
                    f"layers than in one of {len(layers.kinds)}, so that a small one cannot stand for it. Build the "
                    "model and describe that."
                )
        return model


def blueprint(config: Any, model_class: Any = None) -> Blueprint:
    """Plan a small model of this config, of this class or the first that can; widths are kept if they must be."""
    failures: list[Exception] = []
    classes = list(model_classes(config)) if model_class is None else [model_class]
    for narrow in (True, False):
        for model_class in classes:
            try:
                return _plan(model_class, config, narrow)
            except TooLarge:
                raise
            except Exception as error:  # noqa: BLE001 - configs and models raise what they like; the first is the cause
                failures.append(error)
    if not failures:
        raise BadInput(
            f"the installed transformers has no model for {type(config).__name__}. Build the model and describe it "
            "instead; code from the Hub is not run here."
        )
    message = " ".join(f"{type(failures[0]).__name__}: {failures[0]}".split())[:300]
    raise BadInput(
        f"no small {classes[0].__name__} could be built from this config: {message}. Build the model and describe that."
    ) from failures[0]


def model_classes(config: Any) -> Iterator[Any]:
    """The classes that transformers builds from this config, its own first; never one from the Hub."""
    import transformers

    listed: list[Any] = named_classes(config)
    for auto in AUTO:
        mapping = getattr(transformers, auto)._model_mapping
        if type(config) in mapping:
            classes = mapping[type(config)]
            listed += classes if isinstance(classes, (tuple, list)) else [classes]
    yield from dict.fromkeys(listed)


def named_classes(config: Any) -> list[Any]:
    """The classes that `architectures` names, models of transformers only: a name may be that of a function."""
    import transformers

    kinds = [getattr(transformers, str(name), None) for name in getattr(config, "architectures", None) or ()]
    return [
        kind for kind in kinds if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    ]


def refuse_kernel(values: Any) -> None:
    """Refuse a config, or a part of one, that names attention code on the Hub, which transformers would fetch and run.

    >>> refuse_kernel({"model_type": "gpt2", "attn_implementation": "sdpa"})
    """
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if "_implementation" in str(key) and "/" in str(value):
            raise BadInput(
                f"{key} is {value!r}, code from the Hub, which is not run here. Remove it from the config, or write "
                "sdpa or eager."
            )
        refuse_kernel(value)


def _plan(model_class: Any, config: Any, narrow: bool) -> Blueprint:
    sizes = towers(config)
    deep = small_config(config, sizes, Scale(narrow=narrow))
    lists = layer_lists(without_weights(model_class, deep), deep)
    longest = max((len(layers.kinds) for layers in lists.values()), default=2)
    depth = max(2, min(_period(deep), longest), *(layers.needed for layers in lists.values()))
    if depth > DEEPEST:
        raise ValueError(f"its kinds of layers need {depth} layers, more than {DEEPEST}")
    plan = Blueprint(model_class, config, sizes, lists, depth, narrow)
    parameters = sum(
        p.numel() for p in without_weights(model_class, plan.small(Scale(depth=depth))).parameters()
    )
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{depth} layers of it still have {parameters:,} parameters")
    return plan


def without_weights(model_class: Any, config: Any) -> nn.Module:
    """The modules and shapes alone, in no memory."""
    with torch.device("meta"), _Patience():
        return model_class(copy.deepcopy(config))


class _Patience(TorchFunctionMode):
    """A limit for the making of a model, whatever the config calls what there is too much of."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooLarge(
                "a model of this config has too many parts (layers, experts or heads) to be made here. Lower their "
                "numbers, or describe the network with flat knobs: transformer(depth=..., width=..., heads=...)."
            )
        return func(*args, **(kwargs or {}))


class TooLarge(BadInput):
    """A config of more parts than are made."""


def refuse_counts(values: Any) -> None:
    """Reject a config, or a part of one, with more layers than are ever followed: its class would list them all.

    >>> refuse_counts({"encoder_layers": 12, "vision_config": {"depth": 24}})
    """
    for key, value in values.items() if isinstance(values, Mapping) else ():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        count = max((n for n in numbers if isinstance(n, int)), default=0)
        if PARTS.search(str(key)) and count > DEEPEST_CONFIG:
            raise BadInput(f"{key} must be at most {DEEPEST_CONFIG:,} in a config, got {shown(count)}.")
        refuse_counts(value)


def layer_lists(model: nn.Module, config: Any) -> dict[str, Layers]:
    """Every outermost list of layers by its path."""
    listed: dict[str, Layers] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in listed)
        if isinstance(module, nn.ModuleList) and not inside and _repeats(module):
            listed[path] = _layers([dict(_facts(block)) for block in module], config)
    return listed


def _repeats(listed: nn.ModuleList) -> bool:
    return len(listed) > 0 and sum(1 for _ in listed[0].modules()) > 3


def _layers(facts: list[dict[str, Any]], config: Any) -> Layers:
    """Layers that agree in all facts but those that count (its number, a rate of dropout) are of one kind."""
    names = dict.fromkeys(name for fact in facts for name in fact)
    telling = tuple(name for name in names if not _counts([fact.get(name) for fact in facts]))
    records = _records(facts, telling)
    lists = [v for _, values in configs(config) for v in values.values() if isinstance(v, (list, tuple))]
    own = [v for v in lists if len(v) == len(facts) and not _counts(list(v))]
    kinds = _order([(record, *(repr(v[i]) for v in own)) for i, record in enumerate(records)])
    return Layers(kinds, _order(records), telling)


def _records(facts: list[dict[str, Any]], telling: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [tuple((name, repr(fact[name])) for name in telling if name in fact) for fact in facts]


def _order(records: list[tuple[Any, ...]]) -> tuple[int, ...]:
    first = {record: number for number, record in enumerate(dict.fromkeys(records))}
    return tuple(first[record] for record in records)


def _period(config: Any) -> int:
    """Layers after which a pattern that the config has as a number repeats; 0 if it has none."""
    numbers = [v for _, values in configs(config) for k, v in values.items() if PERIOD.search(k)]
    return max((n for n in numbers if isinstance(n, int) and not isinstance(n, bool)), default=0)


def _counts(values: list[Any]) -> bool:
    points = [(i, v) for i, v in enumerate(values) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(points) < 2 or any(v is not None and not isinstance(v, (int, float)) for v in values):
        return False
    (i, one), (j, other) = points[0], points[-1]
    slope = (other - one) / (j - i)
    return slope != 0 and all(abs(value - one - slope * (k - i)) <= 1e-6 * abs(slope) for k, value in points)


def _facts(block: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in block.named_modules():
        yield f"{path}:class", type(module).__name__
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, (bool, int, float, str, type(None))):
                yield f"{path}.{name}", value
    for name, parameter in block.named_parameters():
        yield f"{name}:shape", tuple(parameter.shape)
