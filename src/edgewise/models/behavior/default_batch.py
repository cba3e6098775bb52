"""An input when none is given: ids, pixels or sound shaped from the model's own config, signature and modules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.models.behavior.batch import TOKENS

SIDES = (64, 32, 224, 256, 28, 384)  # of an image, where no config says; the first that the model takes
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
NAMED = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.KEYWORD_ONLY,
)


def default_batches(model: nn.Module) -> Iterator[Any]:
    """Batches that the model may take, likeliest first; drawn from a generator of their own."""
    maker, number = _Maker(model), 0
    for batch in maker.by_config() if getattr(model, "config", None) is not None else ():
        number += 1
        yield batch
    if not number:
        yield from maker.by_modules()


class _Maker:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.config = model, getattr(model, "config", None)
        self.names = _parameters(model)
        self.keywords = _parameters(model, (inspect.Parameter.KEYWORD_ONLY,))  # that no position reaches
        tensors = [*model.parameters(), *model.buffers()]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
        self.generator = torch.Generator().manual_seed(0)

    def by_config(self) -> Iterator[dict[str, Any]]:
        """From most parts of the model to fewest: text with images, text, images, sound."""
        if "grid_thw" in self.names and "input_ids" not in self.names:
            yield from self._patches()
        pixels = self._pixels() if "pixel_values" in self.names else {}
        for length in LENGTHS:
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
        """Distinct while the vocabulary lasts, and none that means something else than itself."""
        values = [getattr(c, name, None) for c in (config, self.config) for name in SPECIAL]
        flat = {i for value in values for i in (value if isinstance(value, (list, tuple)) else [value])}
        allowed = torch.tensor([i for i in range(min(size, 50_000)) if i not in flat] or list(range(size)))
        order = torch.randperm(len(allowed), generator=self.generator)
        return allowed[order.repeat(-(-length // len(order)))[:length]][None].to(self.device)

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
        """Text that starts with one place for every patch of the image, where the config has a token for it."""
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

    def by_modules(self) -> Iterator[Any]:
        """Torch's own transformers take streams; embeddings take ids; the first convolution takes images."""
        attention = next((m for m in self.model.modules() if isinstance(m, nn.MultiheadAttention)), None)
        if attention is not None and not any(isinstance(m, nn.Embedding) for m in self.model.modules()):
            yield from self._streams(attention)
        tables = [m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)]
        for length in dict.fromkeys((*LENGTHS, min(tables))) if tables else ():  # a table may be of positions
            for size in dict.fromkeys((max(tables), tables[0], min(tables))):
                yield from self._extended(
                    torch.randint(size, (1, length), generator=self.generator).to(self.device)
                )
        yield from self._images()
        first = next((m for m in self.model.modules() if isinstance(m, nn.Linear)), None)
        for length in LENGTHS if first is not None else ():
            assert first is not None
            yield from self._extended(self._numbers(1, length, first.in_features))

    def _streams(self, attention: nn.MultiheadAttention) -> Iterator[Any]:
        first, second = (1, TOKENS) if attention.batch_first else (TOKENS, 1)
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
        """The main input, with times and classes for a model whose forward requires more than one argument."""
        required = [name for name, needed in self.names.items() if needed]
        if len(required) == 1 and required[0] in self.keywords:
            yield {required[0]: main}
        elif len(required) <= 1:
            yield main
        elif len(required) == 2:
            yield main, self._numbers(1).abs()
            yield main, torch.ones(1, dtype=torch.long, device=self.device)
            if main.dim() < 4:
                yield main, main.clone()
        elif len(required) == 3:
            yield main, self._numbers(1).abs(), torch.ones(1, dtype=torch.long, device=self.device)

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)


def _parameters(model: nn.Module, kinds: Sequence[Any] = NAMED) -> dict[str, bool]:
    """Names of the arguments of forward, and whether each must be given."""
    named = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default is inspect.Parameter.empty for p in named if p.kind in kinds}


def _side(config: Any) -> bool:
    return isinstance(getattr(config, "image_size", None), (int, list, tuple))
