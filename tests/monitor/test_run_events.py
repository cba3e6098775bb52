"""What happened in a run is remembered, and named where a symptom follows; what is harmless raises no alarm."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.budget import Clock
from edgewise.monitor.cause_evidence import Evidence
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.examination import PASSED, Examination
from edgewise.monitor.facts import Custody, GradientProbe, GradientSample, StepFacts
from edgewise.monitor.hooks import Switch, weights_of
from edgewise.monitor.run_events import BatchProfiles, RunEvents
from edgewise.monitor.series import History
from edgewise.monitor.trials import NewData, label_information
from edgewise.monitor.watch import Watch

from .driven import run
from .subjects import encoder, hugging_face


def switch() -> Switch:
    def fail(error: Exception) -> None:
        raise error

    return Switch(Clock(), fail)


def trained(
    model: nn.Module,
    loss: Any,
    *,
    steps: int = 60,
    change: Any = lambda k: None,
    after: Any = lambda k: None,
    optimizer: Any = None,
) -> Watch:
    """A loop with something between backward and step, and behind the step."""
    own = torch.optim.Adam(model.parameters(), 1e-3) if optimizer is None else optimizer
    handle = edgewise.watch(model, quiet=True)
    for k in range(steps):
        own.zero_grad()
        loss(k).backward()
        change(k)
        own.step()
        after(k)
    handle.close()
    assert handle.error == ""
    return handle


def tokens(k: int, rows: int = 4) -> Tensor:
    return torch.randint(0, 64, (rows, 16), generator=torch.Generator().manual_seed(k))


def copying(model: nn.Module) -> Any:
    return lambda k: F.cross_entropy(model(tokens(k)).flatten(0, 1), tokens(k).flatten())


def causes(handle: Watch) -> str:
    return " | ".join(f"{a.cause} {a.what}" for a in handle.alarms)


def test_weights_of_the_terms_of_a_loss() -> None:
    x, y = torch.randn(8, 4, requires_grad=True), torch.zeros(8, dtype=torch.long)
    both = F.cross_entropy(x, y) - 0.3 * F.cross_entropy(2 * x, y) / 2 + 1e-3 * sum(p.sum() for p in (x, x))
    assert list(weights_of(both).values()) == pytest.approx([1.0, -0.15, 1e-3, 1e-3])
    assert list(weights_of(F.cross_entropy(x, y, label_smoothing=0.4)).values()) == pytest.approx(
        [0.6, 0.4 / 4 / 8]
    )


def events() -> RunEvents:
    return RunEvents(History(fast_columns(1)), BatchProfiles())


@pytest.mark.parametrize(("weights", "named"), [([1.0, 4, 16, 64, 256], True), ([0.1, 1, 1, 1, 1], False)])
def test_a_weight_of_the_loss_that_grows_without_end_explains_a_rise(
    weights: list[float], named: bool
) -> None:
    """One that grows to its value and stays there (annealing) does not."""
    seen = events()
    for weight in weights + [1.0] * (0 if named else 8):
        seen.terms({"NllLossBackward0 0": 1.0, "SumBackward0 1": weight})
    assert (seen.explains(states=False) is not None) == named


@pytest.mark.parametrize(
    ("passes", "named"), [([1] * 20 + [2], True), ([2] * 21, False), ([1] * 10 + [2] * 11, False)]
)
def test_backward_passes_of_a_validation_explain_a_rise(passes: list[int], named: bool) -> None:
    """Accumulation, and accumulation that begins, do not."""
    seen = events()
    for count in passes:
        seen.step(count)
    assert (seen.explains(states=False) is not None) == named


def test_batches_that_become_shorter_explain_a_loss_that_stays_up() -> None:
    seen, optimizer = events(), torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    for k in range(60):
        seen.history.losses.see(k, math.log(0.2 if k < 30 else 1.0))
        seen.profiles.see(k, ((tokens(k)[:, : 16 if k < 30 else 3],), {}), None)
        seen.row(k, optimizer)
    seen.history.losses.first = math.log(2.0)
    found = seen.explains(states=True)
    assert found is not None and "the data changed at step 30" in found.cause and "(4, 3)" in found.cause


def test_an_optimizer_in_the_place_of_another_with_far_smaller_steps_is_named() -> None:
    model = encoder()
    slot = {"now": torch.optim.AdamW(model.parameters(), 2e-3)}
    handle = edgewise.watch(model, quiet=True, everything=True)
    for k in range(30):
        if k == 15:
            slot["now"] = torch.optim.SGD(model.parameters(), 2e-3)
        slot["now"].zero_grad()
        copying(model)(k).backward()
        slot["now"].step()
    handle.close()
    assert "from AdamW to SGD" in causes(handle) and "rate is too low" in causes(handle)


def test_gradients_of_some_steps_ago_are_named() -> None:
    model, line = encoder(), []

    def change(k: int) -> None:
        line.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for p, g in zip(model.parameters(), line[max(k - 5, 0)], strict=True):
            p.grad.copy_(g)

    assert "5 steps ago" in causes(trained(model, copying(model), change=change))


def test_noise_that_drowns_small_gradients_alone_is_no_alarm() -> None:
    """The bias of the keys has no gradient of its own."""
    model = encoder()

    def change(k: int) -> None:
        for p in model.parameters():
            p.grad += 1e-4 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k))

    assert "gradients are changed" not in causes(trained(model, copying(model), change=change))


def test_gradients_below_what_half_precision_holds_are_said_to_underflow() -> None:
    model = encoder()

    def change(k: int) -> None:  # noqa: ARG001
        for p in model.parameters():
            p.grad.copy_((p.grad * 1e-9).half())

    sample = GradientSample(model, switch())
    for k in range(20):
        model.zero_grad()
        (copying(model)(k) * 1e-9).backward()
        for p in model.parameters():
            p.grad.copy_(p.grad.half())
        sample.step()
    found = sample.detection()
    assert sample.complete and found is not None and "underflow" in found.cause


def test_gradients_that_are_tiny_are_compared_as_they_are() -> None:
    """torch's cosine takes what is below 1e-8 for nothing."""
    model = nn.Linear(8, 8)
    probe = GradientProbe(model, switch(), ())
    for _ in range(4):
        probe.after_step()
        model.zero_grad()
        (1e-12 * model(torch.randn(4, 8)).sum()).backward()
        probe.before_step()
    assert set(probe.seen) == {"fresh"}


def test_a_gradient_that_is_not_finite_though_the_loss_is() -> None:
    model = encoder()

    def loss(k: int) -> Tensor:
        gap = model(tokens(k))[0] * (0.0 if k == 20 else 1.0)
        return gap.square().sum().sqrt()

    handle = trained(model, loss, steps=24)
    assert handle.alarms[0].kind is AlarmKind.NOT_A_NUMBER and handle.alarms[0].step == 20
    assert "sqrt" in handle.alarms[0].cause


def test_weights_that_grow_by_hand_are_named() -> None:
    model = encoder()

    def after(k: int) -> None:  # noqa: ARG001
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.02)

    assert "multiplied by a number above 1" in causes(trained(model, copying(model), after=after, steps=40))


def test_a_model_that_is_no_longer_run_as_a_whole_is_named() -> None:
    model, cache = encoder(), torch.randn(4, 16, 32)

    def loss(k: int) -> Tensor:
        out = model(tokens(k)) if k < 15 else model[2](cache)
        return F.cross_entropy(out.flatten(0, 1), tokens(k).flatten())

    assert "no longer run as a whole" in causes(trained(model, loss))


def test_an_optimizer_that_stops_is_named_and_two_that_step_are_not() -> None:
    for stops in (False, True):
        model = encoder()
        one = torch.optim.Adam(model[:2].parameters(), 1e-3)
        two = torch.optim.Adam(model[2].parameters(), 1e-3)

        def after(k: int, one: Any = one, stops: bool = stops) -> None:
            if not stops or k < 10:
                one.step()
            one.zero_grad()

        handle = trained(model, copying(model), optimizer=two, after=after, steps=90)
        assert ("has stopped" in causes(handle)) == stops, causes(handle)
        assert "not in the optimizer" not in causes(handle)


def test_a_negative_rate_is_named() -> None:
    found = list(StepFacts().see([1e-3, -1e-5], 1.0))
    assert len(found) == 1 and "rate is negative" in found[0].cause


@pytest.mark.parametrize(("first", "last", "told"), [(1.0, 0.05, False), (1.0, 0.8, True), (0.0, 0.0, True)])
def test_a_loss_that_was_learned_to_zero_is_no_alarm(first: float, last: float, told: bool) -> None:
    """One that always was zero is, and one that is so from one step on."""
    facts = StepFacts()
    losses = [first] * 5 + [last] * 5 + [0.0] * 30
    found = [d for loss in losses for d in facts.see([1e-3], loss)]
    assert bool(found) == told and facts.solved == (first > 0)


def test_state_that_is_loaded_as_it_was_is_not_changed() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    custody = Custody(model)
    for factor in (1.0, 9.0):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        custody.leave(optimizer, sampled=True)
        optimizer.load_state_dict(optimizer.state_dict())
        for state in optimizer.state.values():
            state["exp_avg_sq"] = state["exp_avg_sq"] * factor
        custody.enter(optimizer, 1)
        assert (custody.changed == 1) == (factor > 1)


def test_labels_that_are_the_inputs_are_exchanged_alone() -> None:
    """A language model is given one tensor as both; its inputs stay."""
    model = hugging_face("llama")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for k in range(150):
        x = (torch.arange(16) * (1 + tokens(k)[:, :1] % 3)) % 64
        optimizer.zero_grad()
        model(input_ids=x, labels=x).loss.backward()
        optimizer.step()
    batch = ((), {"input_ids": x, "labels": x}), None
    known = label_information(Evidence(model, None, [optimizer], [batch, batch]))
    assert known is not None and known > 0.1


def profiles(labels: Any, inputs: Any = tokens, count: int = 40) -> BatchProfiles:
    seen = BatchProfiles()
    for k in range(count):
        seen.see(k, ((inputs(k, 32),), {}), labels(k))
    return seen


def drawn(k: int, classes: int = 4) -> Tensor:
    return torch.randint(0, classes, (32,), generator=torch.Generator().manual_seed(k))


def test_a_class_that_disappears_and_one_that_is_rare() -> None:
    gone = profiles(lambda k: drawn(k, 4 if k < 20 else 3)).vanished()
    assert gone is not None and gone[0] == 3 and gone[2] == 20
    assert profiles(drawn).vanished() is None
    rare = [
        torch.where(torch.rand(32, generator=torch.Generator().manual_seed(k)) < 0.05, 1, 0)
        for k in range(40)
    ]
    assert profiles(lambda k: rare[k]).vanished() is None


def test_another_task_is_no_class_that_disappears() -> None:
    assert profiles(lambda k: drawn(k, 2) + 2 * (k >= 20)).vanished() is None


def test_labels_are_constant_if_those_of_ten_batches_are() -> None:
    assert profiles(lambda k: torch.zeros(32, dtype=torch.long)).one_label()
    assert not profiles(lambda k: torch.full((32,), int(k == 35))).one_label()


def test_duplicates_with_other_labels_are_named() -> None:
    def twice(k: int, rows: int) -> Tensor:
        return tokens(k, rows // 2).repeat(2, 1)

    assert profiles(lambda k: torch.arange(32), twice).contradicted() is not None
    assert profiles(lambda k: torch.arange(32)).contradicted() is None
    assert profiles(lambda k: drawn(k)[:16].repeat(2), twice).contradicted() is None


def test_a_jump_of_a_loss_that_is_small_by_now_is_no_spike() -> None:
    """From 0.02 to 0.06 of a loss that began at 2; the same jump of a loss of 1 is one."""
    for level, named in ((0.01, False), (0.5, True)):
        falls = lambda step, low=level: max(low, 1.0 - step / 40) * (4.0 if step >= 120 else 1.0)  # noqa: E731
        alarms = run({"loss": falls}, noise=0.01)
        assert ("loss_spike" in [a.kind.value for a in alarms]) == named


def test_frozen_parameters_with_an_old_gradient_are_not_rounded_away() -> None:
    model = encoder()
    copying(model)(0).backward()
    for p in model[:2].parameters():
        p.requires_grad_(False)
    head = torch.optim.Adam(model[2].parameters(), 1e-3)
    assert "round" not in causes(trained(model, copying(model), optimizer=head, steps=30))


def test_batches_of_a_short_epoch_that_rows_meet_again_are_not_the_same_at_every_step() -> None:
    for apart, known in ((4, 0), (1, 10)):
        seen = BatchProfiles()
        for k in range(0, 40 * apart, apart):
            seen.see(k, ((tokens(k % 4),), {}), None)
        assert len(seen.last_rows(10)) == known


def test_passes_of_a_step_that_grow_and_are_summed() -> None:
    for factor, named in ((1.0, True), (0.125, False)):
        seen = events()
        for count in [1] * 10 + [8] * 10:
            seen.step(count)
        assert (seen.summed(factor) is not None) == named


@pytest.mark.parametrize(
    ("peak", "scale", "told"), [(0.9, 1.0, False), (3.0, 1.0, True), (2.0, 1.0, False), (3.0, 0.3, False)]
)
def test_one_batch_whose_loss_came_back(peak: float, scale: float, told: bool) -> None:
    """It is an alarm if it cost more than twice as much as guessing, and its gradient was not clipped."""
    examination: Any = object.__new__(Examination)
    examination.evidence = lambda: SimpleNamespace(least=1.4, gradient_scale=scale)
    examination.profiles, examination._peaks = BatchProfiles(), {46: peak}
    examination._new_data = lambda *_: None
    alarm = examination._explained(Alarm(AlarmKind.BAD_BATCH, 46, "", None, 46, "The loss jumped."))
    assert alarm.cause.startswith(PASSED) != told


def test_what_moves_while_data_that_changed_as_planned_is_learned_is_no_alarm() -> None:
    """A curriculum: for 120 steps half of the tokens is one word. Logits grew at step 135 while the loss stood."""
    from experiments.mistakes.blind_four_kit import Bench, usual

    bench = Bench("gpt")

    def data(k: int) -> Any:
        (ids,), target = bench.batch(k)
        easy = torch.cat([ids, target[:, -1:]], 1).clone()
        easy[:, ::2] = 3
        return ((easy[:, :-1],), easy[:, 1:]) if k < 120 else ((ids,), target)

    case = usual(bench, bench.adam(lr=2 * bench.rate), data=data)
    handle = edgewise.watch(case["model"], quiet=True, everything=True, trials=False)
    for k in range(170):
        case["step"](k)
    handle.close(finished=False)
    assert handle.alarms == [] and handle.examination._settles == 200
    assert not handle.history.losses.risen() and handle.history.losses.steps[0] == 120


@pytest.mark.parametrize(("level", "settled"), [(0.9, True), (2.0, False)])
def test_data_behind_a_task_that_was_solved_need_not_come_back_to_nothing(
    level: float, settled: bool
) -> None:
    """From copying, at a loss of 0.01, to a language whose entropy is 0.9: five sixths of the jump were learned."""
    handle = edgewise.watch(encoder(), quiet=True)
    examination = handle.examination
    for k in range(80):
        examination.history.losses.see(k, math.log(level))
    data = NewData(0, 0.01, 5.5, "", False)
    examination._unsettled = 80, data, Alarm(AlarmKind.BAD_BATCH, 0, "", None, 0, "It jumped.")
    assert (examination._not_settled() == []) == settled
    handle.close(finished=False)
