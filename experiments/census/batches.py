"""An input that a model accepts, made from its forward signature and config: 4 sequences of 40 tokens, or images."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS = 4, 40
IMAGE, DETECTION = 64, 160  # pixels; detectors see a grid 32 times smaller, and need more than a few tokens
FIRST_ID = 120  # below are the ids that the small configs give to images, audio and padding
Batch = dict[str, Any]


def find_batch(model: nn.Module) -> tuple[Batch | None, str]:
    """The first candidate on which the model runs, or None and what the model said to the first without labels."""
    said: dict[bool, str] = {}
    for candidate in candidates(model):
        try:
            with torch.no_grad():
                model(**candidate)
        except Exception as error:  # noqa: BLE001  whatever a stranger's forward raises, the next candidate is tried
            said.setdefault("labels" in candidate, f"{type(error).__name__}: {error}".splitlines()[0][:200])
        else:
            return candidate, ""
    return None, said.get(False) or "its forward takes neither ids, pixels, a spectrogram nor a waveform"


def candidates(model: nn.Module) -> Iterator[Batch]:
    """With a loss where the model can give one, then without; the richest input first."""
    names = set(inspect.signature(model.forward).parameters)
    for inputs in _inputs(model, names):
        for extra in _extras(names, inputs):
            yield {**inputs, **extra}


def _extras(names: set[str], inputs: Batch) -> Iterator[Batch]:
    quiet = {"use_cache": False} if "use_cache" in names else {}
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    if "labels" in names and ids is not None:
        yield {"labels": ids, **quiet}
    if "labels" in names and "pixel_values" in inputs and ids is None:
        yield {"labels": torch.arange(BATCH) % 2, **quiet}
    yield quiet
    if quiet:
        yield {}


def _inputs(model: nn.Module, names: set[str]) -> Iterator[Batch]:
    config = getattr(model, "config", None)
    if "grid_thw" in names:
        yield from _patches(config, names)
    text = _text(config, names) if "input_ids" in names else {}
    for pixels in _pixels(config, names):
        yield {**text, **pixels} if text else pixels
        if text:
            yield pixels
    if text:
        yield text
        yield {"input_ids": text["input_ids"]}
    yield from _sound(config, names)


def _text(config: Any, names: set[str]) -> Batch:
    draw = torch.Generator().manual_seed(0)
    size = _find(config, "vocab_size", 512)
    first = max(min(FIRST_ID, size // 2, size - TOKENS), 0)
    if size - first >= TOKENS:  # no token twice: theory starts from one overlap for every pair
        ids = torch.stack(
            [first + torch.randperm(size - first, generator=draw)[:TOKENS] for _ in range(BATCH)]
        )
    else:
        ids = torch.randint(first, size, (BATCH, TOKENS), generator=draw)
    batch = {"input_ids": ids}
    if "decoder_input_ids" in names:
        batch["decoder_input_ids"] = ids.roll(1, dims=0)
    if "bbox" in names:
        batch["bbox"] = torch.zeros(BATCH, TOKENS, 4, dtype=torch.long)
    return batch


def _pixels(config: Any, names: set[str]) -> Iterator[Batch]:
    if "pixel_values" not in names and "pixel_values_videos" not in names:
        return
    name = "pixel_values" if "pixel_values" in names else "pixel_values_videos"
    channels, frames = _find(config, "num_channels", 3), _find(config, "num_frames", 0)
    first = DETECTION if "pixel_mask" in names else IMAGE
    for size in dict.fromkeys((first, _size(config), 224)):
        shape = (BATCH, channels, size, size)
        if frames:
            yield {name: _noise(BATCH, frames, *shape[1:])}
        if "image_attention_mask" in names:
            mask = torch.ones(BATCH, TOKENS, 1, dtype=torch.long)
            yield {name: _noise(BATCH, 1, *shape[1:]), "image_attention_mask": mask}
        yield {name: _noise(*shape)}


def _patches(config: Any, names: set[str]) -> Iterator[Batch]:
    """Images already cut into patches and laid end to end, with the number of patches along time, height and width."""
    name = "hidden_states" if "hidden_states" in names else "pixel_values"
    channels = next(
        (x for x in (_find(config, n, 0) for n in ("in_channels", "in_chans", "num_channels")) if x), 3
    )
    patch, frames = _find(config, "patch_size", 8), _find(config, "temporal_patch_size", 1)
    grid = torch.tensor([[1, 8, 8]] * BATCH)
    yield {name: _noise(BATCH * 64, channels * frames * patch * patch), "grid_thw": grid}
    yield {name: _noise(BATCH * 64, channels, patch, patch), "grid_thw": grid}


def _sound(config: Any, names: set[str]) -> Iterator[Batch]:
    if "input_features" in names:
        bins = next(
            (x for x in (_find(config, n, 0) for n in ("num_mel_bins", "feature_size", "n_mels")) if x), 80
        )
        length = 2 * _find(config, "max_source_positions", 40)
        for shape in ((BATCH, bins, length), (BATCH, 80, bins), (BATCH, 160, 2 * bins), (BATCH, bins, 3000)):
            yield _with_decoder({"input_features": _noise(*shape)}, config, names)
    if "input_values" in names:
        length, bins = _find(config, "max_length", 1024), _find(config, "num_mel_bins", 0)
        for shape in ((BATCH, 13000), (BATCH, 1, 13000), (BATCH, length, bins), (BATCH, 80, 80)):
            if min(shape) > 0:
                yield _with_decoder({"input_values": _noise(*shape)}, config, names)


def _with_decoder(batch: Batch, config: Any, names: set[str]) -> Batch:
    if "decoder_input_ids" in names:
        batch["decoder_input_ids"] = _text(config, set())["input_ids"]
    return batch


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _size(config: Any) -> int:
    size = _find(config, "image_size", 64)
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def _find(config: Any, name: str, default: Any) -> Any:
    """A value of a config, or of the first of its parts that has it."""
    value = getattr(config, name, None)
    if value is not None:
        return value
    parts = [getattr(config, key, None) for key in getattr(type(config), "sub_configs", None) or ()]
    values = [_find(part, name, None) for part in parts if part is not None]
    return next((value for value in values if value is not None), default)
