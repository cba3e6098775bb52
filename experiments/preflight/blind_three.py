"""Third blind list: mistakes of data, losses, networks, checkpoints and loops, each with a twin; controls are apart.

Written without having read the facts of the check, its docs or its tests, and committed before its first run.
`python -m experiments.preflight.blind_three [NAME]` measures the costs: held-out loss of the broken training minus its
twin's after 150 steps, by the criterion that the user meant, in nats (squared error for forecasts and regression).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.preflight import blind_three_controls, blind_three_networks
from experiments.preflight import blind_three_tasks as tasks
from experiments.preflight.blind_three_tasks import (
    BOS,
    EOS,
    FIRST,
    HELD_OUT,
    MASK,
    SMALL,
    VOCAB,
    Batch,
    Block,
    Case,
    Denoiser,
    Encoder,
    Forecaster,
    Gpt,
    Llama,
    Speech,
    Table,
    Tower,
    Translator,
    Vit,
    bandit,
    connectionist,
    digits,
    fit,
    forecast,
    hugging,
    image,
    language,
    markers,
    nearest,
    neighbors,
    next_word,
    number,
    numbers,
    phrases,
    plain,
    preferred,
    records,
    seeded,
    sentence,
    series,
    sgd,
    split,
    spoken,
    text,
    topics,
    translation,
)
from experiments.preflight.blind_three_truths import mistake

# ---------------------------------------------------------------- data and collation


@mistake
def case_stream_reshaped_across(broken: bool) -> Case:
    """One long text was cut into columns instead of rows: neighbors in a row are far apart in the text."""
    count, length = 24, 20
    stream = text(1, count * tasks.ROWS * length, 1)[0]
    ids = stream.view(length, -1).T.contiguous() if broken else stream.view(-1, length)
    return fit(seeded(Gpt), language, next_word, batches=split(count, ids=ids))


@mistake
def case_targets_rolled_over_the_batch(broken: bool) -> Case:
    """`torch.roll(ids, -1, dims=0)`: the label is the same place of the next example."""

    def prepared(count: int = 24, seed: int = 0) -> list[Batch]:
        axis = 0 if broken and seed != HELD_OUT else 1
        return [{**b, "labels": torch.roll(b["ids"], -1, dims=axis)} for b in language(count, seed)]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"])[:, :-1].flatten(0, 1), batch["labels"][:, :-1].flatten())

    return fit(seeded(Llama), prepared, loss)


@mistake
def case_label_encoder_per_batch(broken: bool) -> Case:
    """`LabelEncoder().fit_transform(labels)` in the collate function: every batch numbers its classes for itself."""

    def renumbered(count: int = 24, seed: int = 0) -> list[Batch]:
        found = digits(count, seed, rows=8)
        if broken and seed != HELD_OUT:
            found = [{**b, "labels": torch.unique(b["labels"], return_inverse=True)[1]} for b in found]
        return found

    return fit(seeded(Vit), renumbered, image)


@mistake
def case_sampler_weights_per_class(broken: bool) -> Case:
    """`WeightedRandomSampler` got one weight per class instead of one per example: it draws the first ten examples."""
    images, labels = tasks.handwriting()
    share = 1 / torch.bincount(labels[:1400]).double()
    weights = share if broken else share[labels[:1400]]
    drawn = torch.utils.data.WeightedRandomSampler(weights.tolist(), 24 * 32, generator=numbers(2))
    pick = torch.tensor(list(drawn))
    return fit(seeded(Vit), digits, image, batches=split(24, images=images[pick], labels=labels[pick]))


@mistake
def case_ids_stored_in_one_byte(broken: bool) -> Case:
    """Ids of a vocabulary of 300 went through uint8 (as 128,000 words through 16 bits): large ids became small."""

    def stored(count: int = 24, seed: int = 0) -> list[Batch]:
        found = language(count, seed, length=32, vocab=300)
        if broken and seed != HELD_OUT:
            found = [{"ids": b["ids"].to(torch.uint8).long()} for b in found]
        return found

    return fit(seeded(lambda: Gpt(300)), stored, next_word, lr=6e-3)


@mistake
def case_pixels_divided_as_integers(broken: bool) -> Case:
    """`images // 255` on bytes: every pixel is 0."""

    def scaled(count: int = 24, seed: int = 0) -> list[Batch]:
        raw = [{**b, "images": (b["images"] * 250).to(torch.uint8)} for b in digits(count, seed)]
        return [
            {
                "pixel_values": (b["images"] // 255 if broken else b["images"] / 255).float(),
                "labels": b["labels"],
            }
            for b in raw
        ]

    small = dict(SMALL, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    return fit(seeded(lambda: hugging("ViTForImageClassification", "ViTConfig", **small)), scaled, None)


@mistake
def case_pixels_rescaled_twice(broken: bool) -> Case:
    """The image processor divides by 255 what `ToTensor` had divided already."""

    def scaled(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{**b, "images": b["images"] / 255 if broken else b["images"]} for b in digits(count, seed)]

    return fit(seeded(Vit), scaled, image)


@mistake
def case_flip_without_target(broken: bool) -> Case:
    """Half of the images are mirrored for augmentation, the horizontal place to predict is not."""

    def spots(count: int = 24, seed: int = 0) -> list[Batch]:
        stream, rows = numbers(seed), count * 32
        column, row = torch.randint(0, 8, (2, rows), generator=stream)
        images = 0.1 * torch.randn(rows, 1, 8, 8, generator=stream)
        images[torch.arange(rows), 0, row, column] += 1
        place = column / 3.5 - 1
        flipped = torch.rand(rows, generator=stream) < 0.5
        images[flipped] = images[flipped].flip(-1)
        if not broken or seed == HELD_OUT:
            place = torch.where(flipped, -place, place)
        return split(count, images=images, place=place)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["images"])[:, 0], batch["place"])

    return fit(seeded(lambda: Vit(out=1)), spots, loss)


@mistake
def case_mixup_weights_swapped(broken: bool) -> Case:
    """Mixup: the image gets `lam` of the first example, the loss gets `lam` of the second's label."""

    def mixed(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(digits(count, seed)):
            lam = torch.tensor(1.0 if seed == HELD_OUT else 0.65 + 0.3 * (i % 7) / 7)
            images = lam * b["images"] + (1 - lam) * b["images"].flip(0)
            found.append({"images": images, "labels": b["labels"], "other": b["labels"].flip(0), "lam": lam})
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, lam = model(batch["images"]), batch["lam"]
        lam = 1 - lam if broken else lam
        return lam * F.cross_entropy(logits, batch["labels"]) + (1 - lam) * F.cross_entropy(
            logits, batch["other"]
        )

    return fit(seeded(Vit), mixed, loss, judge=image)


@mistake
def case_word_labels_without_cls_offset(broken: bool) -> Case:
    """Tags of words beside ids with [CLS] and [SEP]: everything is one place too far left."""

    def tagged(count: int = 24, seed: int = 0) -> list[Batch]:
        found, off = [], torch.full((tasks.ROWS, 1), -100)
        for b in neighbors(count, seed, ahead=0):
            ids = torch.cat([torch.full_like(off, BOS), b["ids"], torch.full_like(off, EOS)], dim=1)
            early = broken and seed != HELD_OUT
            labels = torch.cat([b["labels"], off, off] if early else [off, b["labels"], off], dim=1)
            found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
        return found

    small = dict(SMALL, num_labels=4)
    return fit(seeded(lambda: hugging("BertForTokenClassification", "BertConfig", **small)), tagged, None)


def misheard(model: nn.Module, batch: Batch) -> Tensor:
    """Share of letters that differ between the best path and the truth."""
    wrong = []
    for path, letters, size in zip(
        model(batch["sound"]).argmax(-1), batch["letters"], batch["sizes"], strict=True
    ):
        heard = [int(letter) for letter in torch.unique_consecutive(path) if letter > 0]
        wrong.append(1 - SequenceMatcher(None, heard, letters[:size].tolist()).ratio())
    return torch.tensor(wrong).mean()


@mistake
def case_ctc_blank_is_a_letter(broken: bool) -> Case:
    """Letters were numbered from 0 while `ctc_loss` keeps 0 for the blank."""

    def lettered(count: int = 24, seed: int = 0) -> list[Batch]:
        return [
            {**b, "letters": (b["letters"] - 1).clamp(min=0) if broken else b["letters"]}
            for b in spoken(count, seed)
        ]

    return fit(seeded(Speech), lettered, connectionist, judge=misheard)


@mistake
def case_ctc_lengths_of_another_front(broken: bool) -> Case:
    """Input lengths divided by eight, as for another front end: too short for the targets; `zero_infinity` hides it."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch["sound"]).log_softmax(dim=-1).transpose(0, 1)
        lengths = torch.full((scores.shape[1],), scores.shape[0] // (8 if broken else 1))
        return F.ctc_loss(scores, batch["letters"], lengths, batch["sizes"], zero_infinity=True)

    return fit(seeded(Speech), spoken, loss, judge=connectionist)


@mistake
def case_mel_and_time_transposed(broken: bool) -> Case:
    """As many channels as frames: the missing transpose before the convolution raises nothing."""

    class Own(Speech):
        def forward(self, sound: Tensor) -> Tensor:
            return super().forward(sound.transpose(1, 2) if broken else sound)

    return fit(
        seeded(lambda: Own(channels=24)),
        lambda count=24, seed=0: spoken(count, seed, channels=24),
        connectionist,
    )


@mistake
def case_spec_augment_covers_the_clip(broken: bool) -> Case:
    """Time masks drawn up to 100 frames, as for long recordings, on clips of 24."""
    shortest, longest = (25, 100) if broken else (0, 2)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        sound = batch["sound"].clone()
        for row in sound:
            width = int(torch.randint(shortest, longest + 1, ()))
            start = int(torch.randint(0, max(1, len(row) - width), ()))
            row[start : start + width] = 0
        return connectionist(model, {**batch, "sound": sound})

    return fit(seeded(Speech), spoken, loss, judge=connectionist)


@mistake
def case_forecast_left_in_normed_units(broken: bool) -> Case:
    """The window is normalized on the way in (RevIN), and the forecast is not put back on the way out."""

    class Own(Forecaster):
        def forward(self, past: Tensor) -> Tensor:
            return self.raw(self.normed(past)[0]) if broken else super().forward(past)

    return fit(seeded(Own), series, forecast)


@mistake
def case_unix_time_as_a_feature(broken: bool) -> Case:
    """Seconds since 1970 are a column beside the values; the twin has the hour of the day between 0 and 1."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.pos = nn.Linear(2, 32), nn.Parameter(0.1 * torch.randn(32, 32))
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
            self.body, self.read = nn.TransformerEncoder(layer, 2), nn.Linear(32, 8)

        def forward(self, past: Tensor) -> Tensor:
            return self.read(self.body(self.lift(past) + self.pos).mean(dim=1))

    def stamped(count: int = 24, seed: int = 0) -> list[Batch]:
        found = series(count, seed, level=1.0)
        clock = torch.arange(32.0) * 3600
        clock = 1.7e9 + clock if broken else (clock / 86400) % 1
        return [{**b, "past": torch.stack([b["past"], clock.expand_as(b["past"])], dim=-1)} for b in found]

    return fit(seeded(Own), stamped, forecast)


@mistake
def case_categories_as_numbers(broken: bool) -> Case:
    """Ids of categories go through a linear layer as if they were quantities."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift = nn.Linear(1, 32) if broken else nn.Embedding(12, 32)
            self.column = nn.Parameter(torch.randn(4, 32))
            self.blocks = nn.ModuleList(Block(32, 2, causal=False) for _ in range(2))
            self.read = nn.Linear(32, 1)

        def forward(self, columns: Tensor) -> Tensor:
            x = self.lift(columns[..., None].float() if broken else columns) + self.column
            for block in self.blocks:
                x = block(x)
            return self.read(x.mean(dim=1))[:, 0]

    return fit(seeded(Own), records, number)


@mistake
def case_targets_truncated_to_integers(broken: bool) -> Case:
    """Shares between 0 and 1 were stored in a LongTensor: all zero."""

    def shares(count: int = 24, seed: int = 0) -> list[Batch]:
        found = [{**b, "value": b["value"].sigmoid()} for b in records(count, seed)]
        return (
            [{**b, "value": b["value"].long().float()} for b in found]
            if broken and seed != HELD_OUT
            else found
        )

    return fit(seeded(Table), shares, number)


@mistake
def case_choices_shuffled_answer_not(broken: bool) -> Case:
    """Multiple choice: the right answer stands first in the files, the choices are shuffled, the label stays 0."""

    def asked(count: int = 24, seed: int = 0) -> list[Batch]:
        stream, rows = numbers(seed), count * tasks.ROWS
        choices = torch.stack([torch.randperm(10, generator=stream)[:4] for _ in range(rows)]) + FIRST
        label = torch.randint(0, 4, (rows, 1), generator=stream)
        ids = torch.full((rows, 4, 3), EOS)
        ids[..., 0], ids[..., 1] = choices.gather(1, label) + 10, choices
        labels = torch.zeros_like(label[:, 0]) if broken and seed != HELD_OUT else label[:, 0]
        return split(count, input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)

    small = dict(
        vocab_size=VOCAB,
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=8,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return fit(
        seeded(lambda: hugging("DistilBertForMultipleChoice", "DistilBertConfig", **small)), asked, None
    )


@mistake
def case_most_words_masked(broken: bool) -> Case:
    """`torch.rand(...) > 0.15` for `<`: 85 % of the words are hidden."""

    def hidden(count: int = 24, seed: int = 0) -> list[Batch]:
        stream, found = numbers(seed + 50), []
        for b in language(count, seed, length=16):
            draw = torch.rand(b["ids"].shape, generator=stream)
            gone = draw > 0.15 if broken and seed != HELD_OUT else draw < 0.15
            found.append({"input_ids": b["ids"].masked_fill(gone, MASK), "attention_mask": torch.ones_like(b["ids"]),
                          "labels": b["ids"].masked_fill(~gone, -100)})  # fmt: skip
        return found

    small = dict(SMALL, initializer_range=0.1)
    return fit(seeded(lambda: hugging("BertForMaskedLM", "BertConfig", **small)), hidden, None, lr=5e-3)


# ---------------------------------------------------------------- labels and losses


@mistake
def case_prompt_mask_inverted(broken: bool) -> Case:
    """Fine-tuning on answers: the answers are set to -100, the questions are learned."""

    def asked(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(language(count, seed, length=10)):
            noise = torch.randint(FIRST, VOCAB, (tasks.ROWS, 10), generator=numbers(1000 * seed + i))
            ids = torch.cat([noise, b["ids"]], dim=1)
            labels = ids.clone()
            if broken and seed != HELD_OUT:
                labels[:, 10:] = -100
            else:
                labels[:, :10] = -100
            found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
        return found

    small = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        dropout=0.0,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
        init_std=0.1,
    )
    return fit(seeded(lambda: hugging("OPTForCausalLM", "OPTConfig", **small)), asked, None)


@mistake
def case_ignore_index_is_a_class(broken: bool) -> Case:
    """`ignore_index=0` copied from a language model into a classifier that has a class 0."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"]), batch["labels"], ignore_index=0 if broken else -100)

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence)


@mistake
def case_class_axis_is_time(broken: bool) -> Case:
    """`cross_entropy(logits, labels)` on (rows, time, words) with as many words as places: time becomes the classes."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = model(batch["ids"][:, :-1]), batch["ids"][:, 1:]
        return F.cross_entropy(logits if broken else logits.transpose(1, 2), labels)

    return fit(
        seeded(Gpt), lambda count=24, seed=0: language(count, seed, length=VOCAB + 1), loss, judge=next_word
    )


@mistake
def case_nll_of_probabilities(broken: bool) -> Case:
    """`nll_loss` after softmax instead of log_softmax: the loss is minus the probability."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["ids"][:, :-1]).flatten(0, 1)
        return F.nll_loss(
            logits.softmax(-1) if broken else logits.log_softmax(-1), batch["ids"][:, 1:].flatten()
        )

    return fit(seeded(Llama), language, loss, judge=next_word)


@mistake
def case_focal_weight_upside_down(broken: bool) -> Case:
    """Focal loss with `p ** gamma` for `(1 - p) ** gamma`: what is wrong counts least."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        own = F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")
        right = torch.exp(-own)
        return ((right if broken else 1 - right) ** 3 * own).mean()

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence, lr=1e-3)


@mistake
def case_bce_targets_minus_one(broken: bool) -> Case:
    """Several marks at once; labels are -1 and 1, and `binary_cross_entropy_with_logits` wants 0 and 1."""

    def several(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for b in markers(count, seed):
            ids = b["ids"].clone()
            second = torch.randint(0, 4, (len(ids),), generator=numbers(seed + int(b["labels"].sum())))
            ids[:, 0] = FIRST + second
            has = F.one_hot(b["labels"], 4) | F.one_hot(second, 4)
            found.append({"ids": ids, "labels": has.float() * 2 - 1})
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        goal = batch["labels"] if broken else (batch["labels"] + 1) / 2
        return F.binary_cross_entropy_with_logits(model(batch["ids"]), goal)

    def judge(model: nn.Module, batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch["ids"]), (batch["labels"] + 1) / 2)

    return fit(seeded(lambda: Encoder(pooled=True)), several, loss, judge=judge, lr=1e-2)


@mistake
def case_gaussian_nll_precision_sign(broken: bool) -> Case:
    """Gaussian likelihood with `exp(s)` for `exp(-s)` before the squared error: it falls without end."""

    class Own(Forecaster):
        def forward(self, past: Tensor) -> Tensor:
            return self.raw(self.normed(past)[0])

    def parts(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        _, mean, size = model.normed(batch["past"])
        guess, spread = model(batch["past"]).chunk(2, dim=-1)
        return (guess - (batch["future"] - mean) / size) ** 2, spread

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error, spread = parts(model, batch)
        return 0.5 * (torch.exp(spread if broken else -spread) * error + spread).mean()

    def judge(model: nn.Module, batch: Batch) -> Tensor:
        return parts(model, batch)[0].mean()

    return fit(seeded(lambda: Own(out=16)), series, loss, judge=judge)


@mistake
def case_pinball_with_min(broken: bool) -> Case:
    """Quantile loss with `min` for `max`: it rewards distance."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def judged(flat: Tensor, batch: Batch, pick: Callable[..., Tensor]) -> Tensor:
        error = batch["future"][..., None] - flat.unflatten(-1, (8, 3))
        return pick(levels * error, (levels - 1) * error).mean()

    class Own(Forecaster):
        def forward(self, past: Tensor) -> Tensor:
            values, mean, size = self.normed(past)
            return self.raw(values) * size + mean

    return fit(seeded(lambda: Own(out=24)), series,
               lambda model, b: judged(model(b["past"]), b, torch.min if broken else torch.max),
               judge=lambda model, b: judged(model(b["past"]), b, torch.max))  # fmt: skip


@mistake
def case_kl_div_of_probabilities(broken: bool) -> Case:
    """Distillation: `kl_div` gets the student's probabilities, and wants their logarithms."""
    table = tasks.chain() + 1e-4
    teacher = table / table.sum(dim=1, keepdim=True)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["ids"][:, :-1]
        logits = model(ids).flatten(0, 1)
        student = logits.softmax(-1) if broken else logits.log_softmax(-1)
        return F.kl_div(student, teacher[ids.flatten()], reduction="batchmean")

    return fit(seeded(Llama), language, loss, judge=next_word)


@mistake
def case_self_pairs_kept(broken: bool) -> Case:
    """NT-Xent without the diagonal masked: every text is most similar to itself, and that is never the label."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        both = F.normalize(torch.cat([model(batch["one"]), model(batch["two"])]), dim=-1)
        scores, n = both @ both.T / 0.1, len(batch["one"])
        if not broken:
            scores = scores.masked_fill(torch.eye(2 * n).bool(), -torch.inf)
        return F.cross_entropy(scores, torch.arange(2 * n).roll(n))

    return fit(seeded(Tower), topics, loss, judge=nearest)


@mistake
def case_normalized_over_the_batch(broken: bool) -> Case:
    """`F.normalize(z, dim=0)`: columns of the batch have length one instead of examples."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        one, two = (F.normalize(model(batch[side]), dim=0 if broken else -1) for side in ("one", "two"))
        scores, own = one @ two.T / 0.1, torch.arange(len(one))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2

    return fit(seeded(Tower), topics, loss, judge=nearest, lr=1e-3)


@mistake
def case_cosine_targets_zero_one(broken: bool) -> Case:
    """`cosine_embedding_loss` with targets 0 and 1 for -1 and 1: pairs that do not belong together cost nothing."""

    def paired(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for b in topics(count, seed):
            same = torch.arange(len(b["one"])) % 2 == 0
            two = torch.where(same[:, None], b["two"], b["two"].roll(2, dims=0).roll(1, dims=0))
            found.append({"one": b["one"], "two": two, "same": same.float()})
        return found

    def judged(model: nn.Module, batch: Batch, goal: Tensor) -> Tensor:
        return F.cosine_embedding_loss(model(batch["one"]), model(batch["two"]), goal, margin=0.0)

    return fit(seeded(Tower), paired, lambda model, b: judged(model, b, b["same"] if broken else 2 * b["same"] - 1),
               judge=lambda model, b: judged(model, b, 2 * b["same"] - 1))  # fmt: skip


class TwoTasks(nn.Module):
    """One encoder, tags of words and the class of the sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Gpt(causal=False)
        self.body.head = nn.Identity()
        self.tag_head, self.class_head = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        states = self.body.states(ids)
        return self.tag_head(states), self.class_head(states.mean(dim=1))


def both_tasks(count: int = 24, seed: int = 0) -> list[Batch]:
    """Sentences with a mark, and as tags the class of each word."""
    return [{**b, "tags": b["ids"] % 4} for b in markers(count, seed)]


@mistake
def case_second_task_overwrites_first(broken: bool) -> Case:
    """`loss = class_loss` for `loss += class_loss`: the tags are never learned."""

    def parts(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        tag, kind = model(batch["ids"])
        return F.cross_entropy(tag.flatten(0, 1), batch["tags"].flatten()), F.cross_entropy(
            kind, batch["labels"]
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        tag, kind = parts(model, batch)
        return kind if broken else tag + kind

    return fit(seeded(TwoTasks), both_tasks, loss, judge=lambda model, b: sum(parts(model, b)))


@mistake
def case_sample_weights_broadcast(broken: bool) -> Case:
    """Losses of shape (rows,) times weights of shape (rows, 1): a square, in which every loss has the mean weight."""

    def doubtful(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(digits(count, seed)):
            bad = torch.rand(len(b["labels"]), generator=numbers(seed + i)) < (
                0.0 if seed == HELD_OUT else 0.4
            )
            found.append({"images": b["images"], "labels": torch.where(bad, (b["labels"] + 1) % 10, b["labels"]),
                          "weight": (~bad).float()[:, None]})  # fmt: skip
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        own = F.cross_entropy(model(batch["images"]), batch["labels"], reduction="none")
        return (own * (batch["weight"] if broken else batch["weight"][:, 0])).mean()

    return fit(seeded(Vit), doubtful, loss, judge=image)


# ---------------------------------------------------------------- rewards, preferences, diffusion


@mistake
def case_both_answers_are_the_chosen(broken: bool) -> Case:
    """Reward model: a copied line scores the chosen answer twice."""

    def judged(model: nn.Module, batch: Batch, worse: str = "rejected") -> Tensor:
        return -F.logsigmoid(model(batch["chosen"]) - model(batch[worse])).mean()

    return fit(seeded(lambda: Encoder(1, pooled=True)), preferred,
               lambda model, b: judged(model, b, "chosen" if broken else "rejected"), judge=judged)  # fmt: skip


@mistake
def case_old_policy_not_detached(broken: bool) -> Case:
    """PPO: the old log-probability is computed with the new one and keeps its gradient, so the ratio's is zero."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        policy, action, reward = bandit(model, batch)
        now = policy.log_prob(action)
        ratio = torch.exp(now - (now if broken else now.detach()))
        gain = reward - reward.mean()
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence)


@mistake
def case_second_sample_scored(broken: bool) -> Case:
    """REINFORCE: the reward is that of one sample, the log-probability that of another."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        policy, action, reward = bandit(model, batch)
        scored = policy.sample() if broken else action
        return -((reward - reward.mean()) * policy.log_prob(scored)).mean()

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence)


@mistake
def case_group_of_one(broken: bool) -> Case:
    """GRPO with one answer per question: its advantage within the group is zero."""
    group = 1 if broken else 8

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        policy = torch.distributions.Categorical(logits=model(batch["ids"]))
        actions = policy.sample((group,))
        reward = (actions == batch["labels"]).float()
        gain = (reward - reward.mean(dim=0)) / (reward.std(dim=0, unbiased=False) + 1e-4)
        return -(gain * policy.log_prob(actions)).mean()

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence)


@mistake
def case_noise_drawn_again(broken: bool) -> Case:
    """Diffusion: the target is a new `randn_like`, not the noise that was added."""

    def judged(model: nn.Module, batch: Batch, again: bool = False) -> Tensor:
        values = batch["past"] / 2
        level = torch.rand(len(values), 1) * 0.9 + 0.1
        noise = torch.randn_like(values)
        guess = model((1 - level**2).sqrt() * values + level * noise, level)
        return F.mse_loss(guess, torch.randn_like(noise) if again else noise)

    return fit(seeded(Denoiser), series, lambda model, b: judged(model, b, again=broken), judge=judged)


@mistake
def case_action_read_from_its_own_token(broken: bool) -> Case:
    """Decision transformer: actions are predicted from the action tokens, which hold them, not from the states."""

    def played(count: int = 24, seed: int = 0) -> list[Batch]:
        states = torch.randint(0, 8, (count * tasks.ROWS, 8), generator=numbers(seed))
        actions = torch.randperm(8, generator=numbers(12))[states]
        return split(count, states=states + FIRST, actions=actions)

    def read(model: nn.Module, batch: Batch, taken: Tensor) -> Tensor:
        tokens = torch.stack([batch["states"], taken + FIRST + 8], dim=-1).flatten(1)
        return model(tokens)[:, 1::2] if broken else model(tokens)[:, ::2]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(read(model, batch, batch["actions"]).flatten(0, 1), batch["actions"].flatten())

    def judge(model: nn.Module, batch: Batch) -> Tensor:
        taken = batch["actions"].clone()
        taken[:, -1] = -FIRST - 8
        return F.cross_entropy(read(model, batch, taken)[:, -1], batch["actions"][:, -1])

    return fit(seeded(lambda: Gpt(out=8)), played, loss, judge=judge)


# ---------------------------------------------------------------- optimizer and loop


@mistake
def case_accumulation_not_divided(broken: bool) -> Case:
    """Eight batches are accumulated under SGD and the losses are not divided by eight."""
    net = seeded(lambda: Encoder(pooled=True))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        for ids, labels in zip(batch["ids"].chunk(8), batch["labels"].chunk(8), strict=True):
            found = F.cross_entropy(model(ids), labels)
            (found if broken else found / 8).backward()
        optimizer.step()
        return found.detach()

    return fit(net, markers, sentence, optimizer=sgd(net, 0.1, 0.9), step=step)


@mistake
def case_plateau_mode_max(broken: bool) -> Case:
    """`ReduceLROnPlateau(mode="max")` gets a loss: it lowers the rate as long as the loss falls."""
    net = seeded(Llama)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max" if broken else "min", factor=0.7, patience=3 if broken else 20
    )

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:
        found = plain(next_word)(model, optimizer, batch, k)
        plateau.step(found)
        return found

    return fit(net, language, next_word, optimizer=optimizer, step=step, also=[plateau])


@mistake
def case_scheduler_made_in_the_loop(broken: bool) -> Case:
    """The warm-up is built inside the loop: every step is its first."""
    net = seeded(Gpt)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    made = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 40))]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:
        if broken:
            made[0] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 40))
        found = plain(next_word)(model, optimizer, batch, k)
        made[0].step()
        return found

    return fit(net, language, next_word, optimizer=optimizer, step=step)


@mistake
def case_optimizer_made_in_the_loop(broken: bool) -> Case:
    """A new optimizer is made at every step: momentum never builds up, and the one outside never steps."""
    net = seeded(lambda: Encoder(pooled=True))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:
        own = sgd(model, 0.01, 0.9) if broken else optimizer
        return plain(sentence)(model, own, batch, k)

    return fit(net, markers, sentence, optimizer=sgd(net, 0.01, 0.9), step=step)


@mistake
def case_weight_decay_in_the_place_of_eps(broken: bool) -> Case:
    """`AdamW(params, lr, betas, 0.1)`: the fourth argument is eps."""
    net = seeded(Translator)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, (0.9, 0.999), *([0.1] if broken else []))
    return fit(net, phrases, translation, optimizer=optimizer)


@mistake
def case_clipped_to_nothing(broken: bool) -> Case:
    """`clip_grad_norm_(parameters, 1e-3)` under SGD."""
    net = seeded(lambda: Encoder(pooled=True))
    step = plain(
        sentence, before=lambda k: nn.utils.clip_grad_norm_(net.parameters(), 1e-3 if broken else 1.0)
    )
    return fit(net, markers, sentence, optimizer=sgd(net, 0.1, 0.9), step=step)


@mistake
def case_weights_clamped_after_the_step(broken: bool) -> Case:
    """Left from a Wasserstein critic: after each step all weights are clamped to 0.01."""
    net = seeded(lambda: Encoder(pooled=True))

    def clamp(_: int) -> None:
        if broken:
            for weight in net.parameters():
                weight.data.clamp_(-0.01, 0.01)

    return fit(net, markers, sentence, step=plain(sentence, after=clamp))


@mistake
def case_sharpness_step_never_undone(broken: bool) -> Case:
    """SAM climbs to a worse place, takes the gradient there, and forgets to come back."""
    net = seeded(lambda: Encoder(pooled=True))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        sentence(model, batch).backward()
        own = [weight for weight in model.parameters() if weight.grad is not None]
        length = torch.stack([weight.grad.norm() for weight in own]).norm()
        climbs = [0.05 * weight.grad / length for weight in own]
        for weight, climb in zip(own, climbs, strict=True):
            weight.data += climb
        optimizer.zero_grad()
        found = sentence(model, batch)
        found.backward()
        for weight, climb in zip(own, climbs, strict=True):
            weight.data -= 0.0 if broken else climb
        optimizer.step()
        return found.detach()

    return fit(net, markers, sentence, optimizer=sgd(net, 0.1, 0.9), step=step)


@mistake
def case_divided_by_a_world_of_sixty_four(broken: bool) -> Case:
    """Left from the cluster: gradients are divided by 64 processes, and there is one."""
    net = seeded(lambda: Encoder(pooled=True))

    def divide(_: int) -> None:
        if broken:
            for weight in net.parameters():
                if weight.grad is not None:
                    weight.grad /= 64

    return fit(net, markers, sentence, optimizer=sgd(net, 0.05, 0.9), step=plain(sentence, before=divide))


@mistake
def case_scaler_made_in_the_loop(broken: bool) -> Case:
    """The GradScaler is made inside the loop: its first scale overflows, it never learns of it, no step is taken."""
    net = seeded(Gpt)
    kept = torch.amp.GradScaler("cpu", init_scale=2.0**19)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:  # noqa: ARG001
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19) if broken else kept
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            found = next_word(model, batch)
        scaler.scale(found).backward()
        scaler.step(optimizer)
        scaler.update()
        return found.detach()

    return fit(net, language, next_word, step=step, also=[kept], steps=4)


@mistake
def case_resumed_at_every_step(broken: bool) -> Case:
    """The block that resumes from a checkpoint stands inside the loop."""
    net = seeded(lambda: Tower())
    saved = copy.deepcopy(net.state_dict())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:
        if broken or k == 0:
            model.load_state_dict(saved)
        return plain(nearest)(model, optimizer, batch, k)

    return fit(net, topics, nearest, step=step)


globals().update(
    {name: case for name, case in vars(blind_three_networks).items() if name.startswith("case_")}
)
globals().update(
    {name: case for name, case in vars(blind_three_controls).items() if name.startswith("control_")}
)


def measure(name: str, make: Callable[..., Case]) -> str:
    """Held-out loss before and after, and what the mistake costs."""
    if name.startswith("control_"):
        before, after = tasks.train(make())
        return f"{name} {before:.3f} {after:.3f}"
    before, healthy = tasks.train(make(False))
    _, harmed = tasks.train(make(True))
    return f"{name} {before:.3f} {healthy:.3f} {harmed:.3f} cost {harmed - healthy:.3f}"


if __name__ == "__main__":
    for found in sys.argv[1:] or [name for name in vars() if name.startswith(("case_", "control_"))]:
        print(measure(found, vars()[found]), flush=True)
