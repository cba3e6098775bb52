"""Fourth blind list: mistakes in trainings on images, sound, series, actions and noise."""

# ruff: noqa: E501, ARG001
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from experiments.preflight.blind_four_data import (
    HELD,
    adamw,
    blobs,
    encoder,
    gratings,
    marked,
    patches,
    series,
    source,
    tones,
    training,
    truth,
)


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def case_clip_of_a_spent_generator(broken: bool) -> dict:
    """`params` is a generator: the optimizer used it up, and clip_grad_norm_ gets nothing to clip.

    Series with rare huge values, squared error and SGD, which needs the clipping.
    """

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.place = nn.Linear(4, 32), nn.Parameter(0.02 * torch.randn(8, 32))
            self.encode, self.head = encoder(), nn.Linear(32, 1)

        def forward(self, past: Tensor) -> Tensor:
            return self.head(self.encode(self.inlet(past.view(-1, 8, 4)) + self.place).mean(1))[:, 0]

    model = Forecast()
    params = (p for p in model.parameters() if p.requires_grad)
    optimizer = torch.optim.SGD(params, lr=0.1)

    def stream(k: int, rows: int = 32, spikes: bool = True) -> tuple[Tensor, Tensor]:
        waves = series(k, rows, 33)
        past, target = waves[:, :32], waves[:, 32]
        if spikes:
            draw = source(k + 1)
            rare = torch.rand(rows, generator=draw) < 0.04
            target = target + rare * 80 * torch.randn(rows, generator=draw)
        return past, target

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: tuple, k: int) -> Tensor:
        o.zero_grad()
        value = loss(m, batch)
        value.backward()
        nn.utils.clip_grad_norm_(params if broken else list(m.parameters()), 0.3)
        o.step()
        return value

    words = [
        ["clip"],
        ["not", "clipped"],
        ["gradient", "large"],
        ["explod"],
        ["spike"],
        ["outlier"],
        ["diverge"],
    ]
    words += [["rate", "high"], ["too large"], ["too high"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256, False))), loss=loss, step=step, optimizer=optimizer,
        truth=truth("clip_of_a_spent_generator", words, ["step", "optimizer"], [["loss"], ["gradient"], ["target"]]),
    )  # fmt: skip


def case_returns_drown_the_policy(broken: bool) -> dict:
    """Actor and critic share a body; returns of about 2000 are regressed raw, and the clipped gradient is the critic's."""

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.encode = nn.Embedding(40, 32), encoder()
            self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

        def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
            state = self.encode(self.embed(seen)).mean(1)
            return self.actor(state), self.critic(state)[:, 0]

    model = ActorCritic()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor, Tensor]:
        seen, action = marked(k, rows)
        return seen, action, 2000 + 500 * torch.randn(rows, generator=source(k + 9))

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        policy, value = m(batch[0])
        scaled = batch[2] if broken else (batch[2] - 2000) / 500
        return F.cross_entropy(policy, batch[1]) + 0.5 * F.mse_loss(value, scaled)

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: tuple, k: int) -> Tensor:
        o.zero_grad()
        value = loss(m, batch)
        value.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        o.step()
        return value

    def held(m: nn.Module) -> float:
        batch = stream(HELD, 256)
        return float(F.cross_entropy(m(batch[0])[0], batch[1]))

    words = [
        ["target", "large"],
        ["target", "scale"],
        ["regression", "scale"],
        ["unscaled"],
        ["dominat"],
        ["outweigh"],
    ]
    words += [["normali", "target"], ["drown"], ["swamp"], ["standardi"], ["far", "target"], ["clip"]]
    return training(
        model, stream, held, loss=loss, step=step, optimizer=torch.optim.SGD(model.parameters(), 0.2, momentum=0.9),
        truth=truth("returns_drown_the_policy", words, ["labels", "loss", "data", "critic", "step"],
                    [["gradient"], ["loss"]]),
    )  # fmt: skip


def case_divergence_summed_reconstruction_averaged(broken: bool) -> dict:
    """Variational autoencoder: the divergence is summed over batch and code, the reconstruction is averaged.

    github.com/wiseodd/generative-models/issues/40, github.com/zdebruine/MMVAE/pull/19.
    """

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.moments = nn.Linear(48, 32), encoder(32, 1), nn.Linear(32, 16)
            self.start, self.decode = nn.Linear(8, 32), encoder(32, 1)
            self.place, self.outlet = nn.Parameter(0.1 * torch.randn(16, 32)), nn.Linear(32, 48)

        def forward(self, cut: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, spread = self.moments(self.encode(self.inlet(cut) + self.place).mean(1)).chunk(2, -1)
            code = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
            return self.outlet(self.decode(self.start(code)[:, None] + self.place)), mean, spread

    model = Variational()

    def stream(k: int, rows: int = 32) -> Tensor:
        draw = source(k)
        color = torch.randn(rows, 1, 3, generator=draw).repeat_interleave(16, 2)
        return color + 0.2 * torch.randn(rows, 16, 48, generator=draw)

    def loss(m: nn.Module, cut: Tensor) -> Tensor:
        out, mean, spread = m(cut)
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp())
        return F.mse_loss(out, cut) + (divergence.sum() if broken else 0.01 * divergence.mean())

    def held(m: nn.Module) -> float:
        return float(F.mse_loss(m(stream(HELD, 128))[0], stream(HELD, 128)))

    words = [
        [" kl"],
        ["kullback"],
        ["divergence"],
        ["collapse"],
        ["outweigh"],
        ["dominat"],
        ["sum", "mean"],
        ["regulari"],
        ["penalty"],
    ]
    words += [
        ["loss term"],
        ["term of the loss"],
        ["reduction"],
        ["batch size"],
        ["input", "no effect"],
        ["does not depend"],
    ]
    return training(
        model, stream, held, loss=loss, optimizer=adamw(model, 4e-3),
        truth=truth("divergence_summed_reconstruction_averaged", words, ["loss", "moments", "model", "step"],
                    [["gradient"], ["sum"]]),
    )  # fmt: skip


def case_logit_scale_without_its_log(broken: bool) -> dict:
    """Image and text towers: the scale is exp(0.07) = 1.07; its parameter should hold log(1 / 0.07)."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.Flatten(2))
            self.look, self.embed, self.read = encoder(32, 1), nn.Embedding(16, 32), encoder(32, 1)
            self.place = nn.Parameter(0.1 * torch.randn(16, 32))
            self.to_image, self.to_text = nn.Linear(32, 32), nn.Linear(32, 32)
            self.logit_scale = nn.Parameter(torch.tensor(0.07 if broken else math.log(1 / 0.07)))

        def forward(self, image: Tensor, words: Tensor) -> Tensor:
            one = F.normalize(self.to_image(self.look(self.image(image).mT + self.place).mean(1)), dim=-1)
            two = F.normalize(self.to_text(self.read(self.embed(words)).mean(1)), dim=-1)
            return self.logit_scale.exp() * one @ two.mT

    model = Towers()

    def stream(k: int, rows: int = 16) -> tuple[Tensor, Tensor]:
        image, row, column = blobs(k, 80)
        first = [
            (row * 4 + column).eq(n).nonzero()[0, 0] for n in range(16) if (row * 4 + column).eq(n).any()
        ]
        pick = torch.stack(first)[torch.randperm(len(first), generator=source(k))][:rows]
        draw = torch.randint(8, 16, (len(pick), 1), generator=source(k))
        return image[pick], torch.cat([row[pick, None], 4 + column[pick, None], draw], 1)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        scores, own = m(*batch), torch.arange(len(batch[0]))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2

    words = [
        ["scale"],
        ["temperature"],
        ["cosine"],
        ["logits", "small"],
        ["logits", "range"],
        ["bounded"],
        ["logit"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD))), loss=loss, optimizer=adamw(model, 2e-3),
        truth=truth("logit_scale_without_its_log", words, ["logit_scale", "model", "loss"], [["cannot reach"]]),
    )  # fmt: skip


def case_ctc_of_raw_scores(broken: bool) -> dict:
    """CTC is fed scores without log_softmax: the loss falls below zero and has no end.

    discuss.pytorch.org/t/ctc-loss-is-negative/200771.
    """

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(1, 32, 16, 8), nn.GELU(), nn.Conv1d(32, 32, 4, 2), nn.GELU())
            self.encode, self.head = encoder(), nn.Linear(32, 6)

        def forward(self, sound: Tensor) -> Tensor:
            return self.head(self.encode(self.front(sound[:, None]).mT)).transpose(0, 1)

    model = Speech()

    def stream(k: int, rows: int = 16) -> tuple[Tensor, Tensor]:
        parts = [tones(3 * k + n, rows, 96) for n in range(3)]
        return torch.cat([part[0] for part in parts], 1), 1 + torch.stack([part[1] for part in parts], 1)

    def loss(m: nn.Module, batch: tuple, right: bool = not broken) -> Tensor:
        scores = m(batch[0])
        rows, size = torch.full((len(batch[0]),), len(scores)), torch.full((len(batch[0]),), 3)
        return F.ctc_loss(scores.log_softmax(-1) if right else scores, batch[1], rows, size)

    words = [
        ["log_softmax"],
        ["negative", "loss"],
        ["below", "zero"],
        ["log", "probabilit"],
        ["normali"],
        ["raw score"],
        ["raw logit"],
        ["raw output"],
    ]
    words += [["unbounded"], ["softmax"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 64), True)), loss=loss, optimizer=adamw(model, 3e-3),
        truth=truth("ctc_of_raw_scores", words, ["loss", "head", "model", "labels"], [["ctc"]]),
    )  # fmt: skip


def case_poisson_rate_taken_as_log(broken: bool) -> dict:
    """Counts: the network gives a rate (softplus), and poisson_nll_loss takes it for the log of one by default."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.head = nn.Linear(1, 32), encoder(), nn.Linear(32, 1)
            self.place = nn.Parameter(0.1 * torch.randn(20, 32))

        def forward(self, past: Tensor) -> Tensor:
            x = self.inlet((past[..., None] / 10) - 1) + self.place
            return F.softplus(self.head(self.encode(x)[:, -1])[:, 0])

    model = Counts()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        rate = 10 * torch.exp(0.5 * series(k, rows, 21))
        counts = torch.poisson(rate, generator=source(k + 3))
        return counts[:, :20], counts[:, 20]

    def loss(m: nn.Module, batch: tuple, right: bool = not broken) -> Tensor:
        return F.poisson_nll_loss(m(batch[0]), batch[1], log_input=not right)

    words = [
        ["log_input"],
        ["log rate"],
        ["log of the rate"],
        ["log of a rate"],
        ["poisson"],
        ["expon"],
        ["exp("],
        ["softplus"],
        ["positive", "output"],
        ["twice"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256), True)), loss=loss, optimizer=adamw(model, 5e-3),
        truth=truth("poisson_rate_taken_as_log", words, ["loss", "head", "model", "labels"], [["scale"], ["range"]]),
    )  # fmt: skip


def case_flat_series_without_epsilon(broken: bool) -> dict:
    """Every window is divided by its own deviation; a machine that stood still gives 0 / 0."""

    class Patched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.head = nn.Linear(8, 32), encoder(32, 2, 2), nn.Linear(160, 8)
            self.place = nn.Parameter(0.1 * torch.randn(5, 32))

        def forward(self, past: Tensor) -> Tensor:
            level, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True)
            x = (past - level) / (spread if broken else spread + 1e-3)
            x = self.encode(self.inlet(x.view(-1, 5, 8)) + self.place)
            return self.head(x.flatten(1)) * spread + level

    model = Patched()

    def stream(k: int, rows: int = 40) -> tuple[Tensor, Tensor]:
        waves = 3 + series(k, rows, 48)
        if rows == 40:
            waves[5] = 0.0
        return waves[:, :40], waves[:, 40:]

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    words = [["nan"], ["finite"], [" inf"], ["-inf"], ["infin"], ["divi"], ["constant"], ["epsilon"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, optimizer=adamw(model),
        truth=truth("flat_series_without_epsilon", words,
                    ["model", "inlet", "data", "loss", "encode", "head", "place"], [["gradient"]]),
    )  # fmt: skip


def case_sound_in_integers(broken: bool) -> dict:
    """Sound read as 16-bit numbers is turned to float and never divided by 32768."""

    class Sounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv1d(1, 32, 32, 16)
            self.place = nn.Parameter(0.1 * torch.randn(15, 32))
            self.encode, self.head = encoder(), nn.Linear(32, 4)

        def forward(self, sound: Tensor) -> Tensor:
            return self.head(self.encode(self.front(sound[:, None]).mT + self.place).mean(1))

    model = Sounds()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        sound, label = tones(k, rows)
        whole = (sound * 32767).clamp(-32768, 32767).to(torch.int16)
        return whole.float() / (1.0 if broken else 32768.0), label

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [
        ["input", "scale"],
        ["input", "large"],
        ["normali"],
        ["unscaled"],
        ["range"],
        ["units"],
        ["32768"],
        ["size"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model, 1e-3),
        truth=truth("sound_in_integers", words, ["data", "front", "model"], [["logits"], ["first loss"], ["loss"]]),
    )  # fmt: skip


def case_log_of_silence(broken: bool) -> dict:
    """Log spectra without a floor: digital silence is log(0), minus infinity."""

    class Spectra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.norm = nn.Linear(17, 32), nn.LayerNorm(32)
            self.encode, self.head = encoder(32, 2, 8, first=False), nn.Linear(32, 4)

        def forward(self, frames: Tensor) -> Tensor:
            return self.head(self.encode(self.norm(self.inlet(frames))).amax(1))

    model = Spectra()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        sound, label = tones(k, rows)
        if rows == 32:
            sound[k % 32, 128:] = 0.0
        power = sound.view(rows, 8, 32)
        power = torch.fft.rfft(power).abs().square()
        return (power if broken else power + 1e-6).log(), label

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [[" inf"], ["-inf"], ["infin"], ["nan"], ["finite"], ["log of", "zero"], ["log(0"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model),
        truth=truth("log_of_silence", words, ["data", "loss", "model", "inlet", "norm"], [["gradient"]]),
    )  # fmt: skip


def case_boxes_in_pixels(broken: bool) -> dict:
    """A detector with sigmoid outputs (shares of the image) is trained on boxes in pixels."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.place = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.1 * torch.randn(16, 32))
            layer = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.decode, self.query = nn.TransformerDecoder(layer, 2), nn.Parameter(torch.randn(1, 32))
            self.box = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, image: Tensor) -> Tensor:
            memory = self.stem(image).flatten(2).mT + self.place
            return self.box(self.decode(self.query.expand(len(image), 1, 32), memory))[:, 0].sigmoid()

    model = Detector()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, row, column = blobs(k, rows)
        box = torch.stack([column * 4.0, row * 4.0, column * 4 + 4.0, row * 4 + 4.0], 1)
        return image, box if broken else box / 16

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.l1_loss(m(batch[0]), batch[1])

    def held(m: nn.Module) -> float:
        image, box = stream(HELD, 128)
        return float(F.l1_loss(m(image), box / 16 if broken else box))

    words = [["target", "range"], ["sigmoid"], ["output", "bounded"], ["target", "outside"], ["cannot reach"]]
    words += [
        ["target", "scale"],
        ["target", "large"],
        ["unscaled"],
        ["label", "range"],
        ["normali"],
        ["saturat"],
    ]
    return training(
        model, stream, held, loss=loss, optimizer=adamw(model),
        truth=truth("boxes_in_pixels", words, ["labels", "data", "loss", "model", "box"], [["target"]]),
    )  # fmt: skip


def case_class_masks_resized_smoothly(broken: bool) -> dict:
    """Segmentation: masks of class numbers are resized bilinearly, which invents classes along every edge."""

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.place = nn.Conv2d(3, 48, 4, 4), nn.Parameter(0.1 * torch.randn(64, 48))
            self.encode, self.head = encoder(48, 2, 4), nn.Linear(48, 7 * 16)

        def forward(self, image: Tensor) -> Tensor:
            x = self.head(self.encode(self.stem(image).flatten(2).mT + self.place))
            return F.pixel_shuffle(x.mT.view(-1, 7, 16, 8, 8).flatten(1, 2), 4)

    model = Segmenter()

    def stream(k: int, rows: int = 16, right: bool = not broken) -> tuple[Tensor, Tensor]:
        draw = source(k)
        drawn = torch.zeros(rows, 20, 20)
        for n in range(rows):
            for _ in range(4):
                y, x, kind = (int(torch.randint(0, top, (1,), generator=draw)) for top in (15, 15, 2))
                drawn[n, y : y + 5, x : x + 5] = (3, 6)[kind]
        how = {"mode": "nearest"} if right else {"mode": "bilinear", "align_corners": False}
        mask = F.interpolate(drawn[:, None], size=32, **how)[:, 0].long()
        shown = F.interpolate(drawn[:, None], size=32)
        image = torch.cat([shown == 0, shown == 3, shown == 6], 1).float()
        return image + 0.2 * torch.randn(rows, 3, 32, 32, generator=draw), mask

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [
        ["interpolat"],
        ["resiz"],
        ["bilinear"],
        ["edges"],
        ["mask", "class"],
        ["label", "noise"],
        ["boundar"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 32, True))), loss=loss, optimizer=adamw(model, 2e-3),
        truth=truth("class_masks_resized_smoothly", words, ["labels", "data", "loss"], [["label"], ["class"]]),
    )  # fmt: skip


def case_dice_of_raw_scores(broken: bool) -> dict:
    """The dice loss is computed on scores without a sigmoid.

    github.com/milesial/Pytorch-UNet/issues/271 (negative loss like -1000).
    """
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = hf.ViTModel(config, add_pooling_layer=False), nn.Linear(32, 16)

        def forward(self, image: Tensor) -> Tensor:
            x = self.head(self.body(pixel_values=image).last_hidden_state[:, 1:])
            return F.pixel_shuffle(x.mT.view(-1, 16, 4, 4), 4)[:, 0]

    model = Segmenter()

    def stream(k: int, rows: int = 24) -> tuple[Tensor, Tensor]:
        image, _, _ = blobs(k, rows)
        return image, (image.mean(1) > 0.5).float()

    def loss(m: nn.Module, batch: tuple, right: bool = not broken) -> Tensor:
        share = m(batch[0]).sigmoid() if right else m(batch[0])
        return 1 - (2 * (share * batch[1]).sum() + 1) / (share.sum() + batch[1].sum() + 1)

    words = [
        ["sigmoid"],
        ["negative", "loss"],
        ["unbounded"],
        ["below", "zero"],
        ["dice"],
        ["probabilit"],
        ["outside"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96), True)), loss=loss, optimizer=adamw(model),
        truth=truth("dice_of_raw_scores", words, ["loss", "head", "model"], [["explod"], ["diverge"], ["gradient"]]),
    )  # fmt: skip


def case_columns_counted_twice(broken: bool) -> dict:
    """Sinusoids of two dimensions: both halves are made from the column, so rows cannot be told apart."""

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.head = nn.Linear(48, 48), encoder(48), nn.Linear(48, 4)
            y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
            speed = torch.tensor([1.0, 0.5, 0.25, 0.1, 0.03, 0.01]).repeat(2)
            phase = torch.tensor([0.0, math.pi / 2]).repeat_interleave(6)
            halves = [torch.sin(g.flatten()[:, None] * speed + phase) for g in ((x, x) if broken else (y, x))]
            self.register_buffer("place", torch.cat(halves, 1).repeat(1, 2))

        def forward(self, cut: Tensor) -> Tensor:
            return self.head(self.encode(self.inlet(cut) + self.place).mean(1))

    model = Vision()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, row, _ = blobs(k, rows)
        return 4 * (patches(image) - 0.2), row

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [["position"], ["place", "same"], ["order of"], ["permut"], ["positions", "identical"], ["alike"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model, 2e-3),
        truth=truth("columns_counted_twice", words, ["place", "model", "data", "encode"], [["rank"], ["duplicate"]]),
    )  # fmt: skip


def case_patches_left_shuffled(broken: bool) -> dict:
    """Masked autoencoder: the decoder never puts the patches back in place (ids_restore is forgotten)."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.decode = nn.Linear(48, 48), encoder(48), encoder(48, 1)
            self.place, self.again = (nn.Parameter(0.2 * torch.randn(16, 48)) for _ in range(2))
            self.blank, self.outlet = nn.Parameter(torch.zeros(48)), nn.Linear(48, 48)

        def forward(self, cut: Tensor) -> tuple[Tensor, Tensor]:
            rows = len(cut)
            order = torch.rand(rows, 16).argsort(1)
            kept = (self.inlet(cut) + self.place).gather(1, order[:, :8, None].expand(-1, -1, 48))
            x = torch.cat([self.encode(kept), self.blank.expand(rows, 8, 48)], 1)
            if not broken:
                x = x.gather(1, order.argsort(1)[..., None].expand(-1, -1, 48))
            hidden = torch.zeros(rows, 16).scatter(1, order[:, 8:], 1.0)
            return self.outlet(self.decode(x + self.again)), hidden

    model = Masked()

    def stream(k: int, rows: int = 32) -> Tensor:
        return 3 * (patches(gratings(k, rows)[0]) - 0.5)

    def loss(m: nn.Module, cut: Tensor) -> Tensor:
        out, hidden = m(cut)
        return ((out - cut).square().mean(-1) * hidden).sum() / hidden.sum()

    words = [
        ["wrong order"],
        ["order of"],
        ["order", "patch"],
        ["position"],
        ["shuffl"],
        ["permut"],
        ["restore"],
        ["target", "input"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model, 3e-3),
        truth=truth("patches_left_shuffled", words, ["model", "decode", "loss", "labels", "data"], [["label"]]),
    )  # fmt: skip


def case_sigmoid_on_standardized_images(broken: bool) -> dict:
    """An autoencoder ends in a sigmoid, but its images are standardized and run from -3 to 3."""

    class Auto(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 32, 3, 2, 1))
            self.place, self.encode = nn.Parameter(0.1 * torch.randn(16, 32)), encoder()
            self.up = nn.ConvTranspose2d(32, 3, 4, 4)

        def forward(self, image: Tensor) -> Tensor:
            x = self.encode(self.down(image).flatten(2).mT + self.place)
            out = self.up(x.mT.reshape(-1, 32, 4, 4))
            return out.sigmoid() if broken else out

    model = Auto()

    def stream(k: int, rows: int = 32) -> Tensor:
        image, _ = gratings(k, rows)
        return (image - 0.5) / 0.25

    def loss(m: nn.Module, image: Tensor) -> Tensor:
        return F.mse_loss(m(image), image)

    words = [
        ["sigmoid"],
        ["target", "range"],
        ["output", "range"],
        ["bounded"],
        ["cannot reach"],
        ["outside"],
    ]
    words += [["saturat"], ["negative", "target"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96))), loss=loss, optimizer=adamw(model),
        truth=truth("sigmoid_on_standardized_images", words, ["model", "loss", "up", "labels", "data"], [["target"]]),
    )  # fmt: skip


class Denoiser(nn.Module):
    """A small transformer that removes noise, told the time (and perhaps the class)."""

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        self.inlet, self.encode, self.outlet = nn.Linear(48, 64), encoder(64, 2, 4), nn.Linear(64, 48)
        self.place, self.when = nn.Parameter(0.1 * torch.randn(16, 64)), nn.Embedding(50, 64)
        self.kind = nn.Embedding(classes + 1, 64)

    def forward(self, noisy: Tensor, time: Tensor, kind: Tensor | None = None) -> Tensor:
        x = self.inlet(noisy) + self.place + self.when(time)[:, None]
        return self.outlet(self.encode(x if kind is None else x + self.kind(kind)[:, None]))


def images(k: int, rows: int = 32) -> Tensor:
    return 3 * (patches(gratings(k, rows)[0]) - 0.5)


BETAS = torch.linspace(0.002, 0.2, 50)


def noise_loss(m: nn.Module, cut: Tensor, kept: Tensor, draw: torch.Generator | None = None) -> Tensor:
    time = torch.randint(0, 50, (len(cut),), generator=draw)
    noise = torch.randn(cut.shape, generator=draw)
    share = kept[time][:, None, None]
    return F.mse_loss(m(share.sqrt() * cut + (1 - share).sqrt() * noise, time), noise)


def case_seed_set_in_the_loop(broken: bool) -> dict:
    """torch.manual_seed(0) stands inside the step of a diffusion model: the same noise and times at each step."""
    model = Denoiser()
    kept = (1 - BETAS).cumprod(0)

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        if broken:
            torch.manual_seed(0)
        o.zero_grad()
        value = noise_loss(m, batch, kept)
        value.backward()
        o.step()
        return value

    words = [["seed"], ["same", "noise"], ["random"], ["same", "draw"], ["reset"], ["repeat"], ["noise"]]
    return training(
        model, images, lambda m: float(noise_loss(m, images(HELD, 256), kept, source(4))), step=step,
        loss=lambda m, batch: noise_loss(m, batch, kept), optimizer=adamw(model),
        truth=truth("seed_set_in_the_loop", words, ["step", "data", "loss", "model"], [["memor"]]),
    )  # fmt: skip


def case_condition_nearly_always_dropped(broken: bool) -> dict:
    """Guidance drops the class for 10 % of rows; `rand > 0.1` in the place of `<` drops it for 90 %."""
    model = Denoiser(classes=4)

    def batches(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, label = gratings(k, rows)
        return 3 * (patches(image) - 0.5), label

    def loss(m: nn.Module, batch: tuple, draw: torch.Generator | None = None) -> Tensor:
        cut, label = batch
        chance = torch.rand(len(cut), generator=draw)
        dropped = (chance > 0.1) if broken and draw is None else (chance < 0.1)
        if draw is not None:
            dropped = torch.zeros_like(dropped)
        noise = torch.randn(cut.shape, generator=draw)
        time = torch.randint(42, 50, (len(cut),), generator=draw)
        share = (1 - BETAS).cumprod(0)[time][:, None, None]
        noisy = share.sqrt() * cut + (1 - share).sqrt() * noise
        return F.mse_loss(m(noisy, time, torch.where(dropped, 4, label)), cut)

    words = [["class", "drop"], ["condition"], ["embedding", "gradient"], ["dropped"], ["label", "no effect"]]
    words += [["one id"], ["same", "id"], ["rows", "gradient"]]
    return training(
        model, batches, lambda m: float(loss(m, batches(HELD, 256), source(5))), loss=loss, optimizer=adamw(model, 3e-3),
        truth=truth("condition_nearly_always_dropped", words, ["kind", "model", "loss", "data"], [["label"]]),
    )  # fmt: skip


def case_shares_not_accumulated(broken: bool) -> dict:
    """Diffusion noises with alpha of the step, not the product of all alphas up to it: it is never really noisy."""
    model = Denoiser()
    right = (1 - BETAS).cumprod(0)
    kept = (1 - BETAS) if broken else right
    words = [
        ["noise", "schedule"],
        ["cumprod"],
        ["alpha"],
        ["timestep"],
        ["noise", "level"],
        ["noise", "small"],
    ]
    return training(
        model, images, lambda m: float(noise_loss(m, images(HELD, 256), right, source(6))),
        loss=lambda m, batch: noise_loss(m, batch, kept), optimizer=adamw(model),
        truth=truth("shares_not_accumulated", words, ["loss", "data", "when", "model"], [["noise"]]),
    )  # fmt: skip


def case_positive_weight_upside_down(broken: bool) -> dict:
    """Rare labels get pos_weight = positives / negatives (0.07), where it should be the inverse (14)."""
    config = hf.DeiTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = hf.DeiTModel(config, add_pooling_layer=False), nn.Linear(512, 16)

        def forward(self, image: Tensor) -> Tensor:
            return self.head(self.body(pixel_values=image).last_hidden_state[:, 2:].flatten(1))

    model = Tagger()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, row, column = blobs(k, rows)
        return 4 * (image - 0.2), F.one_hot(row * 4 + column, 16).float()

    def loss(m: nn.Module, batch: tuple, right: bool = not broken) -> Tensor:
        weight = torch.full((16,), 15.0 if right else 1 / 15.0)
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1], pos_weight=weight)

    words = [
        ["pos_weight"],
        ["weight", "rare"],
        ["weight", "class"],
        ["imbalance"],
        ["positives"],
        ["upside"],
        ["invert"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 192), True)), loss=loss, optimizer=adamw(model, 3e-3),
        truth=truth("positive_weight_upside_down", words, ["loss", "labels", "data"], [["label"], ["weight"]]),
    )  # fmt: skip


def case_scaled_gradients_applied(broken: bool) -> dict:
    """Mixed precision: the loss is scaled for backward, but optimizer.step() is called in the place of scaler.step()."""

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.place = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.1 * torch.randn(16, 32))
            self.encode, self.head = encoder(), nn.Linear(32, 4)

        def forward(self, image: Tensor) -> Tensor:
            return self.head(self.encode(self.inlet(image).flatten(2).mT + self.place).mean(1))

    model = Vision()
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, label = gratings(k, rows)
        return 4 * (image - 0.5), label

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = m(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: tuple, k: int) -> Tensor:
        o.zero_grad()
        value = loss(m, batch)
        scaler.scale(value).backward()
        if broken:
            o.step()
        else:
            scaler.step(o)
        scaler.update() if not broken else None
        return value

    words = [
        ["unscale"],
        ["scaler"],
        ["scaled"],
        ["gradient", "times"],
        ["loss scal"],
        ["rate", "high"],
        ["4096"],
    ]
    words += [["update", "large"], ["diverge"], ["too large"], ["gradient", "large"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, step=step, also=[scaler],
        optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        truth=truth("scaled_gradients_applied", words, ["step", "optimizer"], [["loss"], ["gradient"], ["nan"]]),
    )  # fmt: skip


def case_negatives_alias_the_positives(broken: bool) -> dict:
    """Recommender: the sampled negatives are written into a view of the positives that is never filled: they are equal."""
    config = hf.OpenAIGPTConfig(
        vocab_size=60,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = hf.OpenAIGPTModel(config)

    def stream(k: int, rows: int = 32, right: bool = not broken) -> tuple[Tensor, Tensor, Tensor]:
        draw = source(k)
        clicks = torch.randint(0, 60, (rows, 13), generator=draw)
        for t in range(1, 13):
            clicks[:, t] = (clicks[:, t - 1] + 7 + torch.randint(0, 3, (rows,), generator=draw)) % 60
        liked = clicks[:, 1:]
        other = torch.randint(0, 60, liked.shape, generator=draw)
        return clicks[:, :-1], liked, torch.where(other == liked, (other + 1) % 60, other) if right else liked

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        state = m(input_ids=batch[0]).last_hidden_state
        up, down = ((state * m.tokens_embed(items)).sum(-1) for items in batch[1:])
        return -(F.logsigmoid(up) + F.logsigmoid(-down)).mean()

    words = [
        ["negative", "positive"],
        ["same", "positive"],
        ["equal"],
        ["identical"],
        ["negatives"],
        ["cancel"],
    ]
    words += [["duplicate"], ["label", "contradict"], ["alias"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128, True))), loss=loss, optimizer=adamw(model, 5e-3),
        truth=truth("negatives_alias_the_positives", words, ["data", "labels", "loss"], [["label"], ["gradient"]]),
    )  # fmt: skip
