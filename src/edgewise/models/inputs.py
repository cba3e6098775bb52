"""Batches: how a model is called with one, the tensors in it, and default ones for a model without data.

A batch is whatever the model accepts: keyword arguments, a tuple of positional ones, one tensor, one dataclass, or one
mapping that its forward takes whole.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.interrupts import check
from edgewise.models.state import preserved, random_streams

Call = tuple[tuple[Any, ...], dict[str, Any]]
PLAIN = frozenset(
    (int, float, bool, str, type(None), slice, torch.dtype, torch.device, torch.Size)
)  # hold no tensor
NAMED = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.KEYWORD_ONLY,
)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of nested lists, tuples, mappings and dataclasses, in order; anything else (a cache) is skipped."""
    return iter(collected(value, []))


def collected(value: Any, found: list[Tensor]) -> list[Tensor]:
    """Add the tensors of a value to what was found before."""
    if isinstance(value, Tensor):
        found.append(value)
    elif type(value) in PLAIN:
        pass
    elif isinstance(value, (list, tuple)):
        for item in value:
            collected(item, found)
    elif _is_mapping(value):
        for key in value.keys():  # noqa: SIM118 - a container of its own kind
            collected(value[key], found)
    elif _is_record(value):
        for each in fields(value):
            collected(getattr(value, each.name), found)
    return found


def replaced(value: Any, how: Callable[[Tensor], Tensor]) -> Any:
    """The same nested value with every tensor replaced, in the order of `tensors`; the old one stays as it is."""
    if isinstance(value, Tensor):
        return how(value)
    if type(value) in PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        parts = [replaced(item, how) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {key: replaced(item, how) for key, item in value.items()}
    if _is_mapping(value):
        twin = copy.copy(value)
        items = {key: replaced(value[key], how) for key in value.keys()}  # noqa: SIM118
        if not hasattr(twin, "__setitem__"):
            return items
        if getattr(twin, "data", None) is getattr(
            value, "data", twin
        ):  # a shallow copy may share its dictionary
            twin.data = dict(value.data)
        for key, item in items.items():
            twin[key] = item
        return twin
    if _is_record(value):
        twin = copy.copy(value)
        for each in fields(value):
            object.__setattr__(twin, each.name, replaced(getattr(value, each.name), how))
        return twin
    return value


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def as_call(batch: Any, model: nn.Module | None = None) -> Call:
    """(args, kwargs) from whatever a user hands over.

    model  whose forward decides whether a mapping is keyword arguments or one argument, and a tuple several or one
    """
    if isinstance(batch, Tensor):
        return (batch,), {}
    if _is_mapping(batch):
        named = {key: batch[key] for key in batch.keys()}  # noqa: SIM118 - a container of its own kind
        return ((batch,), {}) if model is not None and _takes_one(model, set(named)) else ((), named)
    if isinstance(batch, (tuple, list)):
        return ((batch,) if model is not None and _takes_one(model, len(batch)) else tuple(batch)), {}
    if _is_record(batch):
        return (batch,), {}
    raise BadInput(
        f"a batch cannot be of type {type(batch).__name__}: expected a dict of keyword arguments, a tuple, a dataclass "
        "or a tensor."
    )


def _takes_one(model: nn.Module, given: set[Any] | int) -> bool:
    """Return whether a forward takes one argument, and none of these names or not so many."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any("Tensor" in str(p.annotation) for p in parameters if p.default is p.empty):
        return False
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return False
    needed = [p for p in parameters if p.default is p.empty]
    if isinstance(given, int):
        return len(list(parameters)) == 1 < given
    fits = given <= {p.name for p in parameters} and all(isinstance(name, str) for name in given)
    return not fits and len(needed) <= 1 <= len(list(parameters))


def call(model: nn.Module, batch: Any) -> Any:
    """One forward pass on a batch."""
    args, kwargs = as_call(batch, model)
    return model(*args, **kwargs)


def change(args: Any, kwargs: Any, how: Callable[[int, Tensor], Tensor]) -> Call:
    """The arguments with every tensor replaced by `how(place, tensor)`; places as `tensors` counts them."""
    place = iter(range(10**6))
    each = lambda value: how(next(place), value)  # noqa: E731
    return tuple(replaced(value, each) for value in args), {k: replaced(v, each) for k, v in kwargs.items()}


def is_ids(value: Tensor, batch: int = 0) -> bool:
    """Tell if a tensor is (sequences, tokens) of whole numbers; (tokens, sequences) if the batch is axis 1."""
    whole = not value.is_floating_point() and not value.is_complex()
    return whole and value.dim() == 2 and value.shape[1 - batch] > 1 and value.numel() > 0


SIDES = (64, 32, 224, 256, 28, 384)  # of an image, if no config says; the first that the model takes
TOKENS = 47  # of a reading: enough for every test but long windows; prime, so that no other size is mistaken for it
MEASURED = 64  # tokens of a measurement
LENGTHS = (TOKENS, 64, 16, 10, 8)
GRID = 8  # patches along each side of an image that is already cut
SPECIAL = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
)
HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")
OPTIONS = 12  # combinations of further arguments that are tried


def default_batches(model: nn.Module) -> Iterator[Any]:
    """Small batches that the model may take, likeliest first; drawn from a generator of their own."""
    maker, number = _Maker(model, torch.Generator().manual_seed(0)), 0
    for batch in maker.by_config(LENGTHS) if maker.config is not None else ():
        number += 1
        yield batch
    if not number:
        yield from maker.by_modules(LENGTHS)


def default_batch(
    model: nn.Module,
    generator: torch.Generator,
    tokens: int | None = None,
    device: torch.device | None = None,
) -> Any:
    """One sequence of distinct random ids (with labels if the model has a head for them), one random image, or the
    first of `default_batches` that the model takes."""
    if next(model.parameters(), None) is None:
        raise BadInput(
            f"{type(model).__name__} has no parameters, so it has no default input, and nothing to change."
        )
    maker = _Maker(model, generator, device)
    own = maker.with_labels(tokens) if maker.config is not None else None
    return maker.first_that_runs(tokens) if own is None else own


def random_ids(vocabulary: int, tokens: int, generator: torch.Generator, special: set[int]) -> Tensor:
    """(1, tokens) ids, distinct while the vocabulary lasts: a repeated token would be a pair of overlap one."""
    allowed = torch.tensor([i for i in range(vocabulary) if i not in special] or list(range(vocabulary)))
    order = torch.randperm(len(allowed), generator=generator)
    copies = -(-tokens // len(allowed))
    return allowed[order.repeat(copies)[:tokens]][None]


def special_ids(*configs: Any) -> set[int]:
    """Ids that mean something else than themselves: padding has a zero embedding, ends may be masked."""
    values = [getattr(config, name, None) for config in configs for name in SPECIAL]
    flat = [i for value in values for i in (value if isinstance(value, (list, tuple)) else [value])]
    return {i for i in flat if isinstance(i, int) and i >= 0}


class _Maker:
    def __init__(
        self, model: nn.Module, generator: torch.Generator, device: torch.device | None = None
    ) -> None:
        self.model, self.config, self.generator = model, getattr(model, "config", None), generator
        self.names = _parameters(model)
        self.keywords = _parameters(model, (inspect.Parameter.KEYWORD_ONLY,))  # that no position reaches
        own = [*model.parameters(), *model.buffers()]
        self.device = device or (own[0].device if own else torch.device("cpu"))
        self.dtype = next((t.dtype for t in own if t.is_floating_point()), torch.float32)

    def with_labels(self, tokens: int | None) -> dict[str, Tensor] | None:
        """By a config that has images or a vocabulary; None if it has neither."""
        kind = type(self.model).__name__
        if hasattr(self.config, "image_size") and "pixel_values" in self.names:
            batch = self._pixels()
            if "Classification" in kind and "labels" in self.names:
                batch["labels"] = torch.zeros(1, dtype=torch.long, device=self.device)
            return batch
        config: Any = self.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        vocabulary = getattr(text, "vocab_size", None)
        if not vocabulary:
            return None
        longest = getattr(text, "max_position_embeddings", None) or tokens or MEASURED
        length = self._length(tokens, longest)
        ids = random_ids(vocabulary, length, self.generator, special_ids(text)).to(self.device)
        batch = {"input_ids": ids}
        if "labels" in self.names and any(head in kind for head in HEADS):
            batch["labels"] = ids.clone()
        elif getattr(config, "is_encoder_decoder", False):
            batch["decoder_input_ids"] = ids.clone()
        return batch

    def first_that_runs(self, tokens: int | None) -> Any:
        """The first batch by its modules on which a pass ends without an error."""
        tables = [m for m in self.model.modules() if isinstance(m, nn.Embedding)]
        length = tokens or MEASURED
        if tables:
            length = self._length(tokens, min(table.num_embeddings for table in tables))
        errors: list[str] = []
        for batch in self.by_modules((length,) if tokens is not None else (length, *LENGTHS)):
            with random_streams(), torch.no_grad(), preserved(self.model, gradients=False):
                try:
                    call(self.model, batch)
                except Exception as error:  # noqa: BLE001 - the model's own; the next batch is tried
                    check()
                    errors.append(f"{type(error).__name__}: {error}"[:200])
                    continue
            return batch
        tried = f" It was run on {len(errors)}; the first ended with {errors[0]}." if errors else ""
        raise BadInput(
            f"no default input for {type(self.model).__name__} could be made from its modules.{tried} Give a batch: a "
            "dict of keyword arguments, a tuple, or a tensor."
        )

    def _length(self, tokens: int | None, longest: int) -> int:
        """The requested length, or the default one cut to the positions there are."""
        if tokens is not None and tokens > longest:
            raise BadInput(
                f"tokens must be at most {longest}, the positions of this {type(self.model).__name__}, got {tokens}."
            )
        return min(tokens or MEASURED, longest)

    def by_config(self, lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
        """From most parts of the model to fewest: text with images, text, images, sound."""
        if "grid_thw" in self.names and "input_ids" not in self.names:
            yield from self._patches()
        pixels = self._pixels() if "pixel_values" in self.names else {}
        for length in lengths:
            text = self._text(length) if {"input_ids", "decoder_input_ids"} & set(self.names) else {}
            if text and pixels:
                yield self._with_image_tokens(text, pixels) | pixels
                yield text | pixels
            if text and "input_ids" in text:
                yield text
            sound = self._sound()
            if sound:
                yield sound | {k: v for k, v in text.items() if k.startswith("decoder")}
        if pixels:
            yield pixels

    def _text(self, length: int) -> dict[str, Tensor]:
        config: Any = self.config
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        size = getattr(config, "vocab_size", None) or getattr(self.config, "vocab_size", None)
        if not isinstance(size, int):
            size = max(
                (m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)), default=0
            )
        if size < 2:
            return {}
        limit = getattr(config, "max_position_embeddings", None)
        length = min(length, limit) if isinstance(limit, int) and limit > 0 else length
        batch = {"input_ids": self._ids(size, length, config)} if "input_ids" in self.names else {}
        decodes = getattr(self.config, "is_encoder_decoder", False) or "input_ids" not in self.names
        if "decoder_input_ids" in self.names and decodes:
            batch["decoder_input_ids"] = self._ids(size, length, config)
        return batch

    def _ids(self, size: int, length: int, config: Any) -> Tensor:
        special = special_ids(config, self.config)
        return random_ids(min(size, 50_000), length, self.generator, special).to(self.device)

    def _pixels(self) -> dict[str, Tensor]:
        config = getattr(self.config, "vision_config", None) or self.config
        side = next((getattr(c, "image_size", None) for c in (config, self.config) if _side(c)), 224)
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
        frames = getattr(config, "num_frames", None)
        video = [frames] if isinstance(frames, int) else []
        return {"pixel_values": self._numbers(1, *video, channels, height, width)}

    def _patches(self) -> Iterator[dict[str, Tensor]]:
        """One image cut into patches, flat or square, beside their number along time, height and width."""
        patch = getattr(self.config, "patch_size", None)
        if not isinstance(patch, int):
            return
        counts = [getattr(self.config, n, None) for n in ("in_channels", "in_chans", "num_channels")]
        channels = next((count for count in counts if count), 3)
        frames = getattr(self.config, "temporal_patch_size", None) or 1
        name = "hidden_states" if "hidden_states" in self.names else "pixel_values"
        grid = torch.tensor([[1, GRID, GRID]], device=self.device)
        yield {name: self._numbers(GRID * GRID, channels * frames * patch * patch), "grid_thw": grid}
        yield {name: self._numbers(GRID * GRID, channels, patch, patch), "grid_thw": grid}

    def _with_image_tokens(self, text: dict[str, Tensor], pixels: dict[str, Tensor]) -> dict[str, Tensor]:
        """Text that starts with one place for every patch of the image, if the config has a token for it."""
        token = next(
            (getattr(self.config, n, None) for n in ("image_token_id", "image_token_index") if n), None
        )
        config = getattr(self.config, "vision_config", None)
        patch = getattr(config, "patch_size", None)
        if not isinstance(token, int) or not isinstance(patch, int) or "input_ids" not in text:
            return text
        patches = math.prod(side // patch for side in pixels["pixel_values"].shape[-2:])
        number = getattr(self.config, "image_seq_length", None)
        number = number if isinstance(number, int) and number <= patches else patches
        places = torch.full((1, number), token, device=self.device)
        return text | {"input_ids": torch.cat([places, text["input_ids"]], 1)}

    def _sound(self) -> dict[str, Tensor]:
        if "input_features" in self.names:
            bins = next(
                (
                    getattr(self.config, n)
                    for n in ("num_mel_bins", "input_feat_per_channel")
                    if isinstance(getattr(self.config, n, None), int)
                ),
                80,
            )
            frames = 2 * (getattr(self.config, "max_source_positions", None) or 100)
            return {"input_features": self._numbers(1, bins, frames)}
        return {"input_values": self._numbers(1, 8000)} if "input_values" in self.names else {}

    def by_modules(self, lengths: Sequence[int]) -> Iterator[Any]:
        """Torch's own transformers take streams; embeddings take ids; convolutions images; matrices streams."""
        modules = list(self.model.modules())
        attention = next((m for m in modules if isinstance(m, nn.MultiheadAttention)), None)
        if attention is not None and not any(isinstance(m, nn.Embedding) for m in modules):
            yield from self._streams(attention, lengths[0])
        tables = [m.num_embeddings for m in modules if isinstance(m, nn.Embedding)]
        own = [] if tables else [p.shape[0] for p in self.model.parameters() if p.dim() == 2]
        padding = {
            m.padding_idx for m in modules if isinstance(m, nn.Embedding) and m.padding_idx is not None
        }
        for length in dict.fromkeys((*lengths, min(tables))) if tables else ():  # a table may be of positions
            first = tables[0] if tables[0] >= length else max(tables)
            for size in dict.fromkeys((first, max(tables), tables[0], min(tables))):
                yield from self._extended(random_ids(size, length, self.generator, padding).to(self.device))
        convolves = any(isinstance(m, nn.Conv2d) for m in modules)
        if convolves:
            yield from self._images()
        widths = [m.in_features for m in modules if isinstance(m, nn.Linear)]
        widths += [m.normalized_shape[-1] for m in modules if isinstance(m, nn.LayerNorm)]
        widths += [p.shape[0] for p in self.model.parameters() if p.dim() == 2]
        for width in list(dict.fromkeys(widths))[:3]:  # of a stream, or of patches of an image
            for length in lengths:
                yield from self._extended(self._numbers(1, length, width))
        for size in own[:1]:  # a parameter may be a table of its own
            for length in lengths:
                yield from self._extended(random_ids(size, length, self.generator, set()).to(self.device))
        if not convolves:
            yield from self._images()

    def _streams(self, attention: nn.MultiheadAttention, length: int) -> Iterator[Any]:
        first, second = (1, length) if attention.batch_first else (length, 1)
        stream = self._numbers(first, second, attention.embed_dim)
        yield stream
        yield stream, self._numbers(first, second, attention.embed_dim)

    def _images(self) -> Iterator[Any]:
        convolution = next((m for m in self.model.modules() if isinstance(m, nn.Conv2d)), None)
        channels = [convolution.in_channels] if convolution is not None else [3, 1, 4]
        for channel in channels:
            for side in dict.fromkeys((*self._sides(convolution), *SIDES)):
                yield from self._extended(self._numbers(1, channel, side, side))

    def _sides(self, patches: nn.Conv2d | None) -> Iterator[int]:
        """The image whose patches, with up to five tokens besides, fill a table of positions."""
        if patches is None or patches.stride != patches.kernel_size:
            return
        for parameter in self.model.parameters():
            if parameter.dim() == 3 and parameter.shape[-1] == patches.out_channels:
                for extra in range(6):
                    grid = math.isqrt(max(parameter.shape[-2] - extra, 0))
                    if grid > 1 and grid * grid + extra == parameter.shape[-2]:
                        yield grid * patches.kernel_size[0]

    def _extended(self, main: Tensor) -> Iterator[Any]:
        """The main input, with what else the forward requires: by name, masks are ones, ids are ids, times numbers."""
        required = [name for name, needed in self.names.items() if needed]
        if len(required) == 1 and required[0] in self.keywords:
            yield {required[0]: main}
            return
        others = [self._other(name, main) for name in required[1:]]
        keywords = [name for name in required[1:] if name in self.keywords]
        for values in islice(product(*others), OPTIONS):
            named = dict(zip(required[1:], values, strict=True))
            positional = [value for name, value in named.items() if name not in keywords]
            if keywords:
                yield {required[0]: main} | named
            else:
                yield (main, *positional) if positional else main

    def _other(self, name: str, main: Tensor) -> list[Tensor]:
        """Return what an argument beside the main one may be, likeliest first."""
        name, length = name.lower(), main.shape[1] if main.dim() > 1 else 1
        ones = torch.ones(1, length, dtype=torch.long, device=self.device)
        one, time = torch.ones(1, dtype=torch.long, device=self.device), self._numbers(1).abs()
        again = [main.clone()] if main.dim() < 4 else []
        if "mask" in name:
            return [
                ones,
                ones.bool(),
                ones.to(self.dtype),
                torch.ones(length, length, device=self.device).bool(),
            ]
        if "position" in name or name == "pos":
            places = torch.arange(length, device=self.device)
            return [places[None], places]
        if "segment" in name or "type" in name:
            return [ones - 1]
        if "id" in name.split("_") or "ids" in name or "token" in name or "words" in name:
            return [*again, ones]
        if "label" in name or "class" in name:
            return [one, ones]
        return [time, one, *again]

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)


def _parameters(model: nn.Module, kinds: Sequence[Any] = NAMED) -> dict[str, bool]:
    """Names of the arguments of forward, and whether each must be given."""
    named = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default is inspect.Parameter.empty for p in named if p.kind in kinds}


def _side(config: Any) -> bool:
    return isinstance(getattr(config, "image_size", None), (int, list, tuple))
