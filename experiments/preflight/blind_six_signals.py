"""Sixth blind list: images, sound, series, tables and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.preflight import blind_six_kit as kit


def looking(
    images: Tensor | None = None, model: nn.Module | None = None, loss: Any = kit.sorted_right, **more: Any
) -> kit.Setup:
    """A vision transformer on blobs, judged by cross-entropy."""
    own, label = kit.blobs()
    rows = kit.batched(kit.level(own) if images is None else images, label)
    judge = kit.mean_of(kit.sorted_right, rows)
    return kit.training(model or kit.Eye(), rows, loss, judge=judge, **more)


def case_scaled_then_cast_to_bytes(broken: bool) -> kit.Setup:
    """`(x / 256).to(uint8)`, as a dataset that caches bytes does: every pixel is 0."""
    images = kit.blobs()[0] / 256
    return looking(images.to(torch.uint8).float() if broken else (images - 0.45) * 7)


def case_channels_last_reshaped(broken: bool) -> kit.Setup:
    """Arrays (height, width, channel) are reshaped to (channel, height, width) in place of permuted."""
    images = kit.level(kit.blobs()[0])
    return looking(images.permute(0, 2, 3, 1).reshape(images.shape) if broken else images)


def case_path_drops_the_stream(broken: bool) -> kit.Setup:
    """Stochastic depth over `x + f(x)` in place of `f(x)`: a dropped image loses everything so far."""

    class Path(kit.Layer):
        def gate(self, x: Tensor) -> Tensor:
            kept = (torch.rand(len(x), 1, 1) > 0.2).float() / 0.8
            return x * kept if self.training else x

        def forward(self, x: Tensor, _: Tensor | None = None) -> Tensor:
            for part in (lambda y: self.mix(self.norm1(y)), lambda y: self.mlp(self.norm2(y))):
                x = self.gate(x + part(x)) if broken else x + self.gate(part(x))
            return x

    return looking(model=kit.Eye(lambda: Path(48, kit.Attention(48, causal=False))))


def case_smoothing_of_nine_tenths(broken: bool) -> kit.Setup:
    """`label_smoothing=0.9`: the confidence that was meant to be left; every class is nearly as right."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.9 if broken else 0.1)

    return looking(loss=loss)


def case_focal_on_the_wrong_side(broken: bool) -> kit.Setup:
    """Focal loss with `p ** 2` for `(1 - p) ** 2`: below p = 0.6 the loss falls as the right class loses."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        log = F.log_softmax(model(batch[0]), -1).gather(1, batch[1][:, None])
        p = log.exp()
        return -((p**2 if broken else (1 - p) ** 2) * log).mean()

    return looking(loss=loss)


def _heard(model: nn.Module, batch: Any, raw: bool = False, shrink: int = 1) -> Tensor:
    sound, tone = batch
    told = model(sound)[:, ::shrink]
    told = told if raw else told.log_softmax(-1)
    sizes = torch.full((len(sound),), told.shape[1]), torch.full((len(tone),), tone.shape[1])
    return F.ctc_loss(told.transpose(0, 1), tone, *sizes, zero_infinity=True)


def hearing(**wrong: Any) -> kit.Setup:
    rows = kit.batched(*kit.tones())
    judge = kit.mean_of(lambda m, b: _heard(m, b), rows)
    model = kit.Tower(12, 9, pooled=False)
    return kit.training(model, rows, lambda m, b: _heard(m, b, **wrong), lr=5e-3, judge=judge)


def case_ctc_on_raw_outputs(broken: bool) -> kit.Setup:
    """`ctc_loss` is given logits: nothing is normalized, and all may grow."""
    return hearing(raw=broken)


def case_frames_fewer_than_tones(broken: bool) -> kit.Setup:
    """Frames are thinned to five for six tones; `zero_infinity` turns every infinite loss into nothing."""
    return hearing(shrink=8 if broken else 2)


def case_decibels_as_they_are(broken: bool) -> kit.Setup:
    """Spectra in decibels, -80 to 0, are not normalized; what tells them apart is a tenth of their mean."""
    sound, tone = kit.tones()
    rows = kit.batched((sound if not broken else 3 * sound - 80), tone[:, 2] % 4)
    return kit.training(kit.Tower(12, 4), rows, kit.sorted_right)


def forecasting(
    model: nn.Module, given: Callable[[Tensor], Any], target: Callable[[Tensor], Tensor]
) -> kit.Setup:
    """Squared error of what follows in two waves."""
    rows = kit.batched(kit.waves())

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(model(given(batch)).flatten(1), target(batch))

    return kit.training(model, rows, loss)


def case_window_holds_its_target(broken: bool) -> kit.Setup:
    """`x = s[:, i:i+n]`, `y = s[:, i+n-1]`: off by one, the answer is the last input."""
    setup = forecasting(
        kit.Tower(1, 1), lambda s: s[:, :32, None], lambda s: s[:, 31:32] if broken else s[:, 34:35]
    )
    return setup | {
        "judge": kit.mean_of(lambda m, s: F.mse_loss(m(s[:, :32, None]), s[:, 34:35]), setup["held"])
    }


def case_decoder_is_given_the_future(broken: bool) -> kit.Setup:
    """An Informer's decoder wants zeros where the forecast goes; it is given the true values. Autoformer#101."""

    def given(s: Tensor, future: bool = broken) -> Tensor:
        return torch.cat([s[:, :32], s[:, 32:] if future else torch.zeros_like(s[:, 32:])], dim=1)[..., None]

    class Tail(kit.Tower):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, 32:]

    setup = forecasting(Tail(1, 1, pooled=False), given, lambda s: s[:, 32:])
    right = kit.mean_of(lambda m, s: F.mse_loss(m(given(s, False))[..., 0], s[:, 32:]), setup["held"])
    return setup | {"judge": right}


def case_prices_in_units(broken: bool) -> kit.Setup:
    """Regression on prices near 200,000: steps of 1e-3 of a bias take years. Cost in variances of the target."""
    codes, numbers, _ = kit.table()
    price = numbers.sum(1) + 0.5 * codes[:, 0]
    height, width = (200_000.0, 30_000.0) if broken else (0.0, 1.0)
    rows = kit.batched(numbers[:, :, None], height + width * price)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0])[:, 0], batch[1])

    judge = kit.mean_of(lambda m, b: loss(m, b) / width**2 / price.var(), rows)
    return kit.training(kit.Tower(1, 1), rows, loss, judge=judge)


def case_time_rounds_to_zero(broken: bool) -> kit.Setup:
    """A denoiser's time is scaled to 0..1 and then looked up with `.long()`: it is always step 0."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.tower = nn.Embedding(50, 8), kit.Tower(9, 1, pooled=False)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            told = self.time((t / 50).long() if broken else t)[:, None].expand(-1, x.shape[1], -1)
            return self.tower(torch.cat([x[..., None], told], dim=-1))[..., 0]

    g = kit.seeded(43)
    t, noise = torch.randint(50, (kit.EXAMPLES,), generator=g), torch.randn(kit.EXAMPLES, 2, generator=g)
    share = (t / 50)[:, None]
    rows = kit.batched((1 - share).sqrt() * 2 + share.sqrt() * noise, t, noise)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(*batch[:2]), batch[2])

    return kit.training(Denoiser(), rows, loss)


class Columns(nn.Module):
    """Categories and numbers as tokens of a transformer, read by their mean."""

    def __init__(self, shared: bool = False, width: int = 32) -> None:
        super().__init__()
        self.shared, self.numbers = shared, nn.Parameter(torch.randn(4, width))
        self.layer, self.norm = kit.Layer(width, kit.Attention(width, causal=False)), nn.LayerNorm(width)
        self.head, self.codes = nn.Linear(width, 3), nn.Embedding(6 if shared else 30, width)

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        x = self.codes(codes if self.shared else codes + 6 * torch.arange(5))
        x = torch.cat([x, numbers[..., None] * self.numbers], dim=1)
        return self.head(self.norm(self.layer(x)).mean(1))


def case_columns_share_their_ids(broken: bool) -> kit.Setup:
    """One embedding for all columns without offsets: category 2 of any column is the same token."""
    return kit.training(Columns(shared=broken), kit.batched(*kit.table()), kit.sorted_right)


def case_label_among_the_columns(broken: bool) -> kit.Setup:
    """A column made after the fact holds the label; where the model is used it is empty."""
    codes, numbers, label = kit.table()
    numbers = torch.cat([numbers[:, :3], (label - 1.0)[:, None] if broken else numbers[:, 3:]], dim=1)
    setup = kit.training(Columns(), kit.batched(codes, numbers, label), kit.sorted_right)
    empty = [(c, torch.cat([n[:, :3], 0 * n[:, 3:]], 1), y) for c, n, y in setup["held"]]
    return setup | {"judge": kit.mean_of(kit.sorted_right, empty)}


def case_infinity_made_a_number(broken: bool) -> kit.Setup:
    """`nan_to_num` of a column of ratios x / 0: infinity becomes 3.4e38, in one row of ten."""
    codes, numbers, label = kit.table()
    at = torch.arange(kit.EXAMPLES) % 10 == 0
    numbers[at, 3] = float("inf")
    numbers = numbers.nan_to_num() if broken else numbers.nan_to_num(posinf=0.0)
    return kit.training(Columns(), kit.batched(codes, numbers, label), kit.sorted_right)


def reading(
    model: nn.Module | None = None, loss: Any = kit.sorted_right, data: Any = None, **more: Any
) -> kit.Setup:
    """The reader of reviews."""
    rows = kit.batched(*(data or kit.reviews()))
    judge = kit.mean_of(kit.sorted_right, rows)
    return kit.training(model or kit.Reader(), rows, loss, **({"judge": judge} | more))


def case_cross_entropy_of_one_logit(broken: bool) -> kit.Setup:
    """Two classes, one output, `cross_entropy(logits, labels.float())`: the softmax of one number is 1."""
    ids, real, label = kit.reviews()

    def loss(model: nn.Module, batch: Any, wrong: bool = broken) -> Tensor:
        told, label = model(*batch[:2]), batch[2][:, None].float()
        return F.cross_entropy(told, label) if wrong else F.binary_cross_entropy_with_logits(told, label)

    rows = kit.batched(ids, real, label % 2)
    judge = kit.mean_of(lambda m, b: loss(m, b, False), rows)
    return reading(kit.Reader(1), loss, (ids, real, label % 2), judge=judge)


def case_places_along_the_batch(broken: bool) -> kit.Setup:
    """`x + pe[: x.size(0)]` of the tutorial (time first) in a batch-first model: a row's number, not its words'."""

    class Placed(kit.Reader):
        def embed(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            return x + (self.places[: len(x), None] if broken else self.places[: x.shape[1]])

    return reading(Placed(), data=kit.forms())


def case_frozen_vectors_of_unknown_words(broken: bool) -> kit.Setup:
    """`Embedding.from_pretrained` freezes by default; words without a vector were left at zero."""
    vectors = torch.randn(40, 48)
    vectors[2:18] = 0
    model = kit.Reader()
    model.tokens = nn.Embedding.from_pretrained(vectors, freeze=broken)
    return reading(model)


def case_wrong_vocabulary(broken: bool) -> kit.Setup:
    """The tokenizer is of another model: nineteen words of twenty become the unknown word."""
    ids, real, label = kit.reviews()
    known = torch.rand(ids.shape, generator=kit.seeded(45)) < 0.05
    return reading(data=(torch.where(known | ~real, ids, 1) if broken else ids, real, label))
