"""Sizes of a config by field, and the same config with small ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


def small_config(config: Any, all_towers: Mapping[str, Tower], scale: Scale, path: str = "") -> Any:
    """The config at another scale; a list with one entry per layer is cut with the depth."""
    full = config.to_dict()
    values = {k: v for k, v in full.items() if k not in DROPPED}
    tower = _tower_of(path, all_towers)
    staged = any(isinstance(values.get(name), (list, tuple)) for name in STAGES)
    own = Scale(scale.stream, scale.head, scale.window, scale.depth, scale.narrow and not staged)
    depths = {v for k, v in values.items() if DEPTH.match(k) and isinstance(v, int)}
    inner = dict(inner_configs(config))
    for name, value in values.items():
        if name in inner:
            below = small_config(inner[name], all_towers, scale, f"{path}.{name}" if path else name)
            values[name] = {**below.to_dict(), "model_type": inner[name].model_type}
        elif name in STAGES and isinstance(value, (list, tuple)):
            values[name] = [min(number, 2) for number in value]
        elif isinstance(value, int) and not isinstance(value, bool) and not (staged and DEPTH.match(name)):
            values[name] = small_number(name, value, tower, all_towers, own)
        elif (
            isinstance(value, (list, tuple))
            and scale.depth
            and len(value) in depths
            and len(value) > scale.depth
        ):
            values[name] = list(value[: scale.depth])
    _keep_together(full, values, tower, own)
    return type(config)(**values)


def _tower_of(path: str, all_towers: Mapping[str, Tower]) -> Tower | None:
    """Its own; a config without a width shares that of the config around it."""
    while path not in all_towers:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return all_towers[path]


def _keep_together(
    full: Mapping[str, Any], values: dict[str, Any], tower: Tower | None, scale: Scale
) -> None:
    """Numbers that go with others: key heads with heads, sections of a rotation with a head, images with patches."""
    heads = next((k for k, v in values.items() if HEADS.match(k) and isinstance(v, int)), None)
    for name, value in full.items():
        if heads and KEY_HEADS.search(name) and isinstance(value, int) and value > 0:
            values[name] = _key_heads(value, full[heads], values[heads])
    if not any(
        full.get(name) for name in ("rope_parameters", "rope_scaling")
    ):  # long rotations count positions
        for name in values:
            if CONTEXT.match(name) and isinstance(values[name], int):
                values[name] = min(values[name], POSITIONS)
    image, patch = values.get("image_size"), values.get("patch_size")
    if scale.narrow and isinstance(image, int) and isinstance(patch, int) and image > PATCHES * patch:
        values["image_size"] = PATCHES * patch
    if tower is not None and scale.narrow:
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(values.get(name), Mapping) and "mrope_section" in values[name]:
                values[name] = values[name] | {
                    "mrope_section": _sections(values[name]["mrope_section"], tower, scale)
                }


def _key_heads(value: int, heads: int, small_heads: int) -> int:
    """So that about as many heads share a key head; at least one, and a divisor of the heads."""
    wanted = max(round(small_heads * value / heads), 1)
    return max(number for number in range(1, wanted + 1) if small_heads % number == 0)


def _sections(sections: list[int], tower: Tower, scale: Scale) -> list[int]:
    """Of the pairs of a head, in as many parts."""
    total = tower.part_of_head(2 * sum(sections), scale) // 2
    shares = [max(round(total * section / sum(sections)), 1) for section in sections]
    return [*shares[:-1], total - sum(shares[:-1])]


SMALLEST, LARGEST, STEP = 64, 256, 16  # widths of small streams
HEAD_WIDTH, VOCABULARY, POSITIONS, PATCHES = 16, 512, 128, 4
NARROW = 128  # a stream of at most this width stays as it is
CLOSE = 0.03  # by which rounding may change a proportion
WINDOWS = (16, 24)  # of the first small model and of the wider one; shorter windows stay
EVEN = 4  # widths are multiples of this: grouped products need whole words

DEPTH = re.compile(
    r"^(n|num)_(hidden_|encoder_|decoder_)?(layers?|blocks)$|^(encoder|decoder)_layers$|^depth$"
)
HEADS = re.compile(r"^(n_heads?|(num_)?attention_heads|num_heads|(encoder|decoder|num)_attention_heads?)$")
KEY_HEADS = re.compile(r"(key_value|kv)_heads$|^n_head_kv$|multi_query_group_num")
HEAD = re.compile(
    r"^(head_dim|d_kv|kv_channels|global_head_dim|rotary_dim|qk_head_dim)$|(rope|nope|v|index|attention)_head_dim$"
)
WIDTH = re.compile(
    r"^(hidden_size|d_model|n_embd|embed_dim|dim)$|_(hidden_size|embed_dim)$|^(word_embed_)?proj(ection)?_(dim|size)$"
)
HIDDEN = re.compile(
    r"intermediate_(size|dim)|ffn_(hidden_size|dim)$|^d_ff$|^n_inner$|^dim_f|^(mlp|hidden)_dim$"
)
RANK = re.compile(r"_lora_rank$|hidden_size_per_layer_input$")
WINDOW = re.compile(
    r"^sliding_windows?$|^window_size$|^local_attention$|^attention_(window|chunk_size|window_size)$"
)
CONTEXT = re.compile(
    r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len)$|^max_(source|target)_positions$"
)
EXPERTS = re.compile(r"^(num_|n_|num_local_|moe_num_)(routed_)?experts$")
STREAM = (
    "hidden_size",
    "d_model",
    "n_embd",
    "embed_dim",
    "dim",
)  # the width of the stream itself, by preference
TABLE = ("embedding_size", "d_embed")  # the width of the table of tokens, if it has one of its own
OWN_HEAD = ("qk_nope_head_dim", "head_dim", "d_kv", "kv_channels")
STAGES = ("depths", "num_blocks", "encoder_depths", "decoder_depths")  # layers of each stage, in a list
FIXED = {  # state-space layers beside attention: sizes that fit a stream of the smallest width
    re.compile(r"^mamba_(d_head|head_?dim)$|^linear_(key|value)_head_dim$"): HEAD_WIDTH,
    re.compile(r"d_state$|state_size$"): 8,
    re.compile(r"^time_step_rank$"): 4,
    re.compile(r"^linear_num_(key|value)_heads$"): 4,
}
DROPPED = (
    "transformers_version",
    "architectures",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "model_type",
    "stage_names",
    "out_features",
    "out_indices",
    "quantization_config",
    "auto_map",
)


@dataclass(frozen=True)
class Scale:
    """How a build differs from the first small one."""

    stream: int = 1  # times its width, with as many heads
    head: int = 1  # times as many heads, each narrower
    window: int = WINDOWS[0]
    depth: int | None = None  # number of layers, the config's own if None
    narrow: bool = True  # False keeps all widths


@dataclass(frozen=True)
class Tower:
    """A config, or one inside another, that has a width: its sizes, and those of the first small model."""

    path: str
    width: int
    heads: int | None
    head_width: int | None
    small_width: int
    small_heads: int | None
    small_head_width: int | None

    @property
    def shrinks(self) -> bool:
        return self.small_width != self.width

    @property
    def splits_heads(self) -> bool:
        return self.shrinks and self.small_heads is not None and self.small_heads > 1

    def part_of_head(self, value: int, scale: Scale) -> int:
        """A width inside a head."""
        if not self.shrinks or not self.head_width or not self.small_head_width:
            return value
        wide = scale.stream / (scale.head if self.splits_heads else 1)
        return max(2 * round(value * self.small_head_width * wide / self.head_width / 2), 2)

    def number_of_heads(self, value: int, scale: Scale) -> int:
        if not self.shrinks or not self.heads or not self.small_heads:
            return value
        return self.small_heads * (scale.head if self.splits_heads else 1)

    def part_of_stream(self, value: int, scale: Scale) -> int:
        """A width, hidden width or rank."""
        if value == self.width:
            return self.small_width * (scale.stream if self.shrinks else 1)
        if not self.shrinks:
            return value
        return max(EVEN * round(value * self.small_width * scale.stream / self.width / EVEN), EVEN)


def inner_configs(config: Any) -> Iterator[tuple[str, Any]]:
    """Configs inside a config: text, vision, audio."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield name, value


def towers(config: Any) -> dict[str, Tower]:
    """Every config with a width by its path, the outermost at the empty path; different widths stay different."""
    listed: dict[str, Tower] = {}
    for path, values in configs(config):
        if any(isinstance(values.get(name), (list, tuple)) for name in STAGES):
            continue
        width = next((values[name] for name in STREAM if isinstance(values.get(name), int)), None)
        if width:
            listed[path] = _tower(path, width, values, list(listed.values()))
    return listed


def configs(config: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """A config and those inside it, by path, as dictionaries."""
    yield path, config.to_dict()
    for name, inner in inner_configs(config):
        yield from configs(inner, f"{path}.{name}" if path else name)


def _tower(path: str, width: int, values: Mapping[str, Any], others: list[Tower]) -> Tower:
    heads = next((v for k, v in values.items() if HEADS.match(k) and isinstance(v, int)), None)
    own = next((values[name] for name in OWN_HEAD if isinstance(values.get(name), int)), None)
    head_width = own or (width // heads if heads else None)
    if width <= NARROW:
        return Tower(path, width, heads, head_width, width, heads, head_width)
    numbers = {k: v for k, v in values.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0}
    parts = [v / width for k, v in numbers.items() if HIDDEN.search(k) or RANK.search(k)]
    inner = heads * head_width / width if heads and head_width else 1.0
    taken = {t.small_width for t in others if t.width != width}
    taken |= {
        v // times for k, v in numbers.items() if EXPERTS.match(k) for times in (1, 2)
    }  # told by their shape
    tables = [v for k, v in numbers.items() if k in TABLE]  # one as wide as the stream has no projection
    taken |= {v // times for v in tables for times in (1, 2)} if width not in tables else set()
    same = [t.small_width for t in others if t.width == width]
    candidates = [w for w in range(SMALLEST, LARGEST + 1, STEP) if w not in taken]
    small = min(same or candidates, key=lambda w: _cost(w, parts, inner))
    small_heads, small_head = _heads(small, inner, heads)
    return Tower(path, width, heads, head_width, small, small_heads, small_head)


def _cost(width: int, parts: list[float], inner: float) -> tuple[bool, float]:
    """Narrow ones first among those that keep the proportions; else the one that keeps them best."""
    heads = inner * width / HEAD_WIDTH
    errors = [abs(max(EVEN * round(part * width / EVEN), EVEN) / (part * width) - 1) for part in parts]
    even = max(2 * round(heads / 2), 2)
    errors.append(abs(even / heads - 1) if width % (2 * even) == 0 else 1.0)  # also of twice as many heads
    return (True, max(errors)) if max(errors) > CLOSE else (False, width)


def _heads(width: int, inner: float, heads: int | None) -> tuple[int | None, int | None]:
    if heads is None:
        return None, None
    if heads == 1:
        return 1, round(inner * width)
    return max(2 * round(inner * width / HEAD_WIDTH / 2), 2), HEAD_WIDTH


def small_number(
    name: str, value: int, tower: Tower | None, all_towers: Mapping[str, Tower], scale: Scale
) -> int:
    """Return a config's number in a small model; token ids and what is not a size stay within their range."""
    if name.endswith("vocab_size") or name in ("n_vocab", "vocab_size_per_layer_input"):
        return min(value, VOCABULARY)
    if name.endswith(("token_id", "token_index")):
        return value if value < VOCABULARY else value % (VOCABULARY - 8) + 4
    if DEPTH.match(name):
        return value if scale.depth is None else min(value, scale.depth)
    if WINDOW.match(name):
        return scale.window if value > max(WINDOWS) else value
    if not scale.narrow or tower is None or value <= 0:
        return value
    return _part(name, value, tower, all_towers, scale)


def _part(name: str, value: int, tower: Tower, all_towers: Mapping[str, Tower], scale: Scale) -> int:
    if HEADS.match(name):
        return tower.number_of_heads(value, scale)
    if HEAD.search(name):
        return tower.part_of_head(value, scale)
    other = next((t for t in all_towers.values() if t.width == value != tower.width), None)
    if name in TABLE:
        return tower.part_of_stream(value, scale) if value == tower.width else value
    if WIDTH.search(name) and other is not None:
        return other.part_of_stream(value, scale)
    if HIDDEN.search(name) or RANK.search(name) or WIDTH.search(name):
        return tower.part_of_stream(value, scale)
    if tower.shrinks and re.search(r"^mamba_(n|num)_heads$|^n_mamba_heads$", name):
        return 2 * tower.small_width * scale.stream // HEAD_WIDTH
    if tower.shrinks and name == "mamba_d_ssm":
        return 2 * tower.small_width * scale.stream
    fixed = next((size for pattern, size in FIXED.items() if pattern.search(name)), value)
    return min(fixed, value) if tower.shrinks else value
