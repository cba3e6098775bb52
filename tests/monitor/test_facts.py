"""Facts beside trends: each mistake is named within a few steps, and its healthy twin is silent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.facts import SAME, StepFacts
from edgewise.monitor.watch import Watch, watch
from tests.monitor.subjects import encoder


def watched(
    *,
    steps: int = 60,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.Adam(
        m.parameters(), 1e-3
    ),
    zero: str = "before",
    start: Callable[[nn.Module, int], None] = lambda m, k: None,
    change: Callable[[Tensor, int], Tensor] = lambda out, k: out,
    scalar: Callable[[Tensor, int], Tensor] = lambda loss, k: loss,
    inputs: Callable[[Tensor, int], Tensor] = lambda x, k: x,
    **options: Any,
) -> Watch:
    """A loop as people write it, with one thing changed."""
    model = encoder() if model is None else model
    own, criterion = optimizer(model), nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(0)
    handle = watch(model, criterion=criterion, **{"quiet": True} | options)
    for k in range(steps):
        x = inputs(torch.randint(0, 64, (4, 16), generator=generator), k)
        start(model, k)
        if zero == "before":
            own.zero_grad()
        loss = scalar(criterion(change(model(x), k).flatten(0, 1), x.flatten()), k)
        if loss.requires_grad:
            loss.backward()
        if zero == "late":
            own.zero_grad()
        own.step()
    handle.close()
    assert handle.error == ""
    return handle


def named(handle: Watch, *words: str) -> Alarm:
    """The first alarm whose cause says all of these words."""
    found = [a for a in handle.alarms if all(word in f"{a.cause} {a.what}" for word in words)]
    assert found, [(a.kind, a.cause, a.what) for a in handle.alarms]
    return found[0]


def test_a_healthy_run_has_no_alarm_and_rows_from_its_first_step_on() -> None:
    handle = watched()
    assert handle.alarms == [] and handle.budget.samples >= 20


def test_a_rate_of_zero_is_named() -> None:
    alarm = named(watched(steps=20, optimizer=lambda m: torch.optim.Adam(m.parameters(), 0.0)), "rate is 0")
    assert alarm.kind is AlarmKind.RATE_ZERO and alarm.step < 12


def test_gradients_that_add_up_are_named() -> None:
    alarm = named(watched(steps=20, zero="never"), "zero_grad() is missing")
    assert alarm.kind is AlarmKind.GRADIENT_ADDS_UP and alarm.step < 8


def test_gradients_cleared_before_the_step_are_named() -> None:
    alarm = named(watched(steps=20, zero="late"), "zero_grad() is called too late")
    assert alarm.kind is AlarmKind.NO_GRADIENT and alarm.step < 8


def test_accumulation_is_no_adding_up() -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    handle = watch(model, criterion=criterion, quiet=True)
    for _ in range(15):
        optimizer.zero_grad()
        for _ in range(3):
            x = torch.randint(0, 64, (4, 16))
            (criterion(model(x).flatten(0, 1), x.flatten()) / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    handle.close()
    assert handle.alarms == [] and set(handle.examination.probe.seen) == {"fresh"}


def test_an_optimizer_of_other_tensors_is_named() -> None:
    handle = watched(steps=15, optimizer=lambda m: torch.optim.Adam(encoder().parameters(), 1e-3))
    assert named(handle, "holds other tensors").kind is AlarmKind.PARAMETERS_STILL


def test_parameters_that_no_optimizer_has_are_named() -> None:
    handle = watched(steps=60, optimizer=lambda m: torch.optim.Adam(m[2].parameters(), 1e-3), everything=True)  # type: ignore[index]
    alarm = named(handle, "not in any optimizer")
    assert "0.weight" in alarm.what and [a.kind for a in handle.alarms] == [AlarmKind.PARAMETERS_STILL]


def test_frozen_parameters_are_no_mistake() -> None:
    model = encoder()
    model[0].requires_grad_(False)  # type: ignore[index]
    trained = [p for p in model.parameters() if p.requires_grad]
    handle = watched(model=model, optimizer=lambda m: torch.optim.Adam(trained, 1e-3), everything=True)
    assert handle.alarms == []


@pytest.mark.parametrize("sampled", [True, False])
def test_a_parameter_that_is_not_finite_is_the_first_place(sampled: bool) -> None:
    def poison(model: nn.Module, k: int) -> None:
        if k == 25:
            with torch.no_grad():
                model[1].layers[1].linear1.weight[3, 3] = math.inf  # type: ignore[index, union-attr]

    handle = watched(steps=30, start=poison, everything=sampled, **({} if sampled else {"budget": 1e-9}))
    alarm = named(handle, "1.layers.1.linear1.weight")
    assert alarm.step == 25 and alarm.kind is AlarmKind.NOT_A_NUMBER and alarm.module == "1.layers.1.linear1"
    assert len(handle.alarms) == 1


def test_an_input_that_is_not_finite_is_found_in_the_whole_batch() -> None:
    model = nn.Sequential(nn.Linear(8, 32), *list(encoder())[1:])
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 1e-3)
    handle = watch(model, criterion=criterion, quiet=True)
    for k in range(8):
        x, y = torch.randn(6, 16, 8), torch.randint(0, 64, (6, 16))
        if k == 6:
            x[5, 3, 2] = math.nan  # not among the two sequences that are copied
        optimizer.zero_grad()
        criterion(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
    handle.close()
    alarm = named(handle, "the input is not finite", "1 of 6 rows")
    assert alarm.step == 6


def test_a_loss_that_is_not_finite_though_the_outputs_are_points_to_the_loss() -> None:
    handle = watched(steps=15, change=lambda out, k: out * math.nan if k == 12 else out)
    assert named(handle, "loss is computed").step == 12


def test_a_gradient_that_is_not_finite_is_said_though_the_loss_is() -> None:
    handle = watched(steps=15, scalar=lambda loss, k: loss * math.nan if k == 12 else loss, everything=True)
    assert (handle.alarms[0].kind, handle.alarms[0].step) == (AlarmKind.NOT_A_NUMBER, 12)


def loop(
    steps: int,
    start: Callable[[nn.Module, torch.optim.Optimizer, int], None] = lambda m, o, k: None,
    scale: Callable[[int], float] = lambda k: 1.0,
    due: Callable[[int], bool] = lambda k: True,
    **options: Any,
) -> Watch:
    """A loop that learns to copy, without a criterion module; steps are made where they are due."""
    torch.manual_seed(0)
    model = encoder()
    own = torch.optim.Adam(model.parameters(), 3e-3)
    handle = watch(model, quiet=True, **options)
    for k in range(steps):
        x = torch.randint(0, 64, (4, 16))
        start(model, own, k)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        (loss * scale(k)).backward()
        if due(k):
            own.step()
            own.zero_grad()
        elif not math.isfinite(scale(k)):
            own.zero_grad()
    handle.close()
    assert handle.error == ""
    return handle


def test_a_scale_that_overflows_is_named_unless_the_step_is_skipped() -> None:
    def scale(k: int) -> float:
        return math.inf if k == 12 else 1.0

    assert named(loop(15, scale=scale), "gradients of the step are not finite", "not skipped").step == 12
    assert loop(15, scale=scale, due=lambda k: k != 12).alarms == []


def test_steps_that_stop_are_named() -> None:
    alarm = named(loop(60, due=lambda k: k < 10), "optimizer.step() is not called")
    assert alarm.kind is AlarmKind.GRADIENT_ADDS_UP


def test_freezing_what_trained_is_named_and_thawing_is_not() -> None:
    def freeze(k: int, model: nn.Module, on: bool) -> None:
        if k == 20:
            model[1].requires_grad_(on)  # type: ignore[index, operator]

    handle = loop(40, lambda m, o, k: freeze(k, m, False), everything=True)
    assert [a.kind for a in handle.alarms] == [AlarmKind.PARAMETERS_STILL]
    assert "frozen" in handle.alarms[0].cause


def test_moments_that_are_lost_explain_the_jump_that_follows() -> None:
    def lose(_: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
        if k == 40:
            for state in optimizer.state.values():
                state["exp_avg_sq"].zero_()

    assert named(loop(60, lose), "optimizer's state", "before step 40").kind in (
        AlarmKind.LOSS_SPIKE,
        AlarmKind.MISTAKE,
    )


def test_weights_that_are_bounded_after_every_step_are_no_accident() -> None:
    def bound(model: nn.Module, _: torch.optim.Optimizer, k: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.999 if k else 1.0)

    assert loop(60, bound, lambda k: 30.0 if k == 40 else 1.0).alarms == []


def test_a_constant_loss_is_said() -> None:
    facts = StepFacts()
    found = [d for k in range(SAME) for d in facts.see([1e-3], 2.5)]
    assert [d.kind for d in found] == [AlarmKind.LOSS_CONSTANT]
    facts = StepFacts()
    assert not [d for k in range(3 * SAME) for d in facts.see([1e-3], 2.5 + 1e-6 * k)]


def test_a_negative_cross_entropy_is_impossible() -> None:
    facts = StepFacts(cross_entropy=True)
    assert [d.kind for d in facts.see([1e-3], -0.5)] == [AlarmKind.LOSS_IMPOSSIBLE]


def test_steps_that_round_to_nothing_are_named() -> None:
    model = encoder().to(torch.bfloat16)
    handle = watched(
        steps=60, model=model, optimizer=lambda m: torch.optim.SGD(m.parameters(), 1e-5), everything=True
    )
    assert named(handle, "half precision").kind is AlarmKind.UPDATE_ROUNDED_AWAY


def test_a_block_without_gradient_is_named() -> None:
    model = encoder()
    block = model[1].layers[0]  # type: ignore[index, union-attr]
    inner = block.forward

    def forward(*args: Any, **named: Any) -> Any:
        with torch.no_grad():
            return inner(*args, **named)

    block.forward = forward
    assert "1.layers.0" in named(watched(model=model, everything=True), "No gradient reaches").what


def test_bits_are_those_of_the_unwatched_run() -> None:
    """With all facts and tests: probe, audit, tests on a copy and trials."""
    ends = []
    for watching in (False, True):
        model, criterion = encoder(dropout=0.1), nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(model.parameters(), 0.3)
        handle = edgewise.watch(model, criterion=criterion, quiet=True, everything=True) if watching else None
        torch.manual_seed(1)
        for _ in range(70):
            x = torch.randint(0, 64, (4, 16))
            optimizer.zero_grad()
            criterion(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
        if handle is not None:
            handle.close()
            assert handle.error == ""
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("average", "most of each update is lost"),
        ("shrink", "decay outside of the optimizer"),
        ("round", "rounded to bfloat16"),
        ("bound", ""),
        ("slow weights", ""),
        ("masked head", ""),
    ],
)
def test_what_becomes_of_a_step_until_the_next_one(how: str, words: str) -> None:
    """An average copied back, decay by hand and rounding undo steps; a bound, slow weights and a mask do not."""
    kept: dict[str, Tensor] = {}

    def after(model: nn.Module, k: int) -> None:
        with torch.no_grad():
            for name, p in model.named_parameters():
                old = kept.setdefault(name, p.detach().clone())
                if how == "average":
                    p.copy_(old.lerp_(p, 0.01))
                elif how == "shrink":
                    p.mul_(0.9)
                elif how == "round":
                    p.copy_(p.bfloat16().float())
                elif how == "bound":
                    p.clamp_(-0.3, 0.3)
                elif how == "slow weights" and k % 5 == 0:
                    p.copy_(old.lerp_(p, 0.5))
                elif how == "masked head" and name == "2.weight":
                    p[:8] = 0.0

    handle = watched(start=after, optimizer=lambda m: torch.optim.Adam(m.parameters(), 1e-4), steps=40)
    if words:
        named(handle, words)
    assert bool(words) == bool(handle.alarms), [(a.cause, a.what) for a in handle.alarms]


def test_a_schedule_that_comes_back_is_named_and_restarts_are_not() -> None:
    def returned(rate: Callable[[int], float]) -> bool:
        facts = StepFacts()
        return any(
            "shorter than the training" in d.cause for k in range(250) for d in facts.see([rate(k)], 1.0)
        )

    warm: Callable[[int], float] = lambda k: min(1.0, (k + 1) / 20)  # noqa: E731
    assert returned(lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * k / 62.5)))
    assert not returned(lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * (k % 75) / 75)))
    assert not returned(lambda k: min(1.0, (k % 75 + 1) / 8) * (1 - (k % 75) / 75))
    assert not returned(lambda k: warm(k) * (0.5 + 0.5 * math.cos(math.pi * k / 250)))
    assert not returned(lambda k: 0.01 + 1 - abs(1 - k % 80 / 40))  # cycles, which begin with such a climb


@pytest.mark.parametrize(
    ("rate", "beyond"),
    [(lambda k: math.exp(max(k - 80, 0) / 25), True), (lambda k: 1 - 0.9 * (k % 60) / 60, False)],
)
def test_a_rate_is_beyond_what_the_run_has_trained_with_in_a_ramp_and_not_in_a_restart(
    rate: Callable[[int], float], beyond: bool
) -> None:
    """Both have more than doubled within 120 steps."""
    facts = StepFacts()
    for k in range(122):
        list(facts.see([rate(k)], 1.0))
    assert facts.rates.raised(120) > 1.5 and (facts.rates.beyond > 1.5) == beyond


def test_second_moments_of_others_are_named_and_the_same_ones_loaded_again_are_not() -> None:
    for factor in (1.0, 100.0):
        own: list[torch.optim.Optimizer] = []

        def make(model: nn.Module, own: list[torch.optim.Optimizer] = own) -> torch.optim.Optimizer:
            own.append(torch.optim.Adam(model.parameters(), 1e-3))
            return own[0]

        def load(
            _: nn.Module, k: int, own: list[torch.optim.Optimizer] = own, factor: float = factor
        ) -> None:
            if k == 30:
                for state in own[0].state.values():
                    state["exp_avg_sq"] = factor * state["exp_avg_sq"]

        handle = watched(optimizer=make, start=load, steps=40)
        assert ["moments" in a.cause for a in handle.alarms] == ([True] if factor > 1 else [])


class Routed(nn.Module):
    """Experts of which `chosen` names those that are used, and layers that are skipped by turns."""

    def __init__(self, chosen: tuple[int, ...], skip: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.chosen, self.skip = nn.Embedding(64, 32), chosen, skip
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.readout, self.count = nn.Linear(32, 64), 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        self.count += 1
        for i, expert in enumerate(self.experts):
            if not (self.skip and self.training and (self.count + i) % 4):
                h = h + expert(h) * float(i in self.chosen)
        return self.readout(h)


def test_experts_that_are_unused_and_layers_left_out_by_turns() -> None:
    named(watched(model=Routed((1,)), everything=True, steps=70), "gives everything to one expert")
    assert watched(model=Routed((0, 1, 3)), everything=True, steps=70).alarms == []
    assert watched(model=Routed((0, 1, 2, 3), skip=True), everything=True, steps=70).alarms == []


@pytest.mark.parametrize("how", ["master weights", "parts in turn", "now and then"])
def test_what_is_stepped_in_another_way_is_no_mistake(how: str) -> None:
    """Copies that are stepped and written back; one half of the network, then the other; one in ten steps."""
    model, criterion, generator = encoder(), nn.CrossEntropyLoss(), torch.Generator().manual_seed(0)
    first, second = list(model[1].parameters()), [*model[0].parameters(), *model[2].parameters()]  # type: ignore[index]
    copies = [p.detach().clone() for p in model.parameters()]
    made = [
        torch.optim.Adam(each, 1e-3) for each in ((copies,) if how == "master weights" else (first, second))
    ]
    handle = watch(model, criterion=criterion, quiet=True, everything=True)
    for k in range(60):
        x = torch.randint(0, 64, (4, 16), generator=generator)
        if how == "parts in turn":
            for p in (*first, *second):
                p.requires_grad_(any(p is each for each in (first, second)[k // 30]))
        model.zero_grad()
        criterion(model(x).flatten(0, 1), x.flatten()).backward()
        for copy, p in zip(copies, model.parameters(), strict=True):
            copy.grad = p.grad
        for i, each in enumerate(made):
            if how != "now and then" or i == 0 or k % 10 == 0:
                each.step()
        if how == "master weights":
            torch._foreach_copy_([p.detach() for p in model.parameters()], copies)
    handle.close()
    assert handle.error == "" and [(a.kind, a.cause) for a in handle.alarms] == []


@pytest.mark.parametrize("scale", [1.0, 2.0**24])
def test_steps_that_are_all_skipped_are_named(scale: float) -> None:
    """Gradients that are cleared unused, pass after pass; a loop that writes the weights itself is none."""
    for by_hand in (False, True):
        model, criterion = encoder(), nn.CrossEntropyLoss()
        handle = watch(model, criterion=criterion, quiet=True)
        for _ in range(60):
            x = torch.randint(0, 64, (4, 16))
            (scale * criterion(model(x).flatten(0, 1), x.flatten())).backward()
            with torch.no_grad():
                for p in model.parameters():
                    if by_hand and p.grad is not None:
                        p -= 1e-3 / scale * p.grad
                    p.grad = None
        handle.close()
        assert [a.kind for a in handle.alarms] == [AlarmKind.PARAMETERS_STILL] * (not by_hand)
        assert by_hand or ("all steps are skipped" in handle.alarms[0].cause)
        assert by_hand or ("1.68e+07 times the loss" in handle.alarms[0].what) == (scale > 1)


@pytest.mark.parametrize(("every", "rare"), [(40, True), (4, False)])
def test_updates_that_are_far_rarer_than_losses_are_said_at_the_end(every: int, rare: bool) -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    handle = watch(model, criterion=criterion, quiet=True)
    for k in range(240):
        x = torch.randint(0, 64, (4, 16))
        (criterion(model(x).flatten(0, 1), x.flatten()) / every).backward()
        if k % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
    handle.close()
    assert [a.cause[:17] for a in handle.alarms] == ["updates are rare:"] * rare
    assert not rare or "240 backward passes were made for 6 steps" in handle.alarms[0].what


def test_betas_that_are_swapped_are_named_at_once_and_unusual_ones_wait_for_harm() -> None:
    def first(betas: tuple[float, float]) -> list[str]:
        model = encoder()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3, betas=betas)
        handle = edgewise.watch(model, criterion=(criterion := nn.CrossEntropyLoss()), quiet=True)
        for _ in range(8):
            x = torch.randint(0, 64, (4, 16))
            optimizer.zero_grad()
            criterion(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
        handle.close(finished=False)
        return [alarm.cause for alarm in handle.alarms]

    assert first((0.999, 0.9)) == ["the betas of Adam are swapped"] and first((0.995, 0.999)) == []


@pytest.mark.parametrize("labels", ["of the batch before", "mostly noise", "own"])
def test_a_run_that_ends_at_the_entropy_of_the_labels_or_little_below_says_so(labels: str) -> None:
    """Labels of another batch, of which only the frequencies are learned, and labels most of which are noise."""
    torch.manual_seed(0)
    table, stack, _ = encoder()  # type: ignore[misc]
    model = nn.Sequential(table, stack, nn.Linear(32, 4))
    rng, criterion = torch.Generator().manual_seed(0), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    handle = watch(model, criterion=criterion, quiet=True, trials=False)
    before = torch.zeros(256, dtype=torch.long)
    for _ in range(240):
        x = torch.randint(0, 64, (16, 16), generator=rng)
        right = (x // (16 if labels == "mostly noise" else 8)).flatten().clamp_max(3)  # five of eight are 3
        drawn = torch.where(
            torch.rand(256, generator=rng) < 0.7, torch.randint(0, 4, (256,), generator=rng), right
        )
        y, before = {"own": right, "mostly noise": drawn}.get(labels, before), right
        optimizer.zero_grad()
        criterion(model(x).flatten(0, 1), y).backward()
        optimizer.step()
    handle.close()
    said = [alarm.what for alarm in handle.alarms if alarm.kind is AlarmKind.NOT_LEARNING]
    words = {
        "of the batch before": "has not left the entropy of the labels",
        "mostly noise": "has stopped at",
    }
    assert len(said) == len(handle.alarms) == (labels != "own")
    assert labels == "own" or words[labels] in said[0]
    assert [bool(alarm.cause) for alarm in handle.alarms] == [labels == "of the batch before"] * len(said)


def test_units_that_are_dead_from_the_start_are_not_called_unused() -> None:
    """A bias of -10 before a relu: no gradient reaches the matrix before it, though the loss depends on the layer."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    for block in model[1].layers:  # type: ignore[index, union-attr]
        nn.init.constant_(block.linear1.bias, -10.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with edgewise.watch(model, criterion=criterion, quiet=True) as handle:
        for _ in range(30):
            x = torch.randint(0, 64, (4, 16))
            optimizer.zero_grad()
            criterion(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
    (alarm,) = [a for a in handle.alarms if a.kind is AlarmKind.PARAMETERS_STILL]
    assert "never get a gradient that is not zero" in alarm.cause and "linear1.weight" in alarm.what


def test_attention_that_gets_no_gradient_is_explained_by_what_was_known_of_the_start() -> None:
    """Norms with an eps of ten million: what enters attention is tiny, and its scores have no say."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e7
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with edgewise.watch(model, criterion=criterion, quiet=True, everything=True) as handle:
        for _ in range(25):
            x = torch.randint(0, 64, (4, 16))
            optimizer.zero_grad()
            criterion(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
    (alarm,) = [a for a in handle.alarms if "queries and keys" in a.what]
    assert "norm" in alarm.cause and alarm.could_be == ()
