"""Each test that tells causes apart, from both sides of its limit, on evidence whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgewise.monitor import differential, sinks
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.cause_evidence import Evidence, OutputPath
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.differential import agreement, shift_of
from edgewise.monitor.run_events import BatchProfile
from edgewise.monitor.trials import NewData, Trial, first_not_finite, of_data, of_symptom, rewritten, too_slow
from tests.monitor.test_differential import Causal, evidence

CLASSES = 20


def scored(output: Tensor, labels: Tensor | None = None, **more: Any) -> Evidence:
    """One batch of a linear readout whose criterion was given these outputs."""
    model = nn.Linear(4, CLASSES)
    labels = torch.arange(len(output)) % output.shape[1] if labels is None else labels
    batch = ((torch.zeros(len(output), 4),), {}), ((output, labels), {})
    known = {
        "optimizers": [torch.optim.SGD(model.parameters(), 0.1)],
        "criterion": nn.CrossEntropyLoss(),
    } | more
    return Evidence(model, batches=[batch], **known)


def ids(*shape: int, seed: int = 0, below: int = 40) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def text(inputs: Tensor, labels: Tensor, rows: int = CLASSES, **more: Any) -> Evidence:
    """Token ids and labels, one each, behind an embedding of so many rows."""
    model = nn.Embedding(rows, 4)
    output = torch.randn(labels.numel(), rows, generator=torch.Generator().manual_seed(0))
    batch = ((inputs,), {}), ((output, labels.flatten()), {})
    return Evidence(model, nn.CrossEntropyLoss(), [torch.optim.SGD(model.parameters(), 0.1)], [batch], **more)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("output", "more", "words"),
    [
        (draw(64, 3), {}, ""),
        (draw(64, 3).softmax(-1), {}, "softmax is applied"),
        (draw(64, 2).softmax(-1), {}, ""),  # of two classes nothing is said
        (draw(64, 3).softmax(-1) * 1.002, {}, ""),  # sums to 1.002
        (draw(501, 2).sigmoid(), {}, ""),
        (draw(334, 3).sigmoid(), {}, "squashed (a sigmoid)"),
        (draw(333, 3).sigmoid(), {}, ""),  # 999 outputs
        ((50 * draw(334, 3)).sigmoid(), {}, "squashed (a sigmoid)"),  # the largest are exactly one
        (torch.full((64, 3), 0.7), {"rows": 10}, "does not depend on the model"),
        (torch.full((64, 3), 0.7), {"rows": 9}, ""),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "tanh")}, "squashed by a tanh"),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "reshape")}, "should be transposed"),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "scale", factor=0.051)}, ""),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "scale", factor=0.049)}, "logits are scaled"),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "scale", factor=19.9)}, ""),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "scale", factor=20.1)}, "logits are scaled"),
        (draw(64, 3), {"path": OutputPath(lambda z, _: z, "scale", factor=-1.0)}, "logits are negated"),
        (draw(64, 3).softmax(-1), {"criterion": nn.MSELoss()}, ""),
    ],
)
def test_what_a_cross_entropy_is_given(output: Tensor, more: dict[str, Any], words: str) -> None:
    found = differential.not_logits(scored(output, **more))
    assert (found is not None and words in found.cause) if words else found is None


def test_shares_of_labels_that_are_shifted_inputs_are_counted() -> None:
    """Rows 0 to 9: label t is token t + 2; of 80 labels four ignored ones do not count."""
    inputs = ids(10, 12, below=1000)
    labels = inputs.roll(-2, 1)[:, :10].clone()
    assert agreement(inputs, labels, 2) == 1.0 and shift_of(inputs, labels) == 2
    labels[:, 3] = -100
    assert agreement(inputs, labels, 2) == 1.0
    labels[:5, 4] = -1
    assert agreement(inputs, labels, 2) == pytest.approx(85 / 90)
    assert shift_of(inputs, labels) is None  # 94.4 %, of the 95 that are needed
    labels[4, 4] = inputs[4, 6]
    assert agreement(inputs, labels, 2) == pytest.approx(86 / 90) and shift_of(inputs, labels) == 2
    assert agreement(inputs[:, :5], labels[:, :5], 2) == 0.0  # three places are too few
    assert agreement(inputs[:1], torch.full((1, 10), -100), 2) == 0.0
    back = inputs.roll(3, 1)
    assert agreement(inputs, back, -3) == 1.0 and shift_of(inputs, back) == -3


@pytest.mark.parametrize(
    ("kept", "words"), [(0.15, ""), (0.30, "do not fit in part"), (0.65, "do not fit in part"), (0.75, "")]
)
def test_labels_that_are_the_next_token_in_part(kept: float, words: str) -> None:
    inputs = ids(8, 101, below=1000)
    right, other = inputs[:, 1:], ids(8, 100, seed=1, below=1000)
    labels = torch.where(torch.arange(100) < 100 * kept, right, other)
    found = differential._partly(inputs[:, :100], labels, 1)
    assert (found is not None and words in found.cause) if words else found is None
    if found is not None:
        assert abs(float(found.sentence.split("%")[0]) - 100 * kept) <= 1
    ignored = torch.where(torch.arange(100) < 11, -100, labels)
    assert differential._partly(inputs[:, :100], ignored, 1) is None  # some are not asked for


def test_labels_in_another_order_than_the_inputs() -> None:
    inputs = ids(8, 40, below=1000)
    found = differential._partly(inputs, inputs[:, torch.randperm(40)], 1)
    assert found is not None and "the same order" in found.cause and found.sentence.startswith("100%")
    assert differential._partly(inputs, ids(8, 40, seed=2, below=1000), 1) is None


@pytest.mark.parametrize(
    ("rate", "strength", "now", "more", "named"),
    [
        (0.1, 0.021, 8.9, {}, True),
        (0.1, 0.019, 8.9, {}, False),
        (0.1, 0.021, 9.1, {}, False),
        (0.1, 0.021, 8.9, {"learned": True}, False),
        (0.1, 0.021, 8.9, {"learned": True, "harmed": True}, True),
    ],
)
def test_decay_of_two_thousandths_once_a_tenth_of_the_norm_is_gone(
    rate: float, strength: float, now: float, more: dict[str, Any], named: bool
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), rate, weight_decay=strength)
    found = differential.decay(Evidence(model, None, [optimizer], [], weight_norms=(10.0, now), **more))
    assert (found is not None) is named
    if found:
        assert "Every step takes 0.21% of the weights, whose norm has fallen to 0.89" in found.sentence
        assert "below 2e-04 a step" in found.advice


def adam(size: float, steps: int, eps: float) -> torch.optim.Optimizer:
    """Adam after so many gradients of one size everywhere."""
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.Adam([weight], 1e-3, eps=eps)
    for _ in range(steps):
        weight.grad = torch.full((4, 4), size)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("eps", "steps", "more", "named"),
    [
        (3.1e-4, 5, {}, True),
        (2.9e-4, 5, {}, False),
        (3.1e-4, 2, {}, False),
        (3.1e-4, 5, {"harmed": False}, False),
        (3.1e-4, 5, {"rows": 19}, False),
    ],
)
def test_an_eps_of_three_times_the_gradients(
    eps: float, steps: int, more: dict[str, Any], named: bool
) -> None:
    """The bias of the second moments is divided out: gradients of 1e-4 are 1e-4 after any number of steps."""
    e = Evidence(nn.Linear(1, 1), None, [adam(1e-4, steps, eps)], [], **{"harmed": True, "rows": 20} | more)
    found = differential.adam_epsilon(e)
    assert (found is not None) is named
    if found:
        assert found.sentence == "eps is 0.00031, and the root mean square of the gradients 0.0001."


@pytest.mark.parametrize(
    ("test", "more", "named"),
    [
        ("clipped", {"gradient_scale": 0.019, "rows": 10, "harmed": True}, True),
        ("clipped", {"gradient_scale": 0.021, "rows": 10, "harmed": True}, False),
        ("clipped", {"gradient_scale": 0.019, "rows": 9, "harmed": True}, False),
        ("clipped", {"gradient_scale": 0.019, "rows": 10}, False),
        ("clipped", {"gradient_scale": 0.9e-5, "rows": 10}, True),
        ("clipped", {"gradient_scale": 0.019, "rows": 10, "harmed": True, "loss_factor": 2.0}, False),
        ("divided", {"divided": 0.049, "passes": 4, "harmed": True}, True),
        ("divided", {"divided": 0.051, "passes": 4, "harmed": True}, False),
        ("divided", {"divided": 0.049, "passes": 4}, False),
        ("divided", {"divided": 0.049, "passes": 4, "loss_factor": 1.1, "harmed": True}, False),
        ("smoothing", {"extra": ("smoothing", 0.51)}, True),
        ("smoothing", {"extra": ("smoothing", 0.5)}, False),
        ("smoothing", {"criterion": nn.CrossEntropyLoss(label_smoothing=0.6)}, True),
        ("penalty", {"extra": ("the squared logits", 0.31)}, True),
        ("penalty", {"extra": ("the squared logits", 0.3)}, False),
        ("penalty", {"extra": ("smoothing", 0.9)}, False),
        ("optimizer_again", {"rows": 10, "optimizers_made": 6}, True),
        ("optimizer_again", {"rows": 10, "optimizers_made": 5}, False),
        ("optimizer_again", {"rows": 9, "optimizers_made": 6}, False),
        ("optimizer_again", {"rows": 10, "optimizers": [adam(1.0, 1, 1e-8)]}, True),
        ("optimizer_again", {"rows": 10, "optimizers": [adam(1.0, 2, 1e-8)]}, False),
        ("missing_skip", {"skips": [0.61, 0.24, 0.9]}, True),
        ("missing_skip", {"skips": [0.61, 0.26, 0.9]}, False),
        ("missing_skip", {"skips": [0.59, 0.24, 0.9]}, False),
        ("missing_skip", {"skips": [0.61, -0.24]}, True),
        ("missing_skip", {"skips": [0.1]}, False),
        ("missing_skip", {"skips": [0.1, 0.2]}, True),
    ],
)  # fmt: skip
def test_numbers_of_a_training_at_their_limits(test: str, more: dict[str, Any], named: bool) -> None:
    model = nn.Linear(4, 4)
    base = {"criterion": None, "optimizers": [torch.optim.SGD(model.parameters(), 0.1)], "batches": []}
    found = getattr(differential, test)(Evidence(model, **base | more))
    assert (found is not None) is named
    if found and test == "missing_skip" and len(more["skips"]) == 3:
        assert "holds 0.24 of what enters it; for the other blocks that is at least 0.61." in found.sentence
        assert "missing in block 1" in found.cause
    if found and test == "divided":
        assert "as if the learning rate were too low by as much" in found.cause and "by 5.1," in found.cause


@pytest.mark.parametrize(("p", "named"), [(0.75, False), (0.76, True)])
def test_dropout_beyond_three_quarters(p: float, named: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(p), nn.Dropout(0.1))
    found = differential.dropout(Evidence(model, None, [], []))
    assert (found is not None) is named
    if found:
        assert found.sentence == "1 drops 76% of its entries (1 such layers)." and found.module == "1"
        assert differential.dropout(Evidence(model.eval(), None, [], [])) is None


@pytest.mark.parametrize(
    ("share", "classes", "named"), [(0.59, 16, False), (0.61, 16, True), (0.61, 15, False), (1.0, 16, False)]
)
def test_labels_that_are_mostly_one_token(share: float, classes: int, named: bool) -> None:
    labels = torch.where(torch.arange(100) < 100 * share, 7, torch.arange(100) % 5)
    e = text(ids(10, 10, below=classes), labels.view(10, 10), classes)
    found = differential.mostly_one_label(e)
    assert (found is not None) is named
    if found:
        assert found.sentence == "61% of the labels are 7."
    few = text(ids(7, 9, below=classes), labels[:63].view(7, 9), classes)
    assert differential.mostly_one_label(few) is None  # 63 labels


@pytest.mark.parametrize(
    ("largest", "rows", "tokens", "named"),
    [
        (255, 384, 5100, True),
        (255, 383, 5100, False),
        (255, 384, 5099, False),
        (254, 384, 5100, False),
        (127, 192, 2540, True),
        (32767, 60000, 700000, True),
        (65535, 99000, 1400000, True),
    ],
)
def test_tokens_that_end_where_a_byte_does(largest: int, rows: int, tokens: int, named: bool) -> None:
    e = text(ids(2, 6), ids(2, 6))
    e.model = nn.Embedding(rows, 1)
    e.profiles.largest, e.profiles.tokens = largest, tokens
    assert (differential.wrapped(e) is not None) is named


@pytest.mark.parametrize(
    ("inputs", "labels", "words"),
    [
        (torch.full((3, 6), 5), ids(3, 6), "All 18 tokens of the batch are 5."),
        (torch.full((2, 8), 5), ids(2, 8), ""),  # sixteen tokens
        (ids(1, 6).expand(3, 6), ids(3, 6), "All 3 sequences of the batch are the same."),
        (ids(1, 6).expand(2, 6), ids(2, 6), ""),
        (ids(3, 6), torch.full((3, 6), -100), "Every label of the batch is ignored"),
        (ids(2, 8), torch.full((2, 8), -100), ""),
    ],
)
def test_inputs_and_labels_that_are_constant(inputs: Tensor, labels: Tensor, words: str) -> None:
    found = differential.constant_inputs(text(inputs, labels))
    assert (found is not None and found.sentence.startswith(words)) if words else found is None


def seen_rows(e: Evidence, rows: Sequence[float]) -> Evidence:
    """Batches whose rows are told by one number each, in steps one behind the other."""
    for step, row in enumerate(rows):
        e.profiles.seen.append(BatchProfile(step, (4, 3), {}, {}, 0, 0, (row,)))
    return e


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([1] * 10, "every step is given the same batch"),
        ([1] * 9, ""),
        ([2] + [1] * 10, "every step is given the same batch"),
        ([1, 2, 3] * 4, "the same few batches"),
        ([1, 2, 3, 4] * 3, ""),
        ([1] * 5 + [2] * 5, ""),  # each used some times in a row
    ],
)
def test_batches_that_are_the_same_or_a_few(rows: list[float], words: str) -> None:
    found = differential.same_batch(seen_rows(Evidence(nn.Linear(1, 1), None, [], []), rows))
    assert (found is not None and words in found.cause) if words else found is None


# --- what a symptom is put down to -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("trial", "rises", "learns"),
    [
        (Trial(2.0, 2.039, 2.0, 1.961), False, False),
        (Trial(2.0, 2.041, 2.0, 1.959), True, True),
        (Trial(2.0, 1.0, -2.0, -2.041), False, True),
        (Trial(2.0, 1.0, -2.0, -2.039), False, False),
    ],
)
def test_a_trial_rises_or_learns_by_two_hundredths(trial: Trial, rises: bool, learns: bool) -> None:
    assert (trial.rises, trial.learns) == (rises, learns)
    assert f"8 steps take the loss from {trial.before:.3g} to {trial.after:.3g}" in trial.words


@pytest.mark.parametrize(
    ("factor", "scale", "words"),
    [
        (51.0, math.nan, "too high"),
        (49.0, math.nan, ""),
        (1 / 51, math.nan, "too low"),
        (1 / 49, math.nan, ""),
        (-51.0, math.nan, "too high"),
        (1024.0, 1 / 1024, ""),  # a gradient scaler divides again
    ],
)
def test_a_loss_that_is_multiplied_by_fifty(factor: float, scale: float, words: str) -> None:
    e = evidence()
    e.optimizers, e.loss_factor, e.gradient_scale = (
        [torch.optim.SGD(e.model.parameters(), 0.1)],
        factor,
        scale,
    )
    e.trials = False
    answer = of_symptom(AlarmKind.UPDATE_TOO_LARGE, e)
    assert (
        (words in answer.cause and f"by {factor:.3g} before" in answer.cause) if words else not answer.cause
    )


@pytest.mark.parametrize(
    ("rise", "harmed", "named"),
    [(1.9, True, False), (2.1, True, True), (1.45, False, False), (2.1, False, True)],
)
def test_a_rate_that_was_raised_explains_what_came_with_it(rise: float, harmed: bool, named: bool) -> None:
    e = evidence()
    e.trials, e.harmed = False, harmed
    for k in range(120):
        e.rates.see(0.01 if k < 110 else 0.01 * rise)
    answer = of_symptom(AlarmKind.LOSS_SPIKE, e)
    assert ("it has risen from 0.01 to" in answer.cause) is named
    assert not of_symptom(AlarmKind.NOT_LEARNING, e).cause


def test_what_was_rewritten_and_what_could_be_are_said() -> None:
    e = evidence()
    e.trials, e.rewritten = False, (17, "weights")
    assert of_symptom(AlarmKind.LOSS_SPIKE, e).cause == rewritten((17, "weights"))[0]
    assert "before step 17" in rewritten((17, "weights"))[0]
    assert "moments" in rewritten((17, "the optimizer's state"))[0]
    assert not of_symptom(AlarmKind.RANK_COLLAPSE, e).cause  # a state is explained by no event
    e.rewritten = None
    assert [w.split(":")[0] for w in of_symptom(AlarmKind.LOSS_SPIKE, e).could_be] == [
        "the learning rate is too high",
        "the data changed",
    ]
    states = of_symptom(AlarmKind.RANK_COLLAPSE, e).could_be
    assert len(states) == 4 and states[2].startswith("positions are missing")
    e.examined = True
    assert len(of_symptom(AlarmKind.RANK_COLLAPSE, e).could_be) == 3
    e = evidence()
    e.optimizers, e.gradient_scale = [torch.optim.SGD(e.model.parameters(), 0.1)], 0.19
    assert "0.19 times what arrived" in too_slow(e, "words")[0]
    e.gradient_scale = 0.21
    assert too_slow(e, "words")[0] == "the learning rate is too low: words"


def broken(place: str) -> tuple[str, str]:
    e = evidence()
    ((x, named), ((output, labels), by_name)) = (e.batches[-1][0], e.batches[-1][1])  # type: ignore[misc]
    model, inputs = e.model, x
    if place == "parameter":
        model.inner[2].weight.data[3, 3] = math.nan  # type: ignore[index]
    if place == "module":
        model.inner[1].layers[0].linear1.register_forward_hook(lambda m, i, o: o / 0 * (o > 0))  # type: ignore[index]
    if place == "input":
        model, inputs = nn.Linear(4, 4), (torch.ones(5, 4).index_fill(0, torch.tensor([3]), math.inf),)
    if place == "output":
        model = nn.Sequential(Causal(), nn.Identity())
        model.register_forward_hook(lambda m, i, o: o.log())
    if place == "targets":
        model, inputs, labels = nn.Linear(4, 4), (torch.ones(5, 4),), torch.full((5, 4), math.nan)
    if place == "ignored":
        labels = torch.full_like(labels, -100)
    e.model = model
    e.batches = [((inputs, named), ((output, labels), by_name))]
    return first_not_finite(e, e.batches[-1])


@pytest.mark.parametrize(
    ("place", "module", "words"),
    [
        ("parameter", "inner.2", "the parameter inner.2.weight is not finite"),
        ("input", "", "the input is not finite, in 1 of 5 rows of the batch (first 3)"),
        ("module", "inner.1.layers.0.linear1", "the output of inner.1.layers.0.linear1 is the first"),
        ("output", "", "check its last lines"),
        ("targets", "", "the targets are not finite, in 5 of 5 rows"),
        ("ignored", "", "every label of the batch is ignored (-100)"),
        ("", "", "the outputs of the model are finite"),
    ],
)
def test_the_first_place_that_is_not_finite(place: str, module: str, words: str) -> None:
    found = broken(place)
    assert found[0] == module and words in found[1]


class Says(nn.Module):
    """Logits that are ten at the class that the input names."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * nn.functional.one_hot(x, 6).float()


@pytest.mark.parametrize(
    ("change", "words", "broken_"),
    [
        (lambda y: y, None, False),
        (
            lambda y: (y + 1) % 6,
            "the labels have changed their numbers: what was 0 is now 1, 1 is now 2, 2 is now 3",
            True,
        ),
        (lambda y: ids(60, seed=9, below=6), "", False),
    ],
)
def test_data_that_the_weights_of_before_do_not_know(
    change: Callable[[Tensor], Tensor], words: str | None, broken_: bool
) -> None:
    model = Says()
    e = Evidence(model, nn.CrossEntropyLoss(), [torch.optim.SGD(model.parameters(), 0.1)], [])
    dated = []
    for k in range(8):
        x = torch.arange(60) % 6
        y = x if k < 4 else change(x)
        dated.append((k, (((x,), {}), ((model(x).detach(), y), {}))))
    e.dated, e.snapshots = dated, [(4, [(model.scale, model.scale.detach().clone())])]
    found = of_data(e, 4)
    if words is None:
        assert found is None
        return
    assert isinstance(found, NewData) and (found.at, found.what, found.broken) == (4, words, broken_)
    sure = math.log(1 + 5 * math.exp(-10))
    wrong = float((change(torch.arange(60) % 6) != torch.arange(60) % 6).float().mean())
    assert found.old == pytest.approx(sure, abs=1e-6) and found.new == pytest.approx(
        sure + 10 * wrong, rel=1e-4
    )
    assert f"have a loss of {found.new:.3g}, those before {found.old:.3g})" in found.cause
    assert found.meant is not broken_  # no loss is known that it would have to be above
    e.snapshots = [(5, e.snapshots[0][1])]
    assert of_data(e, 4) is None  # no weights from before it


# --- where rows and alarms go ----------------------------------------------------------------------------------------
def test_curves_are_the_extremes_over_places() -> None:
    columns = fast_columns(2)
    row = np.full(len(columns), math.nan)
    known = {
        "loss": 2.0,
        "block.0.entropy": 1.0,
        "block.1.entropy": 3.0,
        "embed.norm": 0.5,
        "block.0.norm": math.inf,
    }
    for place, column in enumerate(columns):
        row[place] = known.get(column.name, math.nan)
    assert sinks.curves(sinks._groups(columns), row) == {
        "edgewise/loss": 2.0,
        "edgewise/entropy/min": 1.0,
        "edgewise/entropy/max": 3.0,
        "edgewise/norm/min": 0.5,
        "edgewise/norm/max": 0.5,
    }
    alarm = Alarm(AlarmKind.LOSS_SPIKE, 7, "", None, 7, "x")
    assert sinks._title(alarm) == "edgewise: loss spike at step 7"
