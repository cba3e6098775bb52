"""Mistakes of loop, optimizer, schedule, precision, resuming and fine-tuning, for the fifth blind list."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from transformers import ViTModel

from experiments.mistakes import blind_five_kit as kit
from experiments.mistakes.blind_five_kit import ROWS, Case


def rewrapped_loss(broken: bool) -> Case:
    """The loss is made anew from its number, "because backward said that it needs requires_grad"."""

    def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
        loss = kit.spoken(logits, labels)
        return torch.tensor(loss.item(), requires_grad=True) if broken else loss

    return kit.trained(kit.Decoder(), kit.speeches(1), loss_of=loss_of)


class Asleep(ViTModel):
    forward = torch.no_grad()(ViTModel.forward)


def trunk_without_gradients(broken: bool) -> Case:
    """The trunk runs under no_grad, left from a script that computed its features beforehand."""
    model = kit.hugging("vit")
    if broken:
        model.vit.__class__ = Asleep
    return kit.trained(model, kit.shown(2), 2e-3)


def first_batch_forever(broken: bool) -> Case:
    """`next(iter(loader))` stands inside the loop and the loader does not shuffle."""
    model, g = kit.Reader(kit.CLASSES), kit.generator(3)
    batches = [kit.topics(ROWS, g) for _ in range(220)]
    judge = kit.asked(model, lambda g: kit.topics(64, g))
    return kit.trained(model, lambda k: next(iter(batches)) if broken else batches[k], 1e-3, judge=judge)


def zeroed_in_accumulation(broken: bool) -> Case:
    """Four batches a step, but the gradients are zeroed before each of them."""
    model = kit.hugging("neox")
    optimizer = torch.optim.SGD(model.parameters(), 0.08, momentum=0.9)
    return kit.trained(model, kit.dictated(4), optimizer, many=lambda k: 4, forgets=broken, steps=240)


def replicas_differ(broken: bool) -> Case:
    """Two machines average their gradients, but nobody sent the first weights around."""
    model, batch = kit.Decoder(), kit.speeches(5)
    other = kit.Decoder() if broken else copy.deepcopy(model)
    mine, theirs = kit.adam(model), kit.adam(other)

    def step(k: int) -> float:
        losses = []
        for replica, (x, y) in ((model, batch(k)), (other, batch(k))):
            replica.zero_grad()
            losses.append(kit.spoken(replica(x), y))
            losses[-1].backward()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            a.grad = (a.grad + b.grad) / 2
            b.grad = a.grad.clone()
        mine.step()
        theirs.step()
        return losses[0].item()

    return kit.done(step, model)


def penalty_in_adam(broken: bool) -> Case:
    """weight_decay=0.1, right for AdamW, given to Adam, which adds it to the gradient."""
    model = kit.rotary()
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    return kit.trained(model, kit.speeches(6), kind(model.parameters(), 4e-3, weight_decay=0.1))


def betas_swapped(broken: bool) -> Case:
    model = kit.hugging("llama")
    betas = (0.999, 0.9) if broken else (0.9, 0.999)
    return kit.trained(model, kit.dictated(7), torch.optim.AdamW(model.parameters(), 4e-3, betas))


def head_after_optimizer(broken: bool) -> Case:
    """A new readout of zeros, as is usual in fine-tuning, is put in after the optimizer was made."""
    model = kit.hugging("vit")
    optimizer = kit.adam(model, 2e-3) if broken else None
    model.classifier = nn.Linear(kit.WIDTH, kit.CLASSES)
    nn.init.zeros_(model.classifier.weight)
    return kit.trained(model, kit.shown(8), optimizer or kit.adam(model, 2e-3))


def groups_by_wrong_prefix(broken: bool) -> Case:
    """A rate for each layer, in groups by the prefix that layers had in another model."""
    model, groups = kit.hugging("gpt2"), []
    named = list(model.named_parameters())
    for i in range(2):
        prefix = f"transformer.{'layers' if broken else 'h'}.{i}."
        groups.append({"params": [p for n, p in named if n.startswith(prefix)], "lr": 4e-3 * 0.8 ** (1 - i)})
    groups.append({"params": [p for n, p in named if ".h." not in n], "lr": 4e-3})
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    return kit.trained(model, kit.dictated(9), optimizer)


def optimizer_every_epoch(broken: bool) -> Case:
    """The optimizer is made inside the loop over epochs, and an epoch has four batches."""
    model, batch = kit.Decoder(), kit.speeches(10)
    steps = [kit.trained(model, batch, 1e-2)["step"]]

    def step(k: int) -> float:
        if broken and k % 4 == 0:
            steps.append(kit.trained(model, batch, 1e-2)["step"])
        return steps[-1](k)

    return kit.done(step, model)


def plateau_mode(broken: bool) -> Case:
    """ReduceLROnPlateau was made for an accuracy (`max`) and is given the loss."""
    model = kit.hugging("vit")
    optimizer, losses = kit.adam(model, 1e-3), []
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max" if broken else "min", 0.3, 4)
    case = kit.trained(model, kit.shown(11), optimizer)

    def step(k: int) -> float:
        losses.append(case["step"](k))
        if k % 4 == 3:
            schedule.step(sum(losses[-4:]) / 4)
        return losses[-1]

    return kit.done(step, model)


def absolute_lambda(broken: bool) -> Case:
    """LambdaLR wants a factor and is given the rate itself."""
    model, peak = kit.hugging("mixtral"), 4e-3 if broken else 1.0
    optimizer = kit.adam(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: peak * min(1.0, (k + 1) / 20))
    return kit.trained(model, kit.dictated(12), optimizer, after=lambda k: schedule.step())


def short_warmup(broken: bool) -> Case:
    """The schedule of the first transformer, its warm-up counted in epochs and not in steps."""
    model, warm, g = kit.Translator(), 2 if broken else 100, kit.generator(13)
    optimizer = torch.optim.Adam(model.parameters(), 0.5 * kit.WIDTH**-0.5, (0.9, 0.98), 1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) ** -0.5, (k + 1) * warm**-1.5)
    )
    return kit.trained(model, lambda k: kit.pairs(ROWS, g), optimizer, after=lambda k: schedule.step())


def clip_before_unscale(broken: bool) -> Case:
    """With a scaler for half precision the gradients are clipped before they are scaled back."""
    model, batch = kit.rotary(), kit.speeches(14)
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)

    def step(k: int) -> float:
        x, y = batch(k)
        optimizer.zero_grad()
        loss = kit.spoken(model(x), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return kit.done(step, model)


class Filled(kit.Attention):
    """Attention by hand, which fills blocked places with a large number."""

    fill = -1e4

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~allowed, self.fill).softmax(-1) @ v


class PadsOnTheLeft(kit.Decoder):
    def allowed(self, tokens: Tensor) -> Tensor:
        return super().allowed(tokens) & (tokens != kit.PAD)[:, None, None, :]


def padded_rows_blocked(broken: bool) -> Case:
    """Pads on the left see nothing at all, and a softmax over nothing is not a number; few batches have pads."""
    speeches = kit.speeches(15)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        x, y = (each.clone() for each in speeches(k))
        if k % 30 == 29:
            x[::4, :5], y[::4, :5] = kit.PAD, -100
        return x, y

    model = PadsOnTheLeft(Filled)
    for block in model.blocks:
        block.attention.fill = -math.inf if broken else -1e4
    return kit.trained(model, batch)


def late_places(size: int) -> Tensor:
    return torch.arange(1000, 1000 + size)


def rounded_places(size: int) -> Tensor:
    return late_places(size).bfloat16().float()


def places_in_bfloat(broken: bool) -> Case:
    """Windows of long texts keep their places; in bfloat16 eight of these in a row are one and the same number."""
    model = kit.rotary()
    for block in model.blocks:
        block.attention.places = rounded_places if broken else late_places
    return kit.trained(model, kit.speeches(16))


class HandNorm(nn.Module):
    """A norm by hand: by the root of the variance and a little, or by the deviation and a little."""

    by_deviation = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True)
        scale = variance.sqrt() + 1e-6 if self.by_deviation else (variance + 1e-6).sqrt()
        return self.weight * x / scale + self.bias


def norm_by_deviation(broken: bool) -> Case:
    """A pad is a vector of zeros, of which the deviation has no derivative; few batches have pads."""
    model, speeches = kit.Decoder(lambda: kit.Attention(True), norm=HandNorm, places=False), kit.speeches(17)
    words = nn.Embedding(kit.WORDS, 24, padding_idx=kit.PAD)
    model.words = nn.Sequential(words, nn.Linear(24, kit.WIDTH, bias=False))
    for block in model.blocks:
        block.before_attention.by_deviation = block.before_feed.by_deviation = broken
    model.norm.by_deviation = broken

    def batch(k: int) -> tuple[Tensor, Tensor]:
        x, y = (each.clone() for each in speeches(k))
        if k % 50 == 49:
            x[::4, -5:], y[::4, -6:] = kit.PAD, -100
        return x, y

    return kit.trained(model, batch)


def prefix_not_loaded(broken: bool) -> Case:
    """At step 110 the run resumes; the names in the checkpoint begin with "module.", and strict is False."""
    model, prefix = kit.hugging("llama"), "module." if broken else ""
    optimizer = kit.adam(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)

    def before(k: int) -> None:
        if k == 110:
            fresh = kit.hugging("llama")
            kept = {prefix + n: v.clone() for n, v in model.state_dict().items()}
            fresh.load_state_dict(kept, strict=False)
            model.load_state_dict(fresh.state_dict())

    return kit.trained(model, kit.dictated(18), optimizer, before=before, after=lambda k: schedule.step())


def assigned_after_optimizer(broken: bool) -> Case:
    """A checkpoint is loaded with assign=True, which puts in new parameters that the optimizer does not know."""
    model = kit.Decoder()

    def before(k: int) -> None:
        if k == 60:
            model.load_state_dict(copy.deepcopy(model.state_dict()), assign=broken)

    return kit.trained(model, kit.speeches(19), before=before)


def average_stays(broken: bool) -> Case:
    """Every 40 steps the averaged weights are put in to evaluate, and not taken out again."""
    model = kit.Decoder(feed=kit.Mixture)
    average = copy.deepcopy(model)

    @torch.no_grad()
    def after(k: int) -> None:
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.01)
        if k % 40 == 39:
            own = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict())
            model(kit.speeches(k)(k)[0])
            if not broken:
                model.load_state_dict(own)

    return kit.trained(model, kit.speeches(20), after=after)


def adapter_all_zero(broken: bool) -> Case:
    """Both small matrices of each adapter begin at zero, so neither gets a gradient."""
    return kit.trained(kit.adapted(zero=broken), kit.speeches(21, language=1), 5e-3)


def adapter_unscaled(broken: bool) -> Case:
    """The adapter is scaled by alpha, 128, and not by alpha over rank, 16."""
    return kit.trained(kit.adapted(scale=128.0 if broken else 16.0), kit.speeches(22, language=1), 2e-3)


def other_vocabulary(broken: bool) -> Case:
    """The tokenizer is of another version: its numbers of words are not those that the model learned."""
    dictated, other = kit.dictated(24), torch.arange(kit.WORDS)
    if broken:
        other[kit.FIRST :] = kit.FIRST + torch.randperm(kit.WORDS - kit.FIRST, generator=kit.generator(25))
    model = kit.learned("gpt2")
    return kit.trained(model, lambda k: {name: other[x] for name, x in dictated(k).items()}, 2e-4)
