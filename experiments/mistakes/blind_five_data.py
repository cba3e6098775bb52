"""Mistakes of data, model code and loss, and unusual healthy trainings, for the fifth blind list."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.mistakes import blind_five_kit as kit
from experiments.mistakes.blind_five_kit import LENGTH, ROWS, Case


def statistics_of_bytes(broken: bool) -> Case:
    """Pictures between 0 and 1 are normalized with mean and deviation of bytes: all look alike."""
    bytes_ = {"middle": 120.0, "spread": 70.0}
    return kit.trained(kit.hugging("vit"), kit.shown(31, **bytes_ if broken else {}), 1e-3)


def pads_in_loss(broken: bool) -> Case:
    """The pads that fill up short texts are labels too."""
    model, g = kit.hugging("llama"), kit.generator(32)

    def rows(g: torch.Generator, pads: bool = False) -> dict[str, Tensor]:
        x, sizes = kit.ended(ROWS, g)
        x = F.pad(x, (0, 12), value=kit.PAD)
        known = torch.arange(x.shape[1]) < sizes[:, None]
        labels = x if pads else x.masked_fill(~known, -100)
        return {"input_ids": x, "attention_mask": known.long(), "labels": labels}

    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    return kit.trained(model, lambda k: rows(g, broken), optimizer, judge=kit.asked(model, rows))


def end_hidden_as_pad(broken: bool) -> Case:
    """Pad and end are one token, all of which are left out of the labels: the model never learns to end."""
    model, g = kit.hugging("gpt2"), kit.generator(33)

    def rows(g: torch.Generator, hide: bool = False) -> dict[str, Tensor]:
        x, sizes = kit.ended(ROWS, g)
        x = x.masked_fill(x == kit.PAD, kit.END)
        known = torch.arange(LENGTH) < sizes[:, None]
        labels = x.masked_fill(x == kit.END, -100) if hide else x.masked_fill(~known, -100)
        return {"input_ids": x, "attention_mask": known.long(), "labels": labels}

    return kit.trained(model, lambda k: rows(g, broken), judge=kit.asked(model, rows))


def pads_meaning_inverted(broken: bool) -> Case:
    """torch's padding mask says what to leave out; here it says what to keep, as elsewhere."""
    g = kit.generator(34)

    def batch(_: int) -> tuple[Tensor, ...]:
        x, pads, topic = kit.topics(ROWS, g)
        x[:, -1], pads[:, -1] = kit.PAD, True
        return x, ~pads if broken else pads, topic

    return kit.trained(kit.Reader(kit.CLASSES), batch, 1e-3)


def sorted_by_class(broken: bool) -> Case:
    """The folders of pictures are read one after the other, and nobody shuffles."""
    model, g = kit.hugging("vit"), kit.generator(35)

    def batch(k: int) -> dict[str, Tensor]:
        return kit.pictures(g, torch.full((ROWS,), k // 6 % kit.CLASSES) if broken else None)

    return kit.trained(model, batch, 1e-3, judge=kit.asked(model, kit.pictures))


def nothing_to_learn_in_batch(broken: bool) -> Case:
    """Long questions are cut before their answers; a batch of such rows has no label, and its mean is 0 / 0."""
    g = kit.generator(36)

    def batch(k: int) -> dict[str, Tensor]:
        x = kit.text(4, g)
        question = LENGTH if broken and k % 70 == 63 else 8
        return {"input_ids": x, "labels": x.masked_fill(torch.arange(LENGTH) < question, -100)}

    return kit.trained(kit.hugging("llama"), batch, 2e-3)


def unknown_words(broken: bool) -> Case:
    """The vocabulary is in lower case and the text is not: every other word becomes the unknown one."""
    model, g = kit.Decoder(), kit.generator(37)

    def batch(_: int) -> tuple[Tensor, Tensor]:
        x = kit.text(ROWS, g)
        x = x.masked_fill(x % 2 == 0, kit.MASK) if broken else x
        return x[:, :-1], x[:, 1:]

    return kit.trained(model, batch, judge=kit.asked(model))


def labels_of_next_batch(broken: bool) -> Case:
    """From step 100 a second worker fills the same buffers: the labels are already those of the next batch."""
    g = kit.generator(38)
    batches = [kit.pairs(ROWS, g) for _ in range(221)]
    late = 100 if broken else 999
    return kit.trained(kit.Translator(), lambda k: batches[k][:2] + batches[k + (k >= late)][2:])


def flips_change_class(broken: bool) -> Case:
    """Pictures are mirrored at random, though left and right tell the classes apart."""
    shown, g = kit.shown(39), kit.generator(50)

    def batch(k: int) -> dict[str, Tensor]:
        drawn: dict[str, Tensor] = shown(k)
        x = drawn["pixel_values"]
        mirrored = torch.where(torch.rand(ROWS, 1, 1, 1, generator=g) < 0.5, x.flip(-1), x)
        return drawn | {"pixel_values": mirrored} if broken else drawn

    return kit.trained(kit.hugging("vit"), batch, 1e-3)


def labels_after_masking(broken: bool) -> Case:
    """The labels are copied from the words after the masks were put in, so that each label is the mask."""
    model, g = kit.hugging("bert"), kit.generator(40)

    def rows(g: torch.Generator, late: bool = False) -> dict[str, Tensor]:
        x, labels = kit.masked(ROWS, g)
        return {"input_ids": x, "labels": labels.masked_fill(labels >= 0, kit.MASK) if late else labels}

    return kit.trained(model, lambda k: rows(g, broken), 2e-3, judge=kit.asked(model, rows))


def blocks_in_list(broken: bool) -> Case:
    """The blocks stand in a Python list: torch does not see their parameters."""
    model = kit.Decoder()
    if broken:
        blocks = list(model.blocks)
        del model.blocks
        model.blocks = blocks
    return kit.trained(model, kit.speeches(41))


class Viewed(kit.Attention):
    """Heads by view alone: rows of one head are pieces of different tokens."""

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], kit.HEADS, x.shape[1], -1)


def heads_by_view(broken: bool) -> Case:
    model = kit.Decoder(Viewed if broken else kit.Attention)
    return kit.trained(model, kit.speeches(42), judge=kit.asked(model, whole=False))


class TurnedAlongHeads(kit.Attention):
    """Queries and keys are turned before tokens and heads change places: by the number of the head."""

    def turned(self, x: Tensor) -> Tensor:
        return super().turned(x.transpose(1, 2)).transpose(1, 2)


def turned_along_heads(broken: bool) -> Case:
    return kit.trained(kit.rotary(TurnedAlongHeads if broken else kit.Attention), kit.speeches(43))


class GatesAfterChoice(kit.Mixture):
    """The softmax is taken over the one expert that was chosen: its gate is one, and the router learns nothing."""

    def gates(self, scores: Tensor) -> Tensor:
        value, index = scores.topk(self.chosen, -1)
        return torch.zeros_like(scores).scatter(-1, index, value.softmax(-1))


def gates_after_choice(broken: bool) -> Case:
    model = kit.Decoder(feed=lambda: (GatesAfterChoice if broken else kit.Mixture)(1))
    return kit.trained(model, kit.speeches(44))


class Alone(kit.Translator):
    def decoded(self, x: Tensor, _: Tensor, later: Tensor) -> Tensor:
        return super().decoded(x, x, later)


def decoder_attends_itself(broken: bool) -> Case:
    """The decoder is given its own input as memory, and what the encoder read is dropped."""
    model, g = (Alone if broken else kit.Translator)(), kit.generator(45)

    def prefix(g: torch.Generator) -> tuple[Tensor, ...]:
        source, target, labels = kit.pairs(128, g)
        return source, target[:, :6], labels[:, :6]

    return kit.trained(model, lambda k: kit.pairs(ROWS, g), judge=kit.asked(model, prefix, whole=False))


def causal(seed: int) -> kit.Stream:
    """Words, no pads, the mask that torch wants, and the words that follow."""
    speeches = kit.speeches(seed)
    later = torch.ones(LENGTH - 1, LENGTH - 1, dtype=torch.bool).triu(1)

    def batch(k: int) -> tuple[Any, ...]:
        x, y = speeches(k)
        return x, None, later, y

    return batch


def squashed_logits(broken: bool) -> Case:
    """A sigmoid after the last layer, as for yes and no: no logit is beyond 0 and 1, and the loss adds its softmax."""
    model = kit.Reader(kit.WORDS, every=True)
    if broken:
        model.head = nn.Sequential(model.head, nn.Sigmoid())
    return kit.trained(model, causal(46), 2e-3)


def mask_upside_down(broken: bool) -> Case:
    """torch's attention wants to know what may be seen; this says what may not, as a mask often does."""
    model = kit.rotary()
    if broken:
        model.allowed = lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu()
    return kit.trained(model, kit.speeches(47), judge=kit.asked(model, whole=False))


def batch_first_forgotten(broken: bool) -> Case:
    """torch's layers want tokens first; here the texts of a batch attend to each other."""
    g = kit.generator(48)

    def batch(_: int) -> tuple[Tensor, Tensor]:
        x, _, topic = kit.topics(ROWS, g)
        return x, topic

    return kit.trained(kit.Reader(kit.CLASSES, first=not broken), batch, 1e-3)


def flattened_crosswise(broken: bool) -> Case:
    """Logits are (words, rows, vocabulary) and labels (rows, words); both are flattened as they are."""

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        return kit.spoken(logits.transpose(0, 1), labels if broken else labels.T)

    return kit.trained(kit.Reader(kit.WORDS, every=True), causal(49), 2e-3, loss_of=loss_of)


def texts_grow() -> Case:
    """A curriculum: texts of 6 words, then 12, then 20; later words can be told better, and the loss jumps down."""
    g = kit.generator(61)

    def batch(k: int) -> dict[str, Tensor]:
        x = kit.text(ROWS, g, length=6 if k < 70 else 12 if k < 140 else 20)
        return {"input_ids": x, "labels": x}

    return kit.trained(kit.hugging("llama"), batch)


def warm_restarts() -> Case:
    """The rate falls to nothing and starts anew, three times."""
    model = kit.hugging("vit")
    optimizer = kit.adam(model, 1.5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 70)
    return kit.trained(model, kit.shown(62), optimizer, after=lambda k: schedule.step(), steps=210)


def unfreezing() -> Case:
    """A trained trunk gets a new head, which learns alone for 80 steps; then the last block joins, then all."""
    model = kit.learned("vit")
    model.classifier = nn.Linear(kit.WIDTH, kit.CLASSES)
    model.requires_grad_(False).classifier.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.classifier.parameters(), 3e-3)

    def before(k: int) -> None:
        if k in (80, 140):
            names = [n for n, p in model.named_parameters() if not p.requires_grad and (k > 80 or ".1." in n)]
            joining = [model.get_parameter(n).requires_grad_(True) for n in names]
            optimizer.add_param_group({"params": joining, "lr": 5e-4 if k == 80 else 2e-4})

    return kit.trained(model, kit.shown(63), optimizer, before=before)


def moments_reset_with_warmup() -> Case:
    """At step 110 the optimizer's state is cleared on purpose, and its rate warms up again."""
    model = kit.Decoder()
    optimizer = kit.adam(model)

    def before(k: int) -> None:
        if k == 110:
            optimizer.state.clear()
        optimizer.param_groups[0]["lr"] = 4e-3 * min(1.0, (k % 110 + 1) / 20)

    return kit.trained(model, kit.speeches(64), optimizer, before=before)


def second_task_joins() -> Case:
    """From step 100 a second loss, of the length of the text, is added: the sum jumps up."""
    g = kit.generator(65)

    def batch(k: int) -> tuple[Any, ...]:
        x, pads, topic = kit.topics(ROWS, g)
        return x, pads, (topic, (~pads).sum(1) / 8 - 1.75, 2.0 * (k >= 100))

    def loss_of(out: Tensor, labels: tuple[Tensor, Tensor, float]) -> Tensor:
        return F.cross_entropy(out[:, :-1], labels[0]) + labels[2] * F.mse_loss(out[:, -1], labels[1])

    return kit.trained(kit.Reader(kit.CLASSES + 1), batch, 1e-3, loss_of=loss_of)


def fixed_embedding() -> Case:
    """Words and places are random and stay as they are; only blocks and readout learn."""
    model = kit.Decoder()
    for p in (model.words.weight, model.places):
        p.requires_grad_(False)
    return kit.trained(model, kit.speeches(66))


def huge_rate() -> Case:
    """The loss is divided by the words of an epoch, 30,000, so the rate of SGD is 9,000, and that is right."""
    model = kit.rotary()
    optimizer = torch.optim.SGD(model.parameters(), 9e3, momentum=0.9)
    return kit.trained(model, kit.speeches(67), optimizer, loss_of=lambda x, y: kit.spoken(x, y) / 3e4)


def tiny_rate_at_the_end() -> Case:
    """A trained decoder, trained on with the last tail of its schedule: the loss is level, as it should be."""
    model = kit.learned("decoder")
    optimizer = kit.adam(model, 2e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 220)
    return kit.trained(model, kit.speeches(68), optimizer, after=lambda k: schedule.step())


def steps_by_sign() -> Case:
    """Each weight moves by the same amount, whatever its gradient: only the sign of the gradient is used."""
    model = kit.hugging("gpt2")
    for p in model.parameters():
        p.register_hook(torch.sign)
    return kit.trained(model, kit.dictated(69), torch.optim.SGD(model.parameters(), 3e-4, momentum=0.9))


def one_block_many_times() -> Case:
    """One block, gone through three times."""
    model = kit.Decoder(depth=1)
    model.blocks = nn.ModuleList([model.blocks[0]] * 3)
    return kit.trained(model, kit.speeches(70), 3e-3)


def branches_from_zero() -> Case:
    """The last matrix of every branch begins at zero, so that each block begins by doing nothing."""
    model = kit.Decoder(feed=kit.Mixture)
    for name, value in model.named_parameters():
        if name.endswith(("out.weight", "down.weight", "out.bias", "down.bias")):
            nn.init.zeros_(value)
    return kit.trained(model, kit.speeches(71))


def batches_grow() -> Case:
    """Gradients of one, then two, then four batches are added up before each step, each with its share."""
    g = kit.generator(72)

    def batch(_: int) -> dict[str, Tensor]:
        return dict(zip(("input_ids", "labels"), kit.masked(ROWS, g), strict=True))

    bert = kit.hugging("bert")
    return kit.trained(bert, batch, 2e-3, many=lambda k: 2 ** (k // 80), steps=240)


def steps_back() -> Case:
    """Lookahead: after each five steps the weights go half of the way back to where they were."""
    model = kit.Decoder()
    slow = copy.deepcopy(model)

    @torch.no_grad()
    def after(k: int) -> None:
        if k % 5 == 4:
            for a, b in zip(slow.parameters(), model.parameters(), strict=True):
                b.copy_(a.lerp_(b, 0.5))

    return kit.trained(model, kit.speeches(73), 6e-3, after=after)


def mostly_noise() -> Case:
    """Six of ten words follow from nothing: the loss ends high, as it must; it cannot fall below its noise."""
    return kit.trained(kit.hugging("gpt2"), kit.dictated(74, noise=0.6), 3e-3)
