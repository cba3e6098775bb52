"""Tests that tell causes apart, each on a mistake and on its healthy twin."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.budget import Clock
from edgewise.monitor.capture import BatchMemory
from edgewise.monitor.cause_evidence import Evidence, path_of
from edgewise.monitor.differential import mistakes, mostly_one_label, shift_of
from edgewise.monitor.facts import BackwardFacts
from edgewise.monitor.hooks import Switch, cross_entropy_of
from edgewise.monitor.run_events import BatchProfiles
from edgewise.monitor.trials import (
    DEPENDS,
    Trial,
    group_rate,
    label_dependence,
    label_information,
    of_symptom,
    rate_trial,
    slow_rate,
)
from tests.monitor.subjects import encoder


class Causal(nn.Module):
    """The encoder with or without its mask."""

    def __init__(self, mask: bool = True) -> None:
        super().__init__()
        self.inner, self.mask = encoder(), mask

    def forward(self, x: Tensor) -> Tensor:
        table, stack, readout = self.inner  # type: ignore[misc]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.mask else None
        return readout(stack(table(x), mask=mask))


def evidence(
    model: nn.Module | None = None, shift: int = 1, *, rows: int = 0, rate: float = 1e-3, **more: Any
) -> Evidence:
    model = Causal() if model is None else model
    text = torch.randint(0, 64, (4, 20), generator=torch.Generator().manual_seed(0))
    x, y = text[:, 3:17], text[:, 3 + shift : 17 + shift].roll(rows, 0)
    output = model(x).flatten(0, 1).detach()
    optimizer = torch.optim.AdamW(model.parameters(), rate, **more)
    batch = ((x,), {}), ((output, y.flatten()), {})
    return Evidence(model, nn.CrossEntropyLoss(), [optimizer], [batch, batch, batch])


def causes(e: Evidence) -> str:
    return " | ".join(d.cause for d in mistakes(e, copies=True))


def test_a_healthy_training_has_no_mistake() -> None:
    assert mistakes(evidence(), copies=True) == []


@pytest.mark.parametrize(
    ("shift", "words"), [(2, "shifted twice"), (0, "not shifted"), (-1, "the wrong way")]
)
def test_labels_that_are_not_the_next_tokens(shift: int, words: str) -> None:
    assert words in causes(evidence(shift=shift))


def test_labels_of_other_sequences() -> None:
    assert "shuffled apart" in causes(evidence(rows=1))


def test_a_missing_mask_is_a_leak() -> None:
    assert "causal mask is missing" in causes(evidence(Causal(mask=False)))


def test_an_autoencoder_that_sees_everything_is_healthy() -> None:
    assert mistakes(evidence(Causal(mask=False), shift=0), copies=True) == []


def test_softmax_before_the_loss() -> None:
    e = evidence()
    (call, ((output, y), named)) = e.batches[-1]
    e.batches = [(call, ((output.softmax(-1), y), named))]
    assert "softmax is applied before" in causes(e)


def test_decay_counts_once_the_weights_have_shrunk() -> None:
    e = evidence(weight_decay=10.0)
    assert causes(e) == ""
    e.weight_norms = 10.0, 5.0
    assert "weight decay is too strong" in causes(e)


def test_decay_that_is_added_to_the_gradient_and_a_penalty_shrink_weights_too() -> None:
    """Adam's decay, and a term of the loss that is larger than the cross-entropy and no multiple of it."""
    for kind, decay, gradient, named in (
        (torch.optim.Adam, 0.2, 0.5, True),
        (torch.optim.Adam, 0.001, 0.5, False),
        (torch.optim.AdamW, 0.2, 0.5, False),
    ):
        e = evidence()
        e.optimizers = [kind(e.model.parameters(), 1e-3, weight_decay=decay)]
        e.optimizers[0].state = {p: {"exp_avg_sq": p} for p in e.model.parameters()}  # type: ignore[assignment]
        e.weight_norms, e.gradient_norm = (10.0, 6.0), gradient
        assert ("not decoupled as in AdamW" in causes(e)) == named
        e.weight_norms = 10.0, 9.9
        assert causes(e) == ""
    facts = BackwardFacts()
    for k in range(3):
        facts.see(200.0 - 5 * k, 3.5)
    e = evidence()
    e.outweighed, e.weight_norms = facts.outweighed, (10.0, 6.0)
    assert facts.outweighed > 50 and "a penalty on the weights" in causes(e)
    for scales in ((8.0, 8.0, 8.0), (2.0**16, 2.0**15, 2.0**15)):  # accumulation, a scaler
        facts = BackwardFacts()
        for scale in scales:
            facts.see(3.5 * scale, 3.5)
        assert facts.outweighed == 1.0


def test_gradients_below_eps_of_its_default_are_named_with_the_factor_of_the_loss() -> None:
    e = evidence()
    e.harmed, e.rows, e.loss_factor = True, 20, 1e-8
    state = {"step": torch.tensor(20.0)}
    e.optimizers[0].state = {
        p: {"exp_avg_sq": torch.full_like(p, 1e-24), **state} for p in e.model.parameters()
    }  # type: ignore[assignment]
    assert "the loss is multiplied by 1e-08" in causes(e)
    for each in e.optimizers[0].state.values():
        each["exp_avg_sq"].fill_(1e-8)
    assert causes(e) == ""


def test_inputs_whose_scale_grows_from_batch_to_batch_are_named() -> None:
    """Normalized in place again and again; a first batch of another scale, and one batch of 255 times, are not."""
    rng = torch.Generator().manual_seed(0)
    for scale_of, named in (
        (lambda k: 1.5**k, True),
        (lambda k: 1.0 if k else 1e-3, False),
        (lambda k: 255.0 if k % 6 == 5 else 1.0, False),
    ):
        e = evidence()
        for k in range(40):
            x = scale_of(k) * torch.randn(8, 12, generator=rng)
            e.profiles.see(k, ((x,), {}), None)
        assert ("scaled (normalized) again and again" in causes(e)) == named


def test_maximize_and_dropout_and_evaluation_mode() -> None:
    assert "maximizes" in causes(evidence(maximize=True))
    assert "dropout is 0.9" in causes(evidence(encoder(dropout=0.9)))
    model = encoder(dropout=0.1)
    model.eval()
    assert "evaluation mode" in causes(evidence(model))


def test_a_block_without_its_skip_is_named() -> None:
    e = evidence()
    e.skips, e.modules = [0.8, 0.02, 0.9], ["blocks.0", "blocks.1", "blocks.2"]
    assert "missing in blocks.1" in causes(e)
    e.skips = [0.8, 0.7, 0.9]
    assert causes(e) == ""


def test_batches_that_repeat() -> None:
    """One batch, a few of them; fresh rows, batches used four times, a small set that is shuffled, few by nature."""
    rng = torch.Generator().manual_seed(0)
    few = torch.randint(0, 64, (32, 12), generator=rng)
    made = {
        "same batch": lambda k: few[:8],
        "same few batches": lambda k: few[8 * (k % 2) :][:8],
        "": lambda k: torch.randint(0, 64, (8, 12), generator=rng),
        "   ": lambda k: few[torch.randperm(32, generator=rng)[:8]],
        "  ": lambda k: torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(k // 4)),
        " ": lambda k: torch.randint(0, 2, (8, 3), generator=rng),  # eight rows that there are, at random
    }
    for words, batch in made.items():
        e = evidence()
        for k in range(30):
            e.profiles.see(k, ((batch(k),), {}), None)
        assert words.strip() in causes(e) and bool(words.strip()) == bool(causes(e)), words


def test_what_of_the_data_changed_is_said() -> None:
    """Units, constant inputs, other tokens, one label, longer sequences; noise that was always there is no change."""
    rng = torch.Generator().manual_seed(0)

    def images(_: int) -> torch.Tensor:
        return torch.randn(16, 8, 8, generator=rng)

    def words(_: int) -> torch.Tensor:
        return torch.randint(0, 40, (16, 12), generator=rng)

    def labels(_: int) -> torch.Tensor:
        return torch.randint(0, 4, (16,), generator=rng)

    made = {
        "deviation of the inputs": (lambda k: 90 * images(k), labels, images),
        "the inputs are constant": (lambda k: torch.full((16, 8, 8), -0.8), labels, images),
        "tokens of the inputs": (lambda k: words(k) % 5 + 40, labels, words),
        "labels are constant": (images, lambda k: torch.zeros(16, dtype=torch.long), images),
        "have the shape": (lambda k: words(k)[:, :6], labels, words),
        "": (images, labels, images),
    }
    for said, (after, marks, before) in made.items():
        batches = BatchProfiles()
        for k in range(30):
            x, y = (before(k), labels(k)) if k < 20 else (after(k), marks(k))
            batches.see(k, ((x,), {}), y)
        found = batches.changed(20)
        assert (found is None) if not said else (found is not None and said in found.what), (said, found)


def test_shift_of_is_undecided_about_repetition() -> None:
    x = torch.full((2, 12), 3)
    assert shift_of(x, x) is None


def test_rates_are_tried_on_a_copy_and_nothing_changes() -> None:
    model = Causal()
    e = evidence(model, rate=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    assert rate_trial(e)[0] == "rate"
    assert rate_trial(evidence(model, rate=1e-5))[0] == "slow"
    assert rate_trial(evidence(model, rate=1e-2))[0] in ("neither", "")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    answer = of_symptom(AlarmKind.UPDATE_TOO_LARGE, e)
    assert "too high" in answer.cause and "Lower" in answer.advice


def test_batches_learned_by_heart_say_nothing_about_the_rate() -> None:
    assert not Trial(2.0, 0.5, 2.0, 2.4).learns and Trial(2.0, 0.5, 2.0, 1.4).learns
    assert not Trial(2.0, 0.5).learns  # of no other batch


def test_micro_batches_that_are_not_divided_are_tried() -> None:
    e = evidence()
    e.optimizers = [torch.optim.SGD(e.model.parameters(), 0.3)]
    e.start = [(p, p.detach().clone()) for p in e.model.parameters()]
    e.undivided = e.passes = 400
    assert (
        "400 backward passes are accumulated and not divided"
        in of_symptom(AlarmKind.UPDATE_TOO_LARGE, e).cause
    )
    e.undivided = 1
    assert "accumulated" not in of_symptom(AlarmKind.UPDATE_TOO_LARGE, e).cause


def test_labels_that_the_loss_ignores_are_no_padding_in_it() -> None:
    scores = torch.randn(128, 20, requires_grad=True)
    labels = torch.randint(1, 20, (128,)).where(torch.arange(128) < 30, 0)
    loss = nn.functional.cross_entropy(scores, labels, ignore_index=0)
    found = cross_entropy_of(loss)
    assert found is not None and int((found[1] == -100).sum()) == 98
    call = (torch.randint(0, 20, (8, 16)),), {}
    e = Evidence(nn.Embedding(20, 4), nn.CrossEntropyLoss(), [], [(call, (found, {}))])
    assert mostly_one_label(e) is None
    e.batches = [(call, ((scores, labels), {}))]
    assert mostly_one_label(e) is not None
    e.criterion = nn.CrossEntropyLoss(ignore_index=0)
    assert mostly_one_label(e) is None


def test_what_was_ruled_out_is_not_a_rival() -> None:
    answer = of_symptom(AlarmKind.UPDATE_TOO_LARGE, evidence(rate=3e-3))
    if answer.ruled_out:
        assert not any("rate" in each for each in answer.could_be)


def test_an_untrained_network_knows_nothing_about_its_labels() -> None:
    known = label_information(evidence())
    assert known is not None and abs(known) < 0.2


def test_what_is_added_to_the_loss_is_found_by_its_constant_weight() -> None:
    rng = torch.Generator().manual_seed(0)
    z, y = torch.randn(64, 10, generator=rng), torch.randint(0, 10, (64,), generator=rng)
    cases = {
        "smoothing": lambda z: nn.functional.cross_entropy(z, y, label_smoothing=0.9),
        "the squared logits": lambda z: nn.functional.cross_entropy(z, y) + 10 * z.square().mean(),
        "": lambda z: nn.functional.cross_entropy(z, y) + 0.01 * z[:, 0].sigmoid().mean(),
    }
    for name, loss_of in cases.items():
        facts = BackwardFacts()
        for k in range(3):
            memory = BatchMemory(Switch(Clock(), print))
            logits = ((1 + k) * z).requires_grad_()
            memory.last, memory.output = (((z,), {}), None), logits
            loss = loss_of(logits)
            memory.hear(loss)
            facts.see(float(loss), memory.heard(), memory.terms())
        assert facts.extra[0] == name
        assert facts.faithful or name == "the squared logits"
    e = evidence()
    e.extra = "smoothing", 0.9
    assert "label smoothing of 0.9" in causes(e)
    e.extra = "the squared logits", 10.0
    assert "penalty" in causes(e)
    e.extra = "the squared log of their sum (z-loss)", 1e-4
    assert causes(e) == ""


def test_a_reshape_where_a_transpose_was_meant_is_found() -> None:
    z = torch.randn(4, 7, 5)
    wrong, right = z.transpose(1, 2).reshape(-1, 5), z.flatten(0, 1)
    for logs in (False, True):
        found = [path_of(z, x.log_softmax(-1) if logs else x, logs=logs) for x in (wrong, right, 100 * right)]
        assert [each.between for each in found if each is not None] == ["reshape", "", "scale"]
        assert found[2] is not None and math.isclose(found[2].factor, 100, rel_tol=1e-4)


def test_far_higher_rates_are_tried_where_little_is_learned() -> None:
    def slow(rate: float) -> str:
        e = evidence(rate=rate)
        e.batches = [*e.batches, *e.batches]
        e.rates.most = e.rates.now = rate
        return slow_rate(e)

    assert "at 30 times the rate" in slow(1e-5) and slow(3e-3) == ""


def test_one_group_with_a_rate_far_from_the_others_is_tried_with_theirs() -> None:
    for ratio in (1.0, 300.0):
        e = evidence()
        e.harmed = True
        e.batches = [*e.batches, *e.batches]
        *others, readout, bias = e.model.parameters()
        groups = [{"params": [readout, bias], "lr": ratio * 1e-2}, {"params": others, "lr": 1e-2}]
        e.optimizers = [torch.optim.AdamW(groups)]
        found = group_rate(e)
        assert (found is None) == (ratio == 1.0)
        assert found is None or ("300 times that of the others" in found[2] and "inner.2.weight" in found[2])
    for rate in (1e-2 / 30, 1e-6):
        e = evidence()
        e.batches = [*e.batches, *e.batches]
        *body, readout, bias = e.model.parameters()
        groups = [{"params": body, "lr": rate}, {"params": [readout, bias], "lr": 1e-2}]
        e.optimizers = [torch.optim.AdamW(groups)]
        found = group_rate(e)
        assert (found is not None) == (rate == 1e-6)
        assert found is None or (
            found[0] is AlarmKind.PARAMETERS_STILL and "too low, 0.0001 times" in found[2]
        )


def test_what_tokens_tell_about_labels_says_whether_the_two_belong_together() -> None:
    """Next tokens, noisy ones, a copy from eight places before; labels of another batch, and those of whole rows."""
    rng = torch.Generator().manual_seed(0)

    def told(labels_of: Any) -> float:
        e, texts = evidence(), [torch.randint(0, 12, (8, 30), generator=rng) for _ in range(9)]
        e.dated = [
            (k, (((x[:, 9:-1],), {}), ((torch.zeros(8, 12), labels_of(x, before)), {})))
            for k, (before, x) in enumerate(pairwise(texts))
        ]
        return label_dependence(e)

    def noisy(x: Tensor, _: Tensor) -> Tensor:
        y = x[:, 10:].flatten()
        return torch.where(
            torch.rand(len(y), generator=rng) < 0.5, torch.randint(0, 12, y.shape, generator=rng), y
        )

    own = [lambda x, _: x[:, 10:].flatten(), noisy, lambda x, _: x[:, 9:-1].roll(8, 1).flatten()]
    assert all(told(each) > 2 * DEPENDS for each in own)
    assert abs(told(lambda x, before: before[:, 10:].flatten())) < DEPENDS / 2
    assert math.isnan(told(lambda x, _: x[:, 3]))


def test_a_label_that_stands_in_the_input_is_found() -> None:
    rng = torch.Generator().manual_seed(0)
    for inside in (False, True):
        e = evidence()
        e.batches, batches = [], []
        for k in range(8):
            x, y = torch.randint(0, 40, (16, 12), generator=rng), torch.randint(0, 4, (16,), generator=rng)
            if inside:
                x[:, 3] = y + 7
            batches.append((k, (((x,), {}), ((torch.zeros(16, 4), y), {}))))
        e.dated = batches
        assert ("label is in the input" in causes(e)) == inside
