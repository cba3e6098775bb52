"""A config of transformers to a small model of the same class, with at least one layer of every kind.

The small model has the config's own initialization; what was made smaller is told, so that sizes can be taken from
the config again. Code from the Hub is never run: only classes of the installed transformers are built.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput

WIDTH, HEADS, HEAD_WIDTH, VOCABULARY, DEEPEST, LARGEST = 64, 4, 16, 512, 24, 2e8
AUTO = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM",
        "AutoModel")  # fmt: skip
DEPTH = re.compile(r"^(n|num)_(hidden_|encoder_|decoder_)?(layers?|blocks)$|^(encoder|decoder)_layers$|^depth$")
KEY_HEAD_COUNT = re.compile(r"(key_value|kv)_heads$|^n_head_kv$|multi_query_group_num")
HEAD_COUNT = re.compile(r"^(n_heads?|(num_)?attention_heads|num_heads|(encoder|decoder|num)_attention_heads?)$")
STAGES = ("depths", "num_blocks", "encoder_depths", "decoder_depths")  # layers of each stage, in a list
DROPPED = ("transformers_version", "architectures", "_name_or_path", "dtype", "torch_dtype", "model_type",
           "stage_names", "out_features", "out_indices")  # fmt: skip


def _at_most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit) if value > 0 else value


SIZES: tuple[tuple[re.Pattern[str], Callable[[int], int]], ...] = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (r"vocab_size(_per_layer_input)?$|^n_vocab$", _at_most(VOCABULARY)),
        (KEY_HEAD_COUNT.pattern, lambda v: 1 if v == 1 else 2),
        (HEAD_COUNT.pattern, _at_most(HEADS)),
        (r"^linear_num_(key|value)_heads$", _at_most(HEADS)),
        (r"rope_head_dim$|^rotary_dim$", _at_most(HEAD_WIDTH // 2)),
        (r"^(head_dim|d_kv|kv_channels|global_head_dim)$|(nope|v|key|value|index|attention)_head_dim$",
         _at_most(HEAD_WIDTH)),
        (r"^mamba_(d_head|head_?dim)$", _at_most(HEAD_WIDTH)),
        (r"^mamba_(n|num)_heads$|^n_mamba_heads$", _at_most(2 * WIDTH // HEAD_WIDTH)),
        (r"d_state$|state_size$", _at_most(8)),
        (r"^mamba_d_ssm$", _at_most(2 * WIDTH)),
        (r"^time_step_rank$", _at_most(4)),
        (r"^qk_head_dim$", _at_most(HEAD_WIDTH + HEAD_WIDTH // 2)),
        (r"_lora_rank$", _at_most(HEAD_WIDTH)),
        (r"moe.*intermediate_size$|shared_expert_intermediate_size$", _at_most(WIDTH // 2)),
        (r"intermediate_(size|dim)|ffn_(hidden_size|dim)$|^d_ff$|^n_inner$|^dim_f|^mlp_dim$|^ffn_dim$",
         _at_most(2 * WIDTH)),
        (r"^(num_|n_|num_local_|moe_num_)(routed_)?experts$", _at_most(4)),
        (r"experts_per_tok$|^top_k$|^moe_(topk|k)$", _at_most(2)),
        (r"^n_group$|^topk_group$", _at_most(1)),
        (r"hidden_size_per_layer_input$", _at_most(16)),
        (r"^(hidden_size|d_model|n_embd|embed_dim|dim|embedding_size|d_embed)$|_(hidden_size|embed_dim)$"
         r"|^(word_embed_)?proj(ection)?_dim$", _at_most(WIDTH)),
        (r"^sliding_window$|^window_size$|^local_attention$", _at_most(16)),
        (r"^(max_position_embeddings|n_positions|n_ctx)$|^max_(source|target)_positions$", _at_most(512)),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Shrunk:
    """A small model, and which of its blocks stands for each layer of the full one."""

    model: nn.Module
    config: Any
    layers: tuple[int, ...]  # by layer of the largest stack of the full model, the block of the small one
    changed: dict[str, tuple[Any, Any]]  # key to (value in the config, value here)


def shrink(config: Any) -> Shrunk:
    """A small model of the config's class; widths are kept where a narrow one does not build."""
    failures: list[Exception] = []
    kinds = list(model_classes(config))
    for narrow in (True, False):
        for kind in kinds:
            try:
                return _build(kind, config, narrow)
            except Exception as error:  # noqa: BLE001 - configs and models raise what they like; the first is the cause
                failures.append(error)
    if not failures:
        raise BadInput(
            f"the installed transformers has no model for {type(config).__name__}. Build the model and describe it "
            "instead; code from the Hub is not run here."
        )
    said = " ".join(f"{type(failures[0]).__name__}: {failures[0]}".split())[:300]
    raise BadInput(
        f"no small {kinds[0].__name__} could be built from this config: {said}. Build the model and describe that."
    ) from failures[0]


def model_classes(config: Any) -> Iterator[Any]:
    """The classes that transformers builds from this config, its own first; never one from the Hub."""
    import transformers

    listed: list[Any] = [getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ()]
    whole = ("AutoModelForImageTextToText",) if hasattr(config, "text_config") else ()
    for auto in (*whole, *AUTO):
        mapping = getattr(transformers, auto)._model_mapping
        if type(config) in mapping:
            kinds = mapping[type(config)]
            listed += kinds if isinstance(kinds, (tuple, list)) else [kinds]
    yield from dict.fromkeys(kind for kind in listed if kind is not None)


def _build(kind: Any, config: Any, narrow: bool) -> Shrunk:
    deep = _smaller(config, narrow, depth=None)
    blocks = _blocks(_on_meta(kind, deep))
    kinds = _kinds(blocks)
    first = {name: kinds.index(name) for name in dict.fromkeys(kinds)}
    depth = min(max(max(first.values(), default=0) + 1, 2), max(len(kinds), 2))
    if depth > DEEPEST:
        raise ValueError(f"its kinds of layers need {depth} layers, more than {DEEPEST}")
    small = _smaller(config, narrow, depth)
    parameters = sum(p.numel() for p in _on_meta(kind, small).parameters())
    if parameters > LARGEST:
        raise ValueError(f"{depth} layers of it still have {parameters:,} parameters")
    model = kind(small).eval()
    layers = tuple(first[name] for name in kinds)
    return Shrunk(model, small, layers, dict(_changes(config.to_dict(), small.to_dict())))


def _on_meta(kind: Any, config: Any) -> nn.Module:
    with torch.device("meta"):
        return kind(copy.deepcopy(config))


def _smaller(config: Any, narrow: bool, depth: int | None) -> Any:
    """The config with sizes changed; a list with one entry per layer is cut with the depth."""
    values = {k: v for k, v in config.to_dict().items() if k not in DROPPED}
    layers = {v for k, v in values.items() if DEPTH.match(k) and isinstance(v, int)}
    staged = any(isinstance(values.get(name), (list, tuple)) for name in STAGES)
    for name, value in values.items():
        inner = vars(config).get(name)
        if hasattr(inner, "to_dict") and hasattr(inner, "model_type"):
            values[name] = _smaller(inner, narrow, depth).to_dict()
        elif name in STAGES and isinstance(value, (list, tuple)):
            values[name] = [min(number, 2) for number in value]
        elif isinstance(value, int) and not isinstance(value, bool) and not (staged and DEPTH.match(name)):
            values[name] = _number(name, value, narrow and not staged, depth)
        elif isinstance(value, list) and depth is not None and len(value) in layers and len(value) > depth:
            values[name] = value[:depth]
    if narrow:
        _keep_equal(config.to_dict(), values)
    return type(config)(**values)


def _keep_equal(full: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Numbers that are one and the same in the config stay so: key heads and heads, a head and its rotated part."""
    heads = next((k for k, v in values.items() if HEAD_COUNT.match(k) and isinstance(v, int)), None)
    for name in values:
        if heads and KEY_HEAD_COUNT.search(name) and full[name] == full[heads]:
            values[name] = values[heads]
    if heads and "head_dim" in values and values["head_dim"] is None:
        values["head_dim"] = HEAD_WIDTH
    image, patch = values.get("image_size"), values.get("patch_size")
    if isinstance(image, int) and isinstance(patch, int) and image > 4 * patch:
        values["image_size"] = 4 * patch
    if "qk_rope_head_dim" in full and full.get("head_dim") == full["qk_rope_head_dim"]:
        values["head_dim"] = values["qk_rope_head_dim"]
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(values.get(name), dict) and "mrope_section" in values[name]:  # of half a head, in three
            values[name] = values[name] | {"mrope_section": [HEAD_WIDTH // 8, *[3 * HEAD_WIDTH // 16] * 2]}


def _number(name: str, value: int, narrow: bool, depth: int | None) -> int:
    if DEPTH.match(name):
        return value if depth is None else min(value, depth)
    if name.endswith(("token_id", "token_index")):
        return value if value < VOCABULARY else value % (VOCABULARY - 8) + 4
    for pattern, change in SIZES if narrow else SIZES[:1]:
        if pattern.search(name):
            return change(value)
    return value


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList) and _repeats(m)]
    return max(lists, key=len, default=[])


def _repeats(listed: nn.ModuleList) -> bool:
    return len(listed) > 0 and sum(1 for _ in listed[0].modules()) > 3


def _kinds(blocks: list[nn.Module]) -> list[tuple[Any, ...]]:
    """What each layer is: its modules, shapes and settings, without settings that count layers."""
    facts = [dict(_facts(block)) for block in blocks]
    names = dict.fromkeys(name for fact in facts for name in fact)
    kept = [name for name in names if not _counts([fact.get(name) for fact in facts])]
    return [tuple((name, repr(fact[name])) for name in kept if name in fact) for fact in facts]


def _counts(values: list[Any]) -> bool:
    """Whether a setting is a number that goes up with the layer, on a straight line."""
    points = [(i, v) for i, v in enumerate(values) if isinstance(v, int) and not isinstance(v, bool)]
    if len(points) < 2 or any(v is not None and not isinstance(v, int) for v in values):
        return False
    (i, one), (j, other) = points[:2]
    slope = (other - one) / (j - i)
    return slope != 0 and all(value == one + slope * (place - i) for place, value in points)


def _facts(block: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in block.named_modules():
        yield f"{path}:class", type(module).__name__
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, (bool, int, float, str, type(None))):
                yield f"{path}.{name}", value
    for name, parameter in block.named_parameters():
        yield f"{name}:shape", tuple(parameter.shape)


def _changes(
    full: Mapping[str, Any], small: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name, value in full.items():
        other = small.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _changes(value, other, f"{path}{name}.")
        elif value != other and name not in DROPPED:
            yield f"{path}{name}", (value, other)
