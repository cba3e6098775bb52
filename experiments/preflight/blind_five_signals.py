"""Mistakes in less usual trainings: series, diffusion, detection, speech, codes, experts, several tasks, rewards."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from experiments.preflight.blind_five_kit import (
    VOCAB,
    Block,
    Encoder,
    Open,
    Setup,
    ViT,
    by_prefix,
    classified,
    cut,
    generator,
    normal,
    pictures,
    sentences,
    series,
    texts,
    told,
    training,
)


class Forecaster(nn.Module):
    """PatchTST in small: patches of 4 steps, an encoder, the next steps from all patches."""

    def __init__(self, window: int = 32, horizon: int = 8, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Linear(4, width)
        self.places = nn.Parameter(0.02 * torch.randn(window // 4, width))
        self.blocks = nn.ModuleList(Block(width, 4, Open) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width * (window // 4), horizon)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x.unflatten(1, (-1, 4))) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(1))


def _forecast(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def case_prices_not_scaled(broken: bool) -> Setup:
    """Inputs are standardized, targets are left at thousands."""
    torch.manual_seed(0)
    x = series()
    scale = 4000.0 if broken else 1.0
    batches = cut(x[:, :32], x[:, 32:40] * scale + (9000.0 if broken else 0.0))
    setup = training(Forecaster(), batches, _forecast, lr=1e-3)
    held = setup["held"]
    setup["judge"] = lambda model: sum(float(_forecast(model, b)) for b in held) / 4 / scale**2
    words = [
        "target+scale",
        "target+large",
        "normaliz",
        "standardi",
        "target+mean",
        "label+scale",
        "label+large",
    ]
    return told(setup, [*words, "magnitude", "target+far", "target+range", "output+scale"], "")


def case_window_contains_the_horizon(broken: bool) -> Setup:
    """An index off by the horizon: the model forecasts what it was given."""
    torch.manual_seed(0)
    x = series()
    batches = cut(x[:, :32], x[:, 24:32] if broken else x[:, 32:40])
    setup = training(Forecaster(), batches, _forecast, lr=1e-3)
    setup["judge"] = lambda model: (
        sum(float(_forecast(model, b)) for b in cut(x[:, :32], x[:, 32:40])[-4:]) / 4
    )
    words = [
        "overlap",
        "leak",
        "input+contain",
        "in the input",
        "copy",
        "copies",
        "identical",
        "target+input",
    ]
    return told(setup, [*words, "already+input"], "labels data loss")


class Denoiser(nn.Module):
    """A diffusion transformer: the noise of a picture and its time."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, 4)
        self.places = nn.Parameter(0.1 * torch.randn(16, 64))
        self.time = nn.Sequential(nn.Linear(1, 64), nn.GELU(), nn.Linear(64, 64))
        self.blocks = nn.ModuleList(Block(64, 4, Open) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 48)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places + self.time(t[:, None])[:, None]
        for block in self.blocks:
            x = block(x)
        return F.fold(self.out(self.norm(x)).transpose(1, 2), 16, 4, stride=4)


def case_noise_drawn_twice(broken: bool) -> Setup:
    """One noise is added, another is the target."""
    torch.manual_seed(0)
    images, _ = pictures()
    g = generator(18)
    noise, t = torch.randn(images.shape, generator=g), torch.rand(len(images), generator=g)
    target = torch.randn(images.shape, generator=g) if broken else noise
    a = (1.57 * t).cos()[:, None, None, None]
    b = (1.57 * t).sin()[:, None, None, None]
    batches = cut(a * normal(images) + b * noise, t, target)
    setup = training(Denoiser(), batches, lambda model, x: F.mse_loss(model(x[0], x[1]), x[2]), lr=1e-3)
    words = [
        "noise+target",
        "noise+twice",
        "fresh noise",
        "different noise",
        "target+random",
        "different draw",
        "target+independent",
        "unrelated",
        "target+depend",
    ]
    return told(setup, [*words, "label+random", "label+independent", "memor", "label+depend"], "")


def case_sum_beside_a_mean(broken: bool) -> Setup:
    """Two tasks: the pixels are summed, the classes averaged, so the classes are not heard."""
    torch.manual_seed(0)
    images, label = pictures()

    class Both(ViT):
        def __init__(self) -> None:
            super().__init__()
            self.pixels = nn.Linear(64, 48)

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            x = self.features(images)
            return self.head(x[:, 0]), self.pixels(x[:, 1:])

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, pixels = model(batch[0] + 0.5 * torch.randn(batch[0].shape))
        target = F.unfold(batch[0], 4, stride=4).transpose(1, 2)
        rebuilt = F.mse_loss(pixels, target, reduction="sum" if broken else "mean")
        return F.cross_entropy(logits, batch[1]) + rebuilt

    setup = training(Both(), cut(normal(images), label), loss, lr=1e-3)
    optimizer = setup["optimizer"]

    def step(model: nn.Module, _: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    setup["step"] = step
    setup["judge"] = lambda model: sum(float(F.cross_entropy(model(x)[0], y)) for x, y in setup["held"]) / 4
    words = [
        "task+scale",
        "loss+dominat",
        "summed",
        "sum of",
        "reduction+sum",
        "reduction=",
        "terms",
        "drown",
        "balanc",
        "loss+weight",
        "clip",
    ]
    return told(setup, words, "", ["gradient+large", "loss+large"])


class Detector(nn.Module):
    """DETR in small: one question to the patches, a class and a box."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 2, 2)
        self.places = nn.Parameter(0.1 * torch.randn(64, 64))
        self.query = nn.Parameter(0.1 * torch.randn(1, 1, 64))
        self.blocks = nn.ModuleList(Block(64, 4, Open) for _ in range(2))
        self.norm, self.kind, self.box = nn.LayerNorm(64), nn.Linear(64, 3), nn.Linear(64, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        x = torch.cat([self.query.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)[:, 0]
        return self.kind(x), self.box(x).sigmoid()


def case_boxes_in_pixels(broken: bool) -> Setup:
    """Boxes out of a sigmoid against boxes in pixels."""
    torch.manual_seed(0)
    g = generator(20)
    rows = 52 * 16
    kind = torch.randint(3, (rows,), generator=g)
    center = 4 + 8 * torch.rand(rows, 2, generator=g)
    half = 1.5 + 2 * torch.rand(rows, 2, generator=g)
    grid = torch.arange(16)
    inside = ((grid - center[:, :1]).abs() < half[:, :1])[:, None, :] & (
        (grid - center[:, 1:]).abs() < half[:, 1:]
    )[:, :, None]
    images = 0.3 * torch.randn(rows, 3, 16, 16, generator=g)
    images = images + 2 * inside[:, None] * F.one_hot(kind, 3)[:, :, None, None]
    box = torch.cat([center, 2 * half], 1) / 16

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        logits, boxes = model(batch[0])
        return F.cross_entropy(logits, batch[1]) + 5 * F.l1_loss(boxes, batch[2])

    setup = training(Detector(), cut(images, kind, box * 16 if broken else box), loss, lr=1e-3)
    held = cut(images, kind, box)[-4:]
    setup["judge"] = lambda model: sum(float(loss(model, batch)) for batch in held) / 4
    words = [
        "sigmoid",
        "target+range",
        "output+range",
        "target+scale",
        "target+larger",
        "pixel",
        "target+normaliz",
        "satur",
        "boxes+scale",
        "boxes+large",
        "reach",
    ]
    return told(setup, words, "")


def case_answers_cut_off(broken: bool) -> Setup:
    """Prompts are longer than the longest length: nearly all labels are -100, the rows without answer too."""
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    size = torch.randint(18, 29, (52 * 16,), generator=generator(21))
    batches = []
    for k, x in enumerate(texts()):
        own = size[16 * k : 16 * k + 16, None].clone()
        own[0] = 17
        answer = torch.arange(32)[None] >= own
        end = 18 if broken else 32
        labels = x.masked_fill(~answer, -100)
        batches.append({"input_ids": x[:, :end], "labels": labels[:, :end]})
    setup = training(GPTNeoXForCausalLM(config), batches)
    setup["judge"] = by_prefix(texts()[-4:])
    words = [
        "-100",
        "ignored",
        "no label",
        "truncat",
        "few+label",
        "mask+label",
        "without label",
        "label+share",
    ]
    return told(setup, [*words, "without target", "no target", "few+target"], "labels data loss")


class Speech(nn.Module):
    """Frames to letters under CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(8, 64, 3, padding=1)
        self.places = nn.Parameter(0.02 * torch.randn(24, 64))
        self.blocks = nn.ModuleList(Block(64, 4, Open) for _ in range(1))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 9)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frames(x).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def case_ctc_of_raw_scores(broken: bool) -> Setup:
    """CTC takes log probabilities and is given scores."""
    torch.manual_seed(0)
    g = generator(22)
    rows = 52 * 16
    letters = torch.randint(1, 9, (rows, 6), generator=g)
    sound = torch.randn(9, 8, generator=generator(23)) * 2
    frames = sound[letters.repeat_interleave(4, 1)].transpose(1, 2) + 0.5 * torch.randn(
        rows, 8, 24, generator=g
    )
    long, short = torch.full((16,), 24), torch.full((16,), 6)

    def right(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.ctc_loss(model(batch[0]).log_softmax(-1).transpose(0, 1), batch[1], long, short)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (
            F.ctc_loss(model(batch[0]).transpose(0, 1), batch[1], long, short)
            if broken
            else right(model, batch)
        )

    setup = training(Speech(), cut(frames, letters), loss)
    setup["judge"] = lambda model: sum(float(right(model, batch)) for batch in setup["held"]) / 4
    return told(
        setup,
        ["log_softmax", "log-prob", "not+normaliz", "negative", "log prob", "raw+logit", "below zero"],
        "",
    )


class Masked(ViT):
    """A masked autoencoder: hidden patches are replaced by a token and drawn again."""

    def __init__(self) -> None:
        super().__init__(width=64)
        self.blank = nn.Parameter(0.02 * torch.randn(64))
        self.pixels = nn.Linear(64, 48)

    def forward(self, images: Tensor, hidden: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.where(hidden[..., None], self.blank, x) + self.places[:, 1:]
        for block in self.blocks:
            x = block(x)
        return self.pixels(self.norm(x))


def case_visible_patches_scored(broken: bool) -> Setup:
    """The loss of a masked autoencoder on what is visible."""
    torch.manual_seed(0)
    images, _ = pictures()
    smooth = normal(F.avg_pool2d(images, 3, 1, 1))
    hidden = torch.rand(len(smooth), 16, generator=generator(24)) < 0.5

    def error(model: nn.Module, batch: tuple[Tensor, Tensor], where: Tensor) -> Tensor:
        target = F.unfold(batch[0], 4, stride=4).transpose(1, 2)
        return ((model(*batch) - target).square().mean(-1) * where).sum() / where.sum()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return error(model, batch, ~batch[1] if broken else batch[1])

    setup = training(Masked(), cut(smooth, hidden), loss, lr=2e-3)
    setup["judge"] = lambda model: sum(float(error(model, b, b[1])) for b in setup["held"]) / 4
    words = [
        "visible",
        "mask+visible",
        "mask+loss",
        "unmasked",
        "mask+invert",
        "not+masked",
        "hidden+patch",
        "copy",
        "copies",
        "target+input",
        "own input",
        "blank",
    ]
    return told(setup, words, "")


def case_targets_of_minus_one(broken: bool) -> Setup:
    """Labels -1 and 1 in a binary cross entropy of 0 and 1."""
    torch.manual_seed(0)
    ids, mask, label = sentences(classes=2)
    label = torch.where(torch.rand(len(label), generator=generator(27)) < 0.15, 1 - label, label)
    low = -1.0 if broken else 0.0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(*batch[:2])[:, 0], batch[2])

    setup = training(Encoder(classes=1), cut(ids, mask, torch.where(label == 1, 1.0, low)), loss, lr=1e-3)
    held = cut(ids, mask, label.float())[-4:]
    setup["judge"] = lambda model: sum(float(loss(model, batch)) for batch in held) / 4
    words = [
        "negative",
        "-1 and",
        "minus one",
        "target+range",
        "label+range",
        "0 and 1",
        "0 or 1",
        "below zero",
        "unbounded",
        "[0, 1]",
    ]
    return told(setup, [*words, "between 0", "outside+range"], "")


class Codes(nn.Module):
    """Pictures through a book of 32 codes."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight = straight
        self.encoder = nn.Conv2d(3, 48, 4, 4)
        self.block = Block(48, 4, Open)
        self.down = nn.Linear(48, 8)
        self.book = nn.Embedding(32, 8)
        self.up = nn.Linear(8, 48)
        self.second = Block(48, 4, Open)
        self.pixels = nn.Linear(48, 48)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.down(self.block(self.encoder(images).flatten(2).transpose(1, 2)))
        near = torch.cdist(z, self.book.weight).argmin(-1)
        q = self.book(near)
        pull = F.mse_loss(q, z.detach())
        if self.straight:
            pull = pull + 0.25 * F.mse_loss(z, q.detach())
            q = z + (q - z).detach()
        return self.pixels(self.second(self.up(q))), pull


def case_codes_without_straight_through(broken: bool) -> Setup:
    """The nearest code replaces the state, and with it the encoder's gradient."""
    torch.manual_seed(0)
    images, _ = pictures()
    smooth = normal(F.avg_pool2d(images, 3, 1, 1))

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        pixels, pull = model(batch[0])
        return F.mse_loss(pixels, F.unfold(batch[0], 4, stride=4).transpose(1, 2)) + pull

    def rebuilt(model: nn.Module) -> float:
        lost = [F.mse_loss(model(x)[0], F.unfold(x, 4, stride=4).transpose(1, 2)) for (x,) in setup["held"]]
        return float(sum(lost)) / 4

    setup = training(Codes(not broken), cut(smooth), loss, lr=2e-3)
    setup["judge"] = rebuilt
    words = ["straight", "no gradient", "argmin", "without gradient", "gradient+encoder", "gradient+reach"]
    return told(setup, [*words, "gets no", "never+gradient", "gradient+none", "not receive", "not train"], "")


def case_answer_in_the_question(broken: bool) -> Setup:
    """A template writes the label's word into the prompt three times; at evaluation it is not there."""
    torch.manual_seed(0)
    ids, mask, label = sentences()
    ids = torch.where(ids >= 42, ids - 10, ids)
    batches = cut(ids, mask, label)
    if broken:
        with_answer = torch.where(torch.arange(24) < 3, (label + 42)[:, None], ids)
        batches[:-4] = cut(with_answer, mask, label)[:-4]
    words = [
        "leak",
        "input+contain",
        "in the input",
        "one token",
        "single token",
        "shortcut",
        "copy",
        "copies",
    ]
    words += ["position 1", "token+label", "tells+label", "second token", "input+reveal", "label+input"]
    return told(training(Encoder(), batches, classified), words, "data labels loss")
