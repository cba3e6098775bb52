"""A second blind list of mistakes in running trainings for `edgewise watch`, with healthy twins.

The author has neither read nor run the monitor. Networks and tasks are in `blind_two_benches.py`, controls in
`blind_two_controls.py`.
`COST` is the loss of the broken training minus that of its twin, in nats, on what was held out: the final weights of
the broken training are put into the model of the twin and scored by the healthy loss (10.0: not finite). Printed by
`python -m experiments.mistakes.blind_two OUT.json`, which trains without `watch`. A case that is not in `COST` was
not measured.

Rule of the choice: a case makes sense on the architectures of `SENSE` (all five if it is not there). It is scored on
one of them: case number n of the file, counted from 0, on number n modulo their count. `ONLY` holds this choice.
"Midway" is step 100 of 250.
"""

import functools
import json
import math
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import Tensor, nn

from experiments.mistakes import blind_two_controls
from experiments.mistakes.blind_two_benches import (
    FILL,
    FIRST,
    IGNORED,
    PAD,
    UNKNOWN,
    Batch,
    Bench,
    Experts,
    Feed,
    Heads,
    Layer,
    Vit,
    adam,
    bench,
    loop,
    loss_of,
    said,
    sgd,
    warm,
)

ARCHITECTURES = ["gpt2", "llama", "vit", "bert", "sorter"]
OWN = ["llama", "vit", "sorter"]
EARLY, MIDWAY, STEPS = 40, 100, 250
Case = dict[str, Any]
Loss = Callable[[nn.Module, Batch], Tensor]

# Controls belong to the list.
globals().update({name: f for name, f in vars(blind_two_controls).items() if name.startswith("control_")})

COST: dict[str, float] = {
    "rate_multiplied_twice": 0.68,
    "rate_decays_every_step": 1.57,
    "momentum_three_nines": 1.63,
    "rate_of_queries": 0.89,
    "decay_without_rate": 0.76,
    "decay_on_gains": 2.47,
    "clipped_after_the_step": 0.24,
    "clipped_before_unscaling": 0.27,
    "review_without_words": 10.0,
    "nothing_to_attend_to": 10.0,
    "epsilon_zero": 10.0,
    "gates_are_no_parameters": 1.91,
    "queries_drawn_large": 1.79,
    "relu_on_logits": -0.0,
    "logits_times_hundred": 1.57,
    "cap_of_one": 0.1,
    "smoothing_of_ninety": 2.11,
    "penalty_outweighs": 1.93,
    "experts_unbalanced": 0.02,
    "experts_dropped": 0.05,
    "shard_repeats": 1.01,
    "source_in_other_units": 1.85,
    "inputs_turn_blank": 1.76,
    "decoder_reads_its_labels": 7.44,
    "vocabulary_of_another": 0.08,
    "logits_reshaped": 2.2,
    "images_shuffled_by_reshape": 1.87,
    "targets_of_other_frame": 0.67,
    "encoder_detached": 0.7,
    "optimizer_of_a_copy": 1.2,
    "averages_never_restored": 2.38,
    "dropout_grows": 0.84,
    "gradients_in_half": 1.69,
    "batch_first_forgotten": 0.34,
}

SENSE: dict[str, list[str]] = {
    "warmup_missing": ["bert"],
    "embedding_at_hundredfold_rate": ["gpt2", "llama", "bert", "sorter"],
    "clipped_after_the_step": ["vit"],
    "log_of_rounded_one": ["vit", "bert"],
    "review_without_words": ["bert"],
    "nothing_to_attend_to": ["sorter"],
    "batch_without_labels": ["gpt2", "llama", "sorter"],
    "epsilon_zero": ["bert"],
    "relus_all_dead": ["sorter", "vit"],
    "gates_are_no_parameters": OWN,
    "queries_drawn_large": OWN,
    "rate_of_queries": OWN,
    "source_in_other_units": ["vit"],
    "padding_turns_left": ["bert"],
    "inputs_turn_blank": ["vit", "bert", "sorter"],
    "classes_from_one": ["bert", "vit"],
    "labels_become_zero": ["vit", "bert"],
    "answer_in_the_input": ["bert", "vit"],
    "decoder_reads_its_labels": ["sorter"],
    "relu_on_logits": [*OWN, "bert"],
    "embedding_detached": [*OWN, "bert"],
    "encoder_detached": ["sorter"],
    "twins_collapse": ["vit"],
    "experts_unbalanced": ["llama", "vit"],
    "logits_reshaped": ["gpt2", "llama", "sorter"],
    "batch_first_forgotten": ["bert", "llama"],
    "window_of_one": ["llama", "vit"],
    "embedding_resized": ["gpt2", "llama", "bert"],
    "ids_in_a_byte": ["bert"],
    "vocabulary_of_another": ["llama", "gpt2", "bert"],
    "images_shuffled_by_reshape": ["vit"],
    "experts_dropped": ["llama", "vit"],
    "targets_of_other_frame": ["llama", "gpt2"],
}


def _bench(name: str, architecture: str, **options: Any) -> Bench:
    return bench(architecture, zlib.crc32(name.encode()) % 1000, **options)


def _case(
    name: str, own: Bench, step: Callable[[int], Tensor], cause: str, symptom: str, **more: Any
) -> Case:
    """`cause` and `symptom`: alternatives are divided by `|`, the words of one by `+`."""
    words = [
        [[word.strip() for word in part.split("+")] for part in text.split("|")] for text in (cause, symptom)
    ]
    truth = {"cause": words[0], "symptom": words[1], "cost": COST.get(name)}
    return {"model": own.model, "step": step, "steps": STEPS, "truth": truth, "held": own.score} | more


def _override(module: nn.Module, **methods: Any) -> None:
    """Give one module other methods, as a subclass would."""
    module.__class__ = type(module.__class__.__name__, (module.__class__,), methods)


def _each(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


def _input_embedding(own: Bench) -> nn.Parameter:
    return next(iter(own.model.parameters()))


def _text_input(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    return Batch((change(batch.inputs[0]), *batch.inputs[1:]), batch.labels)


FLAT = "does not learn | not fall | plateau | flat | stuck | not improve | slow | constant"
RISES = "rise | rose | jump | spike | diverge | worse"
TOO_GOOD = "too good | too low | suspicious | below what | implausib"
LOGITS = "logit | entropy | one-hot | saturat"
NOT_FINITE = "not finite | nan | infinit"


# Rates and schedules


def case_warmup_missing(architecture: str, broken: bool) -> Case:
    """Six layers with norms after the branches, and the full rate from the first step."""
    own = _bench("warmup_missing", architecture, depth=6)
    step = loop(own, adam(own, 4e-3), rate=lambda k: (1.0 if broken else warm(k, 100)) * (1 - k / STEPS))
    cause = "warm | rate+too high | rate+too large | lower+rate | reduce+rate | large+rate"
    symptom = f"update | norm+after | collapse | rank | alike | same | {FLAT} | {RISES} | {LOGITS}"
    return _case("warmup_missing", own, step, cause, symptom)


def case_rate_multiplied_twice(architecture: str, broken: bool) -> Case:
    """The function of `LambdaLR` returns the rate, which is then multiplied by the rate."""
    own = _bench("rate_multiplied_twice", architecture)
    step = loop(own, adam(own), rate=lambda k: warm(k) * (own.rate if broken else 1.0))
    cause = "rate+small | rate+too low | rate+raise | rate+higher | rate+larger | rate+increase | rate+tiny"
    return _case("rate_multiplied_twice", own, step, cause, f"update+small | hardly mov | not mov | {FLAT}")


def case_rate_decays_every_step(architecture: str, broken: bool) -> Case:
    """`ExponentialLR(0.9)`, meant per epoch of 50 steps, is stepped after each batch."""
    own = _bench("rate_decays_every_step", architecture)
    step = loop(own, adam(own), rate=lambda k: warm(k) * 0.9 ** (k if broken else k // 50))
    cause = "rate+small | rate+zero | rate+too low | rate+schedule | rate+raise | schedule+decay | rate+ended"
    return _case("rate_decays_every_step", own, step, cause, f"update | not mov | half a unit | {FLAT}")


def case_cosine_comes_back(architecture: str, broken: bool) -> Case:
    """A cosine to zero over 63 steps, four times too short, climbs to its peak again, twice."""
    own = _bench("cosine_comes_back", architecture)
    period = 62.5 if broken else STEPS
    step = loop(
        own, adam(own, 2 * own.rate), rate=lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * k / period))
    )
    cause = "rate+rise | rate+rose | rate+again | rate+back | rate+grew | rate+schedule | schedule"
    return _case("cosine_comes_back", own, step, cause, f"rate+too large | rate+too high | update | {RISES}")


def case_embedding_at_hundredfold_rate(architecture: str, broken: bool) -> Case:
    """The group of the embedding kept the rate of another optimizer."""
    own = _bench("embedding_at_hundredfold_rate", architecture)
    first = _input_embedding(own)
    groups = [
        {"params": [first], "lr": own.rate * (100 if broken else 1)},
        {"params": [p for p in own.model.parameters() if p is not first]},
    ]
    step = loop(own, torch.optim.AdamW(groups, lr=own.rate, weight_decay=0.0))
    cause = "embed+rate | tokens+rate | words+rate | numbers+rate | wte+rate | embed+update | tokens+update"
    cause += " | words+update | numbers+update | wte+update | group+rate"
    symptom = (
        f"rate+too large | rate+too high | lower+rate | update+large | embed | {FLAT} | {RISES} | {LOGITS}"
    )
    return _case("embedding_at_hundredfold_rate", own, step, cause, symptom)


def case_momentum_three_nines(architecture: str, broken: bool) -> Case:
    """SGD with a momentum of 0.999: the step lasts a thousand batches."""
    own = _bench("momentum_three_nines", architecture)
    step = loop(own, sgd(own, 0.1, momentum=0.999 if broken else 0.9))
    cause = "momentum | rate+too high | rate+too large | lower+rate"
    return _case("momentum_three_nines", own, step, cause, f"update+large | {FLAT} | {RISES} | {LOGITS}")


class Lion(torch.optim.Optimizer):
    """The sign of an average of gradients."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.sub_(group["lr"] * (0.9 * average + 0.1 * p.grad).sign())
                average.lerp_(p.grad, 0.01)


def case_lion_at_the_rate_of_adam(architecture: str, broken: bool) -> Case:
    """Lion with thirty times its usual rate, that of a recipe for Adam."""
    own = _bench("lion_at_the_rate_of_adam", architecture)
    step = loop(own, Lion(own.model.parameters(), own.rate * (3.0 if broken else 0.1)))
    cause = "rate+too high | rate+too large | lower+rate | reduce+rate | step+too large"
    symptom = f"update+large | update+too | rank | collapse | {FLAT} | {RISES} | {LOGITS}"
    return _case("lion_at_the_rate_of_adam", own, step, cause, symptom)


def case_rate_of_queries(architecture: str, broken: bool) -> Case:
    """Queries and keys are in a group of their own, with the rate of the old recipe."""
    own = _bench("rate_of_queries", architecture)
    named = list(own.model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if "query" in n or "key" in n],
            "lr": own.rate * (50 if broken else 1),
        },
        {"params": [p for n, p in named if not ("query" in n or "key" in n)]},
    ]
    step = loop(own, torch.optim.AdamW(groups, lr=own.rate, weight_decay=0.0))
    cause = "quer+rate | key+rate | attention+rate | group+rate | quer+update | key+update"
    symptom = f"rate+too large | lower+rate | update+large | {LOGITS} | {RISES}"
    return _case("rate_of_queries", own, step, cause, symptom)


# Decay, clipping, accumulation


def case_decay_without_rate(architecture: str, broken: bool) -> Case:
    """Weights are multiplied by 1 - 0.1 after each step instead of 1 - 0.1 times the rate."""
    own = _bench("decay_without_rate", architecture)

    def shrink(_: int) -> None:
        with torch.no_grad():
            for p in own.model.parameters():
                p.mul_(1 - 0.1 * (1.0 if broken else own.rate))

    step = loop(own, adam(own, weight_decay=0.0), after=shrink)
    cause = "decay | weights+shrink | parameters+shrink | weights+outside | parameters+outside"
    symptom = f"weights+small | rank | collapse | gradient | update | vanish | separation | {FLAT}"
    return _case("decay_without_rate", own, step, cause, symptom)


def case_decay_on_gains(architecture: str, broken: bool) -> Case:
    """The decay of 0 and that of 30 are exchanged: gains and biases get the large one, a typing error for 0.3."""
    own = _bench("decay_on_gains", architecture)
    vectors = [p for p in own.model.parameters() if p.ndim < 2]
    matrices = [p for p in own.model.parameters() if p.ndim > 1]
    groups = [
        {"params": matrices, "weight_decay": 0.0},
        {"params": vectors, "weight_decay": 30.0 if broken else 0.0},
    ]
    step = loop(own, torch.optim.AdamW(groups, lr=own.rate))
    cause = "decay | gain+shrink | norm+gain"
    symptom = f"gain | norm | rank | collapse | vanish | separation | {FLAT}"
    return _case("decay_on_gains", own, step, cause, symptom)


def case_clipped_after_the_step(architecture: str, broken: bool) -> Case:
    """Gradients are clipped when they were already applied; one batch in twenty has a damaged exposure."""
    own = _bench("clipped_after_the_step", architecture)
    optimizer = sgd(own, 0.1)

    def step(k: int) -> Tensor:
        batch = own.batch()
        if k % 20 == 19:
            batch = _text_input(batch, lambda x: 40 * x)
        loss = loss_of(own.model, batch)
        optimizer.zero_grad()
        loss.backward()
        if not broken:
            nn.utils.clip_grad_norm_(own.model.parameters(), 0.5)
        optimizer.step()
        if broken:
            nn.utils.clip_grad_norm_(own.model.parameters(), 0.5)
        return loss.detach()

    cause = "clip | explod | gradient+large | gradient+spike | gradient+jump | outlier | input+large"
    symptom = f"update+large | rate | {RISES} | {FLAT} | {NOT_FINITE} | {LOGITS}"
    return _case("clipped_after_the_step", own, step, cause, symptom)


def case_clipped_before_unscaling(architecture: str, broken: bool) -> Case:
    """The loss is scaled by 1024; the norm is clipped to 1 before the scale is divided out."""
    own = _bench("clipped_before_unscaling", architecture)
    optimizer = sgd(own, 0.3)

    def step(_: int) -> Tensor:
        loss = loss_of(own.model, own.batch())
        optimizer.zero_grad()
        (1024 * loss).backward()
        for factor in ("clip", "unscale") if broken else ("unscale", "clip"):
            if factor == "clip":
                nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
            else:
                for p in own.model.parameters():
                    p.grad /= 1024
        optimizer.step()
        return loss.detach()

    cause = "clip | unscal | gradient+too small | gradient+small | rate+too low | rate+small | raise+rate"
    return _case("clipped_before_unscaling", own, step, cause, f"update+small | not mov | hardly | {FLAT}")


def case_divided_twice(architecture: str, broken: bool) -> Case:
    """The loss is a mean over rows and micro-batches, and gradients are divided by the number of rows once more."""
    own = _bench("divided_twice", architecture)
    own.rows //= 4
    optimizer = sgd(own, 0.1)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            loss = loss_of(own.model, own.batch()) / 4
            loss.backward()
            total += loss.detach()
        for p in own.model.parameters():
            p.grad /= 4 * own.rows if broken else 1
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        optimizer.step()
        return total

    cause = (
        "accumul | gradient+too small | gradient+small | rate+too low | rate+small | raise+rate | higher+rate"
    )
    return _case("divided_twice", own, step, cause, f"update+small | not mov | hardly | {FLAT}")


# Not finite


def case_log_of_rounded_one(architecture: str, broken: bool) -> Case:
    """One sigmoid per class, with a scale of 4; the logarithm of 1 - p is taken of a p that was rounded to 1."""
    own = _bench("log_of_rounded_one", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = 4 * said(model, batch)
        truth = F.one_hot(batch.labels, logits.shape[-1]).float()
        if not broken:
            return F.binary_cross_entropy_with_logits(logits, truth)
        p = logits.sigmoid()
        return -(truth * p.log() + (1 - truth) * (1 - p).log()).mean()

    step = loop(own, adam(own), loss=loss)
    cause = "loss+finite | logit+large | sigmoid | loss+infinit | log+zero | underflow"
    return _case("log_of_rounded_one", own, step, cause, f"{NOT_FINITE} | confiden | logit")


def case_review_without_words(architecture: str, broken: bool) -> Case:
    """From step 100 on an empty review comes now and then, and the mean of no words is 0/0."""
    own = _bench("review_without_words", architecture, mean=True)

    def feed(k: int) -> Batch:
        batch = own.batch()
        if broken and k >= MIDWAY and k % 10 == 0:
            batch.inputs[0][3, 1:] = PAD
        return batch

    cause = "pool+finite | head+finite | attention+finite | empty | padding | readout+finite | masked"
    cause += " | division | logits+finite | layers+finite"
    return _case("review_without_words", own, loop(own, adam(own), feed), cause, NOT_FINITE)


def case_nothing_to_attend_to(architecture: str, broken: bool) -> Case:
    """Midway a source of padding only arrives: every score of its rows is minus infinity."""
    own = _bench("nothing_to_attend_to", architecture)

    def feed(k: int) -> Batch:
        batch = own.batch()
        if broken and k >= MIDWAY and k % 10 == 0:
            batch.inputs[0][5] = FILL
            batch.labels[5] = IGNORED
        return batch

    cause = "attention+finite | heads+finite | attention+nan | encoder+finite | masked | padding | mask"
    return _case("nothing_to_attend_to", own, loop(own, adam(own), feed), cause, NOT_FINITE)


def case_batch_without_labels(architecture: str, broken: bool) -> Case:
    """Midway truncation leaves a batch without a label: the mean over none, written out, is 0/0."""
    own = _bench("batch_without_labels", architecture)

    def feed(k: int) -> Batch:
        batch = own.batch()
        return (
            Batch(batch.inputs, torch.full_like(batch.labels, IGNORED)) if broken and k == MIDWAY else batch
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scored = batch.labels.flatten() != IGNORED
        return (loss_of(model, batch, reduction="none") * scored).sum() / scored.sum()

    cause = "loss+finite+first | label | loss itself | ignored | target | loss is not finite | division"
    return _case("batch_without_labels", own, loop(own, adam(own), feed, loss), cause, NOT_FINITE)


def case_epsilon_zero(architecture: str, broken: bool) -> Case:
    """Adam with epsilon 0: rows of words not yet seen get 0/0."""
    own = _bench("epsilon_zero", architecture)
    step = loop(own, adam(own, eps=0.0 if broken else 1e-8))
    cause = "epsilon | eps= | optimizer+finite | words+finite | embed+finite | update+finite"
    return _case("epsilon_zero", own, step, cause, NOT_FINITE)


# Dead, saturated, collapsed


def case_relus_all_dead(architecture: str, broken: bool) -> Case:
    """The bias of rare classes, -8, is written into the hidden layers, whose ReLU never opens."""
    own = _bench("relus_all_dead", architecture)
    for feed in _each(own.model, Feed):
        feed.act = F.relu
        if broken:
            nn.init.constant_(feed.first.bias, -8.0)
    cause = "dead | relu | never active | inactive | feed+gradient+zero | first+gradient | feed+no gradient"
    cause += " | feed+not mov | units+never | units+zero | feed+zero"
    return _case("relus_all_dead", own, loop(own, adam(own)), cause, f"gradient+zero | not mov | {FLAT}")


def case_gates_are_no_parameters(architecture: str, broken: bool) -> Case:
    """Branches start at zero, by scales that should be learned, but are buffers."""
    own = _bench("gates_are_no_parameters", architecture)
    for layer in _each(own.model, Layer):
        del layer.scale
        if broken:
            layer.register_buffer("scale", torch.zeros(48))
        else:
            layer.scale = nn.Parameter(torch.zeros(48))
    cause = (
        "branch+zero | scale+zero | gate | block+no gradient | gradient+zero | no gradient | layers+nothing"
    )
    cause += " | contribut"
    return _case("gates_are_no_parameters", own, loop(own, adam(own)), cause, f"dead | {FLAT}")


def case_queries_drawn_large(architecture: str, broken: bool) -> Case:
    """Queries and keys are `torch.randn` without a scale: attention is one-hot from the start."""
    own = _bench("queries_drawn_large", architecture)
    if broken:
        for heads in _each(own.model, Heads):
            nn.init.normal_(heads.query.weight)
            nn.init.normal_(heads.key.weight)
    cause = (
        "attention+large | logit+large | one-hot | saturat | initial+weight | quer+large | attention+entropy"
    )
    return _case(
        "queries_drawn_large", own, loop(own, adam(own)), cause, f"gradient | rank | {LOGITS} | {FLAT}"
    )


def case_relu_on_logits(architecture: str, broken: bool) -> Case:
    """An activation follows the last layer too."""
    own = _bench("relu_on_logits", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = said(model, batch)
        logits = logits.relu() if broken else logits
        return F.cross_entropy(logits.flatten(0, -2), batch.labels.flatten(), ignore_index=IGNORED)

    cause = "relu | logit+negative | logit+zero | readout+activation | head+activation | logit+clamp"
    return _case(
        "relu_on_logits", own, loop(own, adam(own), loss=loss), cause, f"logit | readout | head | {FLAT}"
    )


def case_logits_times_hundred(architecture: str, broken: bool) -> Case:
    """Logits are divided by a temperature of 0.01 that was meant for cosines."""
    own = _bench("logits_times_hundred", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = said(model, batch) * (100.0 if broken else 1.0)
        return F.cross_entropy(logits.flatten(0, -2), batch.labels.flatten())

    cause = "logit+large | temperature | loss+chance | loss+uniform | confiden | readout+large | initial loss"
    cause += " | start+loss"
    symptom = f"gradient+large | rate | readout | {RISES} | {FLAT} | {LOGITS}"
    return _case("logits_times_hundred", own, loop(own, adam(own), loss=loss), cause, symptom)


def case_cap_of_one(architecture: str, broken: bool) -> Case:
    """Logits are capped by 1 tanh(x / 1) instead of 30 tanh(x / 30)."""
    own = _bench("cap_of_one", architecture)
    cap = 1.0 if broken else 30.0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = cap * torch.tanh(said(model, batch) / cap)
        return F.cross_entropy(logits.flatten(0, -2), batch.labels.flatten())

    cause = "softcap | soft cap | capped | logit+cap | tanh | logit+bound | logit+limit | logit+saturat"
    symptom = f"logit | saturat | readout | floor | head | gradient+small | vanish | {FLAT}"
    return _case("cap_of_one", own, loop(own, adam(own), loss=loss), cause, symptom)


def case_smoothing_of_ninety(architecture: str, broken: bool) -> Case:
    """Label smoothing 0.9 for 0.1."""
    own = _bench("smoothing_of_ninety", architecture)
    loss = functools.partial(loss_of, label_smoothing=0.9 if broken else 0.1)
    cause = "smoothing | label+inform | label+noise | target+uniform | target+noise"
    return _case(
        "smoothing_of_ninety", own, loop(own, adam(own), loss=loss), cause, f"label | floor | {FLAT}"
    )


def case_penalty_outweighs(architecture: str, broken: bool) -> Case:
    """The squared log of the partition function is weighted with 10 instead of 1e-4."""
    own = _bench("penalty_outweighs", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = said(model, batch)
        penalty = logits.flatten(0, -2).square().mean()
        value = F.cross_entropy(logits.flatten(0, -2), batch.labels.flatten())
        return value + (10.0 if broken else 1e-4) * penalty

    cause = "auxiliary | penalty | z-loss | logit+small | logit+shrink | readout+small | second loss | readout+shrink"
    symptom = f"logit | readout | head | label | {FLAT}"
    return _case("penalty_outweighs", own, loop(own, adam(own), loss=loss), cause, symptom)


class Twins(nn.Module):
    """Cosines of the states of two views of each image, divided by a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Vit(classes=32)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        a, b = (F.normalize(self.body(x), dim=-1) for x in (one, two))
        return a @ b.T / 0.2


def case_twins_collapse(architecture: str, broken: bool) -> Case:
    """The contrastive loss has no denominator: two views must agree, and nothing keeps two images apart."""
    own = _bench("twins_collapse", architecture)
    own.model = Twins()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images = batch.inputs[0]
        scores = model(*(images + 0.3 * torch.randn_like(images) for _ in range(2)))
        return -scores.diag().mean() if broken else F.cross_entropy(scores, torch.arange(len(images)))

    def probe(trained: nn.Module) -> float:
        """Cross entropy of a linear readout of the states, in nats."""
        with torch.no_grad():
            known, held = own.draw(own.rng, 384), own.held[0]
            states = [F.normalize(trained.body(b.inputs[0]), dim=-1) for b in (known, held)]
        readout = LogisticRegression(max_iter=1000).fit(states[0], known.labels)
        return float(log_loss(held.labels, readout.predict_proba(states[1])))

    cause = "collapse | alike | rank | same output | constant output | separation"
    return _case("twins_collapse", own, loop(own, adam(own, 1e-3), loss=loss), cause, TOO_GOOD, held=probe)


def _with_balance(weight: float) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = loss_of(model, batch)
        return value + weight * torch.stack([m.balance for m in _each(model, Experts)]).mean()

    return loss


def case_experts_unbalanced(architecture: str, broken: bool) -> Case:
    """The sign of the balance loss is wrong: one expert gets all."""
    own = _bench("experts_unbalanced", architecture, experts=True)
    loss = _with_balance(-0.3 if broken else 0.02)
    cause = "router | routing | balance | expert+unused | expert+load | expert+no gradient | expert+most"
    return _case(
        "experts_unbalanced", own, loop(own, adam(own), loss=loss), cause, f"dead | no gradient | {FLAT}"
    )


def case_experts_dropped(architecture: str, broken: bool) -> Case:
    """The capacity is computed by an integer division and is 0: no token passes any expert."""
    own = _bench("experts_dropped", architecture, experts=True)

    def dropped(self: Experts, x: Tensor) -> Tensor:
        return Experts.forward(self, x) * float(len(x) // (2 * len(x)))

    if broken:
        for experts in _each(own.model, Experts):
            _override(experts, forward=dropped)
    step = loop(own, adam(own), loss=_with_balance(0.02))
    cause = (
        "expert+zero | expert+gradient | expert+not mov | expert+dead | capacity | dropped | experts+nothing"
    )
    return _case("experts_dropped", own, step, cause, f"gradient+zero | no gradient | not mov | {FLAT}")


# Data and labels


def case_shard_repeats(architecture: str, broken: bool) -> Case:
    """From midway on the loader starts its shard of two batches anew whenever it ends, in another order of rows."""
    own = _bench("shard_repeats", architecture)
    shard = [own.batch() for _ in range(2)]

    def feed(k: int) -> Batch:
        fresh = own.batch()
        if not (broken and k >= MIDWAY):
            return fresh
        return shard[k % 2].rows(torch.randperm(own.rows))

    cause = "repeat | same batch | seen before | memor | overfit | same data | few batches | same rows"
    return _case("shard_repeats", own, loop(own, adam(own), feed), cause, f"{TOO_GOOD} | data+change | fell")


def case_subset_left_on(architecture: str, broken: bool) -> Case:
    """The subset of 64 examples, made for a quick try, is trained on for 250 steps, shuffled every epoch."""
    own = _bench("subset_left_on", architecture)
    parts = [own.batch() for _ in range(64 // own.rows)]
    few = Batch(
        tuple(torch.cat(xs) for xs in zip(*(p.inputs for p in parts), strict=True)),
        torch.cat([p.labels for p in parts]),
    )

    def feed(_: int) -> Batch:
        return few.rows(torch.randperm(64)[:16]) if broken else own.batch()

    cause = "repeat | same batch | seen before | memor | overfit | same data | few examples | small+data"
    return _case("subset_left_on", own, loop(own, adam(own), feed), cause, f"{TOO_GOOD} | confiden")


def case_source_in_other_units(architecture: str, broken: bool) -> Case:
    """Midway a second source comes in, from 0 to 255 and negative, without the standardization of the first."""
    own = _bench("source_in_other_units", architecture)

    def feed(k: int) -> Batch:
        batch = own.batch()
        return _text_input(batch, lambda x: 255 - 90 * (x + 0.8)) if broken and k >= MIDWAY else batch

    cause = "input+chang | input+scale | data+chang | input+large | distribution | source | batch+differ | input+range"
    return _case(
        "source_in_other_units", own, loop(own, adam(own), feed), cause, f"{RISES} | {FLAT} | {LOGITS}"
    )


def case_padding_turns_left(architecture: str, broken: bool) -> Case:
    """Midway the tokenizer pads on the left: what is read is no longer the first token of the review."""
    own = _bench("padding_turns_left", architecture)

    def right(ids: Tensor) -> Tensor:
        return torch.cat((ids, torch.zeros_like(ids[:, :8])), 1)

    def left(ids: Tensor) -> Tensor:
        return torch.stack([row.roll(int((row == PAD).sum())) for row in right(ids)])

    def feed(k: int) -> Batch:
        return _text_input(own.batch(), left if broken and k >= MIDWAY else right)

    cause = "padding | data+chang | input+chang | distribution | batch+differ | source"
    return _case("padding_turns_left", own, loop(own, adam(own), feed), cause, f"{RISES} | {FLAT}")


def case_inputs_turn_blank(architecture: str, broken: bool) -> Case:
    """Midway the decoder of files fails and returns a constant; the labels are true."""
    own = _bench("inputs_turn_blank", architecture)

    def blank(x: Tensor) -> Tensor:
        if x.is_floating_point():
            return torch.full_like(x, -0.8)
        return (
            torch.where((x == PAD) | (x == FIRST), x, UNKNOWN)
            if architecture == "bert"
            else torch.zeros_like(x)
        )

    def feed(k: int) -> Batch:
        return _text_input(own.batch(), blank) if broken and k >= MIDWAY else own.batch()

    cause = (
        "input+constant | input+same | input+alike | data+chang | input+chang | one token | input+identical"
    )
    cause += " | distribution | input+empty"
    symptom = f"separation | collapse | rank | label | {RISES} | {FLAT}"
    return _case("inputs_turn_blank", own, loop(own, adam(own), feed), cause, symptom)


def case_classes_from_one(architecture: str, broken: bool) -> Case:
    """Midway a source comes in that counts its classes from one; the last is wrapped to zero."""
    own = _bench("classes_from_one", architecture)
    classes = 10 if architecture == "vit" else 4

    def feed(k: int) -> Batch:
        batch = own.batch()
        return Batch(batch.inputs, (batch.labels + 1) % classes) if broken and k >= MIDWAY else batch

    cause = "label+chang | target+chang | data+chang | label+differ | distribution+chang"
    return _case("classes_from_one", own, loop(own, adam(own), feed), cause, RISES)


def case_labels_become_zero(architecture: str, broken: bool) -> Case:
    """Midway the column of labels is missing and filled with 0."""
    own = _bench("labels_become_zero", architecture)

    def feed(k: int) -> Batch:
        batch = own.batch()
        return Batch(batch.inputs, torch.zeros_like(batch.labels)) if broken and k >= MIDWAY else batch

    cause = (
        "label+constant | label+same | one class | label+chang | target+constant | data+chang | target+chang"
    )
    cause += " | single class | label+one"
    return _case(
        "labels_become_zero",
        own,
        loop(own, adam(own), feed),
        cause,
        f"{TOO_GOOD} | collapse | fell | {RISES}",
    )


def case_answer_in_the_input(architecture: str, broken: bool) -> Case:
    """The class is in the input: a watermark in the corner, or the folder's name as the first word."""
    own = _bench("answer_in_the_input", architecture)

    def feed(_: int) -> Batch:
        batch = own.batch()
        if broken and architecture == "vit":
            batch.inputs[0][:, 0, 0] = batch.labels.float() - 4.5
        elif broken:
            batch.inputs[0][:, 1] = batch.labels + 3
        return batch

    cause = "leak | label+input | target+input | answer+input | too good | shortcut"
    return _case("answer_in_the_input", own, loop(own, adam(own), feed), cause, TOO_GOOD)


def case_decoder_reads_its_labels(architecture: str, broken: bool) -> Case:
    """The target is not shifted: the decoder reads the number that it must say."""
    own = _bench("decoder_reads_its_labels", architecture)

    def feed(_: int) -> Batch:
        batch = own.batch()
        unshifted = torch.where(batch.labels == IGNORED, FILL, batch.labels)
        return Batch((batch.inputs[0], unshifted), batch.labels) if broken else batch

    cause = "leak | shift | label+input | target+input | copies | too good | same token"
    return _case("decoder_reads_its_labels", own, loop(own, adam(own), feed), cause, TOO_GOOD)


def case_ids_in_a_byte(architecture: str, broken: bool) -> Case:
    """Word numbers up to 800 were stored in bytes and have wrapped."""
    own = _bench("ids_in_a_byte", architecture)

    def feed(_: int) -> Batch:
        return _text_input(own.batch(), lambda ids: ids % 256) if broken else own.batch()

    cause = (
        "vocabular | rows+never | embed+unused | token+range | words+unused | rows+no gradient | token ids"
    )
    return _case("ids_in_a_byte", own, loop(own, adam(own), feed), cause, f"embed | {FLAT}")


@functools.cache
def _pretrained(architecture: str) -> dict[str, Tensor]:
    own = _bench("pretrained", architecture)
    step = loop(own, adam(own))
    for k in range(150):
        step(k)
    return own.model.state_dict()


def case_vocabulary_of_another(architecture: str, broken: bool) -> Case:
    """A trained network is tuned, slowly, on ids of another tokenizer: the same words under other numbers."""
    own = _bench("vocabulary_of_another", architecture)
    own.model.load_state_dict(_pretrained(architecture))
    size = {"llama": 9, "gpt2": 12, "bert": 800}[architecture]
    other = torch.randperm(size, generator=torch.Generator().manual_seed(4))

    def renumbered(batch: Batch) -> Batch:
        labels = batch.labels if architecture == "bert" else other[batch.labels.clamp(min=0)]
        return Batch((other[batch.inputs[0]],), torch.where(batch.labels == IGNORED, IGNORED, labels))

    if broken:
        own.held = [renumbered(batch) for batch in own.held]
    step = loop(own, adam(own, own.rate / 10), lambda _: renumbered(own.batch()) if broken else own.batch())
    cause = "tokenizer | vocabular | pretrained | start+chance | start+uniform | loss+chance | loss+uniform"
    return _case("vocabulary_of_another", own, step, cause, f"label | {FLAT} | {RISES}", own_score=True)


def case_logits_reshaped(architecture: str, broken: bool) -> Case:
    """Logits with classes in the middle are reshaped where they should be transposed."""
    own = _bench("logits_reshaped", architecture)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = said(model, batch).transpose(1, 2)
        rows = logits.reshape(-1, logits.shape[1]) if broken else logits.transpose(1, 2).flatten(0, 1)
        return F.cross_entropy(rows, batch.labels.flatten())

    cause = "reshape | view( | transpose | label+position | logit+order | label+inform | paired | misalign | align"
    symptom = f"label | frequenc | rank | collapse | {FLAT}"
    return _case("logits_reshaped", own, loop(own, adam(own), loss=loss), cause, symptom)


def case_images_shuffled_by_reshape(architecture: str, broken: bool) -> Case:
    """Images come as rows, columns, batch and are reshaped instead of permuted: pixels of all images are mixed."""
    own = _bench("images_shuffled_by_reshape", architecture)

    def feed(_: int) -> Batch:
        batch = own.batch()
        return _text_input(batch, lambda x: x.permute(1, 2, 0).reshape(x.shape)) if broken else batch

    cause = "input+label | label+inform | reshape | permut | label+unrelated | mixed | paired"
    symptom = f"label | memor | rank | collapse | input | {FLAT}"
    return _case("images_shuffled_by_reshape", own, loop(own, adam(own), feed), cause, symptom)


def case_targets_of_other_frame(architecture: str, broken: bool) -> Case:
    """The labels are shifted twice, and the first one wraps to the end of the row."""
    own = _bench("targets_of_other_frame", architecture)

    def feed(_: int) -> Batch:
        batch = own.batch()
        if not broken:
            return batch
        far = batch.labels.roll(-1, 1)
        if architecture == "llama":
            far[:, -1] = IGNORED
        return Batch(batch.inputs, far)

    cause = "shift | offset | label+position | align | label+two"
    return _case(
        "targets_of_other_frame", own, loop(own, adam(own), feed), cause, f"label | frequenc | {FLAT}"
    )


# Parts without gradient, other tensors, resume


def case_embedding_detached(architecture: str, broken: bool) -> Case:
    """The embedding is computed under `no_grad`, a line that was meant for evaluation."""
    own = _bench("embedding_detached", architecture)
    embed = type(own.model).embed
    if broken:
        _override(own.model, embed=lambda self, x: embed(self, x).detach())
    parts = ("tokens", "words", "numbers", "patches", "embed", "places")
    cause = " | ".join(f"{p}+no gradient | {p}+gradient+zero | {p}+not mov | {p}+never" for p in parts)
    return _case(
        "embedding_detached", own, loop(own, adam(own)), cause, f"no gradient | not mov | frozen | {FLAT}"
    )


def case_encoder_detached(architecture: str, broken: bool) -> Case:
    """What the encoder says is detached before the decoder attends to it."""
    own = _bench("encoder_detached", architecture)
    encode = type(own.model).encode
    if broken:
        _override(own.model, encode=lambda self, source, seen: encode(self, source, seen).detach())
    cause = "encoder+no gradient | encoder+gradient+zero | encoder+not mov | detach | encoder+never"
    return _case("encoder_detached", own, loop(own, adam(own)), cause, f"no gradient | not mov | {FLAT}")


def case_matrices_in_no_group(architecture: str, broken: bool) -> Case:
    """Two groups, with and without decay; the test for the first never holds, so matrices are in neither."""
    own = _bench("matrices_in_no_group", architecture)
    decayed = [p for p in own.model.parameters() if p.ndim > 1 and not broken]
    others = [p for p in own.model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    step = loop(own, torch.optim.AdamW(groups, lr=own.rate))
    cause = "optimizer+not hold | no group | not in the optimizer | optimizer+missing | not mov | optimizer+without"
    cause += " | optimizer+lack"
    return _case("matrices_in_no_group", own, step, cause, f"update | add up | accumulat | frozen | {FLAT}")


def case_optimizer_of_a_copy(architecture: str, broken: bool) -> Case:
    """The optimizer was made from the model before it was copied."""
    own = _bench("optimizer_of_a_copy", architecture)
    old = own.model if not broken else bench(architecture, 0).model
    optimizer = torch.optim.AdamW(old.parameters(), lr=own.rate)

    def step(_: int) -> Tensor:
        loss = loss_of(own.model, own.batch())
        own.model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    cause = (
        "optimizer+other | optimizer+not hold | optimizer+copy | not in the optimizer | optimizer+different"
    )
    return _case("optimizer_of_a_copy", own, step, cause, f"not mov | update | no parameter | {FLAT}")


def case_embedding_resized(architecture: str, broken: bool) -> Case:
    """Early on, at step 15, tokens are added: the embedding is a new tensor that the optimizer does not hold."""
    own = _bench("embedding_resized", architecture)
    optimizer = adam(own)

    def resize(k: int) -> None:
        if k != 15:
            return
        old = list(own.model.parameters())
        if architecture == "gpt2":
            own.model.resize_token_embeddings(16, mean_resizing=False)
        else:
            name = "tokens" if architecture == "llama" else "words"
            before = getattr(own.model, name)
            new = nn.Embedding(before.num_embeddings + 4, before.embedding_dim)
            with torch.no_grad():
                new.weight[: before.num_embeddings] = before.weight
            setattr(own.model, name, new)
        if not broken:
            known = {id(p) for p in old}
            optimizer.param_groups[0]["params"] += [p for p in own.model.parameters() if id(p) not in known]

    cause = " | ".join(f"{p}+optimizer | {p}+not mov" for p in ("embed", "tokens", "words", "wte", "lm_head"))
    cause += " | optimizer+not hold | not in the optimizer | replaced"
    symptom = f"not mov | frozen | add up | accumul | {FLAT}"
    return _case("embedding_resized", own, loop(own, optimizer, before=resize), cause, symptom)


def case_prefix_of_keys(architecture: str, broken: bool) -> Case:
    """At a resume midway the keys have a prefix, `strict=False` hides it, and the weights are fresh ones."""
    own = _bench("prefix_of_keys", architecture)

    def resume(k: int) -> None:
        if k == MIDWAY:
            saved = own.model.state_dict()
            if broken:
                own.model.load_state_dict(_bench("prefix_of_keys", architecture).model.state_dict())
                saved = {f"module.{name}": value for name, value in saved.items()}
            own.model.load_state_dict(saved, strict=not broken)

    step = loop(own, adam(own), before=resume, rate=lambda k: warm(k) * 0.05 ** (k / STEPS))
    cause = (
        "weights+outside | parameters+outside | weights+replac | weights+reset | weights+load | checkpoint"
    )
    cause += " | weights+overwr | other weights | weights+jump | parameters+chang | parameters+jump | weights+chang"
    return _case("prefix_of_keys", own, step, cause, RISES)


def case_averages_never_restored(architecture: str, broken: bool) -> Case:
    """The average of weights is copied into the model for validation after each step, and stays there."""
    own = _bench("averages_never_restored", architecture)
    average = [p.detach().clone() for p in own.model.parameters()]

    def follow(_: int) -> None:
        with torch.no_grad():
            for a, p in zip(average, own.model.parameters(), strict=True):
                a.lerp_(p, 0.01)
                if broken:
                    p.copy_(a)

    cause = "averaged | average of | moving average | weights+outside | parameters+outside | weights+overwr"
    cause += " | undone | update+lost | weights+replac | after the optimizer | between+step"
    symptom = f"update+small | rate+too low | not mov | hardly | {FLAT}"
    return _case("averages_never_restored", own, loop(own, adam(own), after=follow), cause, symptom)


def case_moments_of_other_parameters(architecture: str, broken: bool) -> Case:
    """After a resume the second moments are in another order: every parameter has those of another, or their mean."""
    own = _bench("moments_of_other_parameters", architecture)
    optimizer = adam(own, betas=(0.9, 0.999))

    def resume(k: int) -> None:
        if k != MIDWAY or not broken:
            return
        states = [optimizer.state[p] for p in own.model.parameters()]
        squares = [s["exp_avg_sq"] for s in states]
        for place, s in enumerate(states):
            other = squares[len(squares) - 1 - place]
            s["exp_avg_sq"] = (
                other.clone()
                if other.shape == s["exp_avg_sq"].shape
                else torch.full_like(s["exp_avg_sq"], other.mean())
            )

    cause = "second moment | moments | optimizer+state | state+lost | optimizer+reset"
    symptom = f"update+large | update+jump | update+too | rate | {RISES} | {LOGITS}"
    return _case(
        "moments_of_other_parameters", own, loop(own, optimizer, before=resume, clip=None), cause, symptom
    )


def case_all_steps_skipped(architecture: str, broken: bool) -> Case:
    """From step 40 on the scaler sees an infinite gradient, of a scalar that is not used, and skips every step."""
    own = _bench("all_steps_skipped", architecture)
    optimizer = adam(own)

    def step(k: int) -> Tensor:
        loss = loss_of(own.model, own.batch())
        optimizer.zero_grad()
        loss.backward()
        if broken and k >= EARLY:
            list(own.model.parameters())[-1].grad.view(-1)[0] = torch.inf
        gradients = [p.grad for p in own.model.parameters() if p.grad is not None]
        if all(bool(g.isfinite().all()) for g in gradients):
            nn.utils.clip_grad_norm_(own.model.parameters(), 1.0)
            optimizer.step()
        return loss.detach()

    cause = "gradient+finite | gradient+infinit | skipped | step+skip | optimizer+not step | not called"
    return _case("all_steps_skipped", own, step, cause, f"not mov | update | stopped | {NOT_FINITE} | {FLAT}")


def case_dropout_grows(architecture: str, broken: bool) -> Case:
    """The config of the resumed run says dropout 0.9, not 0.1."""
    own = _bench("dropout_grows", architecture)
    drops = [m for m in own.model.modules() if isinstance(m, nn.Dropout)]
    for drop in drops:
        drop.p = 0.1

    def resume(k: int) -> None:
        for drop in drops if broken and k == MIDWAY else []:
            drop.p = 0.9

    step = loop(own, adam(own), before=resume)
    return _case("dropout_grows", own, step, "dropout", f"noise | rank | {RISES} | {FLAT}")


# Precision


def case_resumed_in_bfloat16(architecture: str, broken: bool) -> Case:
    """From step 40 on the weights are kept in bfloat16, and the rate is too small for it."""
    own = _bench("resumed_in_bfloat16", architecture)

    def rounded(k: int) -> None:
        if broken and k >= EARLY:
            with torch.no_grad():
                for p in own.model.parameters():
                    p.copy_(p.bfloat16().float())

    step = loop(own, adam(own, own.rate / 8), after=rounded)
    cause = "bfloat16 | bf16 | precision | half a unit | round | last place"
    return _case("resumed_in_bfloat16", own, step, cause, f"not mov | update+small | {FLAT}")


def case_gradients_in_half(architecture: str, broken: bool) -> Case:
    """Gradients are divided by all ranks and tokens, then sent in half precision, where most are zero."""
    own = _bench("gradients_in_half", architecture)
    optimizer = adam(own, eps=1e-16)

    def step(k: int) -> Tensor:
        loss = loss_of(own.model, own.batch())
        optimizer.zero_grad()
        (loss / 1e6).backward()
        for p in own.model.parameters():
            if broken and p.grad is not None:
                p.grad = p.grad.half().float()
        for group in optimizer.param_groups:
            group["lr"] = own.rate * warm(k)
        optimizer.step()
        return loss.detach()

    cause = "half precision | float16 | fp16 | underflow | precision | gradient+zero | gradient+exactly"
    return _case(
        "gradients_in_half", own, step, cause, f"gradient+small | vanish | no gradient | not mov | {FLAT}"
    )


# Attention


def case_batch_first_forgotten(architecture: str, broken: bool) -> Case:
    """Attention runs over the batch instead of the sequence."""
    options = {"batch_first": not broken} if architecture == "bert" else {}
    own = _bench("batch_first_forgotten", architecture, **options)

    def across(self: Heads, x: Tensor, allowed: Tensor | None = None, source: Tensor | None = None) -> Tensor:  # noqa: ARG001
        return Heads.forward(self, x.transpose(0, 1), None, source).transpose(0, 1)

    if broken:
        for heads in _each(own.model, Heads):
            _override(heads, forward=across)
    cause = "batch+first | across+batch | other examples | examples+mix | rows+mix | other rows | batch+axis"
    symptom = f"leak | context | label | separation | {FLAT}"
    return _case("batch_first_forgotten", own, loop(own, adam(own)), cause, symptom)


def case_window_of_one(architecture: str, broken: bool) -> Case:
    """The sliding window is 1: a token sees itself only."""
    own = _bench("window_of_one", architecture)
    if broken:
        _override(own.model, allowed=lambda self, length: torch.eye(length, dtype=torch.bool))
    cause = "attention+itself | token+itself | attention+window | one-hot | diagonal | context"
    symptom = f"query+gradient | key+gradient | quer+not mov | {LOGITS} | {FLAT}"
    return _case("window_of_one", own, loop(own, adam(own)), cause, symptom)


# The choice of architectures, and the costs

CASES = [name.removeprefix("case_") for name in list(globals()) if name.startswith("case_")]
ONLY = {
    name: [SENSE.get(name, ARCHITECTURES)[n % len(SENSE.get(name, ARCHITECTURES))]]
    for n, name in enumerate(CASES)
} | blind_two_controls.ONLY


def _trained(make: Callable[[], Case]) -> tuple[Case, list[float], float]:
    began = time.perf_counter()
    torch.manual_seed(0)
    case = make()
    losses = [float(case["step"](k)) for k in range(case["steps"])]
    return case, losses, time.perf_counter() - began


def _cost(name: str, architecture: str) -> dict[str, Any]:
    """What the mistake costs, with the loss of both trainings, tenth by tenth."""
    make = globals()[f"case_{name}"]
    bad, reported, seconds = _trained(lambda: make(architecture, True))
    good, healthy, _ = _trained(lambda: make(architecture, False))
    end = good["held"](good["model"])
    state = bad["model"].state_dict()
    if any(not bool(x.isfinite().all()) for x in state.values()):
        cost = 10.0
    elif "own_score" in bad:
        cost = bad["held"](bad["model"]) - end
    else:
        good["model"].load_state_dict(state)
        cost = good["held"](good["model"]) - end
    return {
        "name": name,
        "architecture": architecture,
        "cost": round(min(cost, 99.0), 2),
        "held": round(end, 3),
        "seconds": round(seconds, 1),
        "broken": _tenths(reported),
        "twin": _tenths(healthy),
    }


def _tenths(losses: list[float]) -> list[float]:
    size = len(losses) // 10
    return [round(sum(losses[i : i + size]) / size, 3) for i in range(0, len(losses), size)]


def _control(name: str, architecture: str) -> dict[str, Any]:
    """The loss of a control, tenth by tenth."""
    _, losses, seconds = _trained(lambda: globals()[f"control_{name}"](architecture))
    row = {"name": name, "architecture": architecture, "seconds": round(seconds, 1)}
    return row | {"control": _tenths(losses)}


def _measure(out: Path, names: list[str]) -> None:
    """Train all that is not yet in the file, or what is named."""
    rows = json.loads(out.read_text()) if out.exists() else []
    known = {(row["name"], row["architecture"]) for row in rows}
    torch.set_num_threads(1)
    for name in names or [*CASES, *blind_two_controls.ONLY]:
        for architecture in (a for a in ONLY[name] if (name, a) not in known):
            rows.append((_cost if name in CASES else _control)(name, architecture))
            print(rows[-1], flush=True)
            out.write_text(json.dumps(rows))


if __name__ == "__main__":
    _measure(Path(sys.argv[1]), sys.argv[2:])
