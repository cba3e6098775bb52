"""Sixth blind list: trainings that look odd and are right, by name; what is odd about each stands beside it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from experiments.preflight import blind_six_kit as kit
from experiments.preflight.blind_six_signals import forecasting, looking, reading
from experiments.preflight.blind_six_steps import pairing, stepping
from experiments.preflight.blind_six_text import SMALL, writing


def words(model: nn.Module, ids: Tensor, **how: Any) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], **how)


def built(name: str, rows: Any = None, **settings: Any) -> kit.Setup:
    """A Hugging Face model of a small config with its own loss."""
    kind = getattr(transformers, name)
    if rows is None:
        rows, settings = [{"input_ids": ids, "labels": ids} for ids in STORIES], settings | {"vocab_size": 24}
    return kit.training(kind(kind.config_class(**settings)), rows, lr=2e-3)


def masked(hide: type[kit.Attention]) -> kit.Setup:
    """A writer whose attention hides what `hide` says."""
    return kit.training(
        kit.Writer(lambda: kit.Layer(48, hide(48, causal=True))), kit.batched(kit.story()), after_8
    )


def after_8(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, 8:-1].transpose(1, 2), ids[:, 9:])


def regrouped(groups: Any, kind: Any = torch.optim.AdamW, **settings: Any) -> kit.Setup:
    model = kit.Writer()
    return stepping(model=model, optimizer=kind(groups(model), **settings))


class Prefix(kit.Attention):
    def hide(self, scores: Tensor) -> Tensor:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        later[:, :8] = False
        return scores.masked_fill(later, float("-inf"))


class Window(kit.Attention):
    def hide(self, scores: Tensor) -> Tensor:
        far = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-4)
        return super().hide(scores).masked_fill(far, float("-inf"))


class Zeroed(kit.Layer):
    def __init__(self) -> None:
        super().__init__(48, kit.Attention(48, causal=True))
        self.scale = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        x = x + self.scale[0] * self.mix(self.norm1(x))
        return x + self.scale[1] * self.mlp(self.norm2(x))


def zeroed() -> kit.Setup:
    model = kit.Writer(Zeroed)
    nn.init.zeros_(model.head.weight)
    return writing(model=model)


def repeated() -> kit.Setup:
    model = kit.Writer(depth=1)
    model.layers.extend([model.layers[0], model.layers[0]])
    return writing(model=model)


class Capped(kit.Writer):
    def forward(self, ids: Tensor) -> Tensor:
        return 15 * (super().forward(ids) / 15).tanh()


class Cosine(kit.Eye):
    def forward(self, images: Tensor) -> Tensor:
        return 12 * F.linear(
            F.normalize(self.states(images)[:, 0], dim=-1), F.normalize(self.head.weight, dim=-1)
        )


class Bag(kit.Reader):
    def __init__(self) -> None:
        super().__init__()
        del self.places

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)


def still(model: Any, batch: Any) -> Tensor:
    """Each view goes to the other, which stands still for it; vectors are kept apart."""
    a, b = model(*batch)
    apart = sum((x.T @ x / len(x) - torch.eye(16) / 16).pow(2).sum() for x in (a, b))
    return apart - (a * b.detach()).sum(-1).mean() - (b * a.detach()).sum(-1).mean()


def sparse_answers() -> kit.Setup:
    """One word of 24 has a label."""
    ids = kit.story()
    labels = ids.masked_fill(torch.arange(24) != 23, -100)
    loss = lambda m, b: F.cross_entropy(m(b[0])[:, :-1].transpose(1, 2), b[1][:, 1:])  # noqa: E731
    return kit.training(kit.Writer(), kit.batched(ids, labels), loss)


def left_padded() -> kit.Setup:
    """Padding (0) on the left, which is hidden from attention; places count from the first real word."""
    ids, real, label = kit.reviews()

    class Left(kit.Reader):
        def embed(self, ids: Tensor) -> Tensor:
            return self.tokens(ids) + self.places[((ids > 0).cumsum(1) - 1).clamp(min=0)]

    return reading(Left(), data=(ids.flip(1), real.flip(1), label))


def missing_targets() -> kit.Setup:
    """Two numbers are told, and half of the targets are NaN and not counted."""
    _, numbers, _ = kit.table()
    target = torch.stack([numbers.sum(1), numbers[:, 0] - numbers[:, 1]], dim=1)
    target[torch.rand(target.shape, generator=kit.seeded(60)) < 0.5] = float("nan")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        known = ~batch[1].isnan()
        return (model(batch[0])[known] - batch[1][known]).pow(2).mean()

    return kit.training(kit.Tower(1, 2), kit.batched(numbers[:, :, None], target), loss)


def noisy() -> kit.Setup:
    """Three labels of ten are drawn by lot."""
    ids, real, label = kit.reviews()
    lot = torch.rand(kit.EXAMPLES, generator=kit.seeded(61)) < 0.3
    return reading(data=(ids, real, torch.where(lot, label.roll(7), label)))


def warming() -> kit.Setup:
    """The rate rises from zero: the first step moves nothing."""
    model = kit.Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1, k / 20))
    return stepping(
        kit.loop(kit.following, lambda *_: rise.step()), model=model, optimizer=optimizer, also=[rise]
    )


def gathered(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
    """Four batches for one step."""
    value = kit.following(model, batch)
    (value / 4).backward()
    if k % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    return value


def by_turns(model: Any, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
    """The head learns in one step, all else in the next."""
    optimizer.zero_grad()
    value = kit.following(model, batch)
    value.backward()
    for name, p in model.named_parameters():
        if name.startswith("head") == bool(k % 2):
            p.grad = None
    optimizer.step()
    return value


def in_bfloat16(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return kit.following(model, ids)


def layered(model: Any) -> list[dict[str, Any]]:
    """A rate for each depth, a hundredth at the entry."""
    parts = {"tokens": 3e-5, "places": 3e-5, "layers.0": 3e-4, "layers.1": 1e-3, "norm": 3e-3, "head": 1e-2}
    return [
        {"params": [p for n, p in model.named_parameters() if n.startswith(s)], "lr": r}
        for s, r in parts.items()
    ]


def quantiles(model: nn.Module, s: Tensor) -> Tensor:
    """Pinball loss of nine quantiles."""
    share, off = torch.arange(1, 10) / 10, s[:, 34:35] - model(s[:, :32, None])
    return torch.maximum(share * off, (share - 1) * off).mean()


def density(model: nn.Module, s: Tensor) -> Tensor:
    """A log density, which may be negative."""
    mean, log = model(s[:, :32, None]).chunk(2, dim=1)
    return (log + 0.5 * ((s[:, 32:33] - mean) / log.exp()) ** 2).mean()


STORIES = kit.batched(kit.story())
GROWN = [ids[:, : 8 + 8 * (k % 3)] for k, ids in enumerate(STORIES)]
T5 = {"d_model": 48, "d_kv": 12, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
SEEN = [{"pixel_values": x, "labels": y} for x, y in kit.batched(kit.level(kit.blobs()[0]), kit.blobs()[1])]
CONTROLS = {
    "prefix_seen_both_ways": lambda: masked(Prefix),
    "window_of_four": lambda: masked(Window),
    "one_layer_three_times": repeated,
    "all_scales_and_the_head_zero": zeroed,
    "logits_capped": lambda: writing(model=Capped()),
    "cosine_classifier": lambda: looking(model=Cosine()),
    "bag_of_words": lambda: reading(Bag()),
    "big_vocabulary_little_used": lambda: writing(model=kit.Writer(vocab=3000)),
    "double_precision": lambda: writing(model=kit.Writer().double()),
    "one_word_of_24_has_a_label": sparse_answers,
    "padding_on_the_left": left_padded,
    "half_of_the_targets_missing": missing_targets,
    "three_labels_of_ten_wrong": noisy,
    "loss_in_bits_with_a_floor": lambda: writing(loss=lambda m, b: words(m, b, label_smoothing=0.1) / 0.6931),
    "sum_of_losses_and_a_tiny_rate": lambda: (
        regrouped(lambda m: m.parameters(), torch.optim.SGD, lr=3e-4)
        | {
            "loss": lambda m, b: words(m, b, reduction="sum"),
            "step": kit.loop(lambda m, b: words(m, b, reduction="sum")),
        }
    ),
    "normalizer_kept_near_one": lambda: writing(
        loss=lambda m, b: words(m, b) + 1e-3 * m(b).logsumexp(-1).pow(2).mean()
    ),
    "margins_many_of_them_met": lambda: looking(loss=lambda m, b: F.multi_margin_loss(m(b[0]), b[1])),
    "eight_yes_or_no": lambda: looking(
        loss=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), F.one_hot(b[1], 8).float())
    ),
    "copying_is_the_task": lambda: built("T5ForConditionalGeneration", d_ff=96, **T5),
    "gpt2": lambda: built("GPT2LMHeadModel", bos_token_id=0, eos_token_id=0, **SMALL),
    "mixtral": lambda: built("MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4, **SMALL),
    "vit": lambda: built(
        "ViTForImageClassification", SEEN, image_size=16, patch_size=4, num_labels=8, **SMALL
    ),
    "autoencoder": lambda: kit.training(
        kit.Tower(1, 12, pooled=True), kit.batched(kit.waves(12)), lambda m, s: F.mse_loss(m(s[..., None]), s)
    ),
    "nine_quantiles": lambda: forecasting(kit.Tower(1, 9), None, None) | {"loss": quantiles},
    "log_density": lambda: forecasting(kit.Tower(1, 2), None, None) | {"loss": density},
    "stopped_gradient": lambda: pairing(still),
    "rate_rises_from_zero": warming,
    "four_batches_for_a_step": lambda: stepping(gathered),
    "head_and_body_by_turns": lambda: stepping(by_turns),
    "autocast": lambda: writing(loss=in_bfloat16),
    "rate_for_each_depth": lambda: regrouped(layered),
    "no_momentum": lambda: regrouped(lambda m: m.parameters(), lr=2e-3, betas=(0.0, 0.98)),
    "one_text_a_batch": lambda: kit.training(
        kit.Writer(), [ids[:1] for ids in STORIES], kit.following, lr=1e-3
    ),
    "texts_of_three_lengths": lambda: kit.training(kit.Writer(), GROWN, kit.following),
}
globals().update({f"control_{name}": make for name, make in CONTROLS.items()})
