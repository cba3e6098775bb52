"""The development list: mistakes that people make, planted in four small language models, each with a healthy twin.

Every case is one function of the architecture and of whether it is broken; most differ from the common training in one
line, which `Plan` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from experiments.mistakes.networks import ARCHITECTURES, VOCABULARY, blocks_of, network, text

STEPS = 150
Words = list[list[str]]


@dataclass
class Plan:
    """The common training, and what a mistake changes in it."""

    options: dict[str, Any] = field(default_factory=dict)  # of the network
    prepare: Callable[[nn.Module], object] = lambda model: None  # changes the fresh model
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda m: torch.optim.AdamW(
        m.parameters(), 3e-3
    )
    rate: Callable[[int], float] | None = None  # sets the rate of a step
    zero: str = "before"  # when gradients are cleared: before, late, never
    inputs: Callable[[Tensor, int], Tensor] = lambda x, k: x
    labels: Callable[[Tensor, int], Tensor] = lambda y, k: y
    output: Callable[[Tensor, int], Tensor] = lambda z, k: z
    loss: Callable[[Tensor, int], Tensor] = lambda loss, k: loss
    between: Callable[[nn.Module, int], None] = lambda model, k: None  # between backward and step
    start: Callable[[nn.Module, int], None] = lambda model, k: None  # at the beginning of a step
    accumulate: int = 1
    smoothing: float = 0.0
    source: Callable[[int], int] = lambda k: 0  # which text a step reads
    autocast: bool = False
    steps: int = STEPS


def training(architecture: str, plan: Plan) -> dict[str, Any]:
    """The dictionary of a case."""
    model = network(architecture, **plan.options)
    plan.prepare(model)
    optimizer = plan.optimizer(model)
    sources = {shift: text(1, shift) for shift in {plan.source(k) for k in range(plan.steps)}}
    criterion = nn.CrossEntropyLoss(label_smoothing=plan.smoothing)
    model.train()

    def one(k: int) -> Tensor:
        x = next(sources[plan.source(k)])
        inputs, labels = plan.inputs(x[:, :-1].clone(), k), plan.labels(x[:, 1:].clone(), k)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
            output = model(inputs)
            output = getattr(output, "logits", output)
            output = plan.output(output, k)
        return plan.loss(criterion(output.float().flatten(0, 1), labels.flatten()), k)

    def step(k: int) -> float:
        plan.start(model, k)
        if plan.rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(k)
        if plan.zero == "before":
            optimizer.zero_grad()
        for _ in range(plan.accumulate):
            loss = one(k)
            if loss.requires_grad:
                (loss / plan.accumulate).backward()
        if plan.zero == "late":
            optimizer.zero_grad()
        plan.between(model, k)
        optimizer.step()
        return float(loss.detach())

    return {"model": model, "step": step, "steps": plan.steps, "watch": {"criterion": criterion}}


def sgd(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), rate, momentum=0.9)


def adamw(rate: float = 3e-3, **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), rate, **options)


def clip(limit: float) -> Callable[[nn.Module, int], None]:
    def between(model: nn.Module, _: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), limit)

    return between


def scaled(pick: Callable[[str], bool], factor: float) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if pick(name) and parameter.dim() > 1:
                    parameter.mul_(factor)

    return prepare


def no_skip(model: nn.Module) -> None:
    for block in blocks_of(model)[1:2]:
        inner = block.forward

        def forward(x: Any, *args: Any, inner: Any = inner, **named: Any) -> Any:
            given = inner(x, *args, **named)
            return (given[0] - x, *given[1:]) if isinstance(given, tuple) else given - x

        block.forward = forward


def no_gradient(model: nn.Module) -> None:
    block = blocks_of(model)[0]
    inner = block.forward

    def forward(x: Any, *args: Any, **named: Any) -> Any:
        with torch.no_grad():
            return inner(x, *args, **named)

    block.forward = forward


def poisoned(name: str, step: int) -> Callable[[nn.Module, int], None]:
    def start(model: nn.Module, k: int) -> None:
        if k == step:
            parameter = [p for n, p in model.named_parameters() if name in n and p.dim() > 1][-1]
            with torch.no_grad():
                parameter.view(-1)[0] = float("nan")

    return start


def at(step: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda x, k: change(x) if k == step else x


def other_half(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for n, p in model.named_parameters() if "2" in n or "out" in n], 3e-3)


def first_batch() -> Callable[[Tensor, int], Tensor]:
    kept: list[Tensor] = []

    def same(x: Tensor, _: int) -> Tensor:
        kept.append(x)
        return kept[0]

    return same


def both_first() -> Plan:
    return Plan(inputs=first_batch(), labels=first_batch())


def rolled(places: int) -> Callable[[Tensor, int], Tensor]:
    return lambda y, _: torch.roll(y, places, 1)


def drawn(y: Tensor, k: int) -> Tensor:
    return torch.randint(0, VOCABULARY, y.shape, generator=torch.Generator().manual_seed(k))


# name: (plan, words of the cause, words of symptoms, architectures or None for all)
MISTAKES: dict[str, tuple[Callable[[], Plan], Words, Words, tuple[str, ...] | None]] = {
    "rate_zero": (lambda: Plan(optimizer=adamw(0.0)), [["rate", "0"]], [["move"], ["still"]], None),
    "rate_goes_to_zero": (
        lambda: Plan(rate=lambda k: 3e-3 * max(0.0, 1 - k / 40)),
        [["rate", "0"]],
        [["still"], ["constant"]],
        None,
    ),
    "zero_grad_missing": (lambda: Plan(zero="never"), [["zero_grad"], ["not cleared"]], [["adds up"]], None),
    "zero_grad_before_step": (
        lambda: Plan(zero="late"),
        [["zero_grad"], ["cleared"]],
        [["no gradient"]],
        None,
    ),
    "optimizer_of_another_model": (
        lambda: Plan(optimizer=lambda m: torch.optim.AdamW(network("gpt").parameters(), 3e-3)),
        [["optimizer", "other"]],
        [["still"]],
        None,
    ),
    "optimizer_before_new_readout": (
        lambda: Plan(optimizer=other_half),
        [["not in", "optimizer"]],
        [["still"]],
        None,
    ),
    "softmax_before_loss": (
        lambda: Plan(output=lambda z, _: z.softmax(-1)),
        [["softmax"]],
        [["not learning"]],
        None,
    ),
    "sigmoid_before_loss": (
        lambda: Plan(output=lambda z, _: z.sigmoid()),
        [["sigmoid"], ["squash"]],
        [["not learning"]],
        None,
    ),
    "labels_shifted_twice": (
        lambda: Plan(labels=rolled(-1)),
        [["shift"]],
        [["not learning"], ["rank"]],
        None,
    ),
    "labels_not_shifted": (lambda: Plan(labels=rolled(1)), [["shift"]], [["not learning"]], None),
    "labels_of_other_rows": (
        lambda: Plan(labels=lambda y, _: y.roll(1, 0)),
        [["other sequences"], ["shuffled"]],
        [["not learning"], ["rank"]],
        None,
    ),
    "labels_at_random": (
        lambda: Plan(labels=drawn, steps=260),
        [["labels", "inputs"]],
        [["not learning"], ["rank"]],
        None,
    ),
    "labels_all_ignored": (
        lambda: Plan(labels=lambda y, k: torch.full_like(y, -100) if k >= 60 else y),
        [["ignored"]],
        [["not a"], ["finite"]],
        None,
    ),
    "mask_missing": (
        lambda: Plan(options={"mask": False}),
        [["mask"], ["sees"]],
        [["impossible"]],
        ("encoder", "gpt", "llama"),
    ),
    "scale_missing": (
        lambda: Plan(options={"scale": 4.0}, prepare=scaled(lambda n: "qkv" in n, 3.0)),
        [["logit"], ["scale"]],
        [["one hot"], ["entropy"]],
        ("gpt", "llama"),
    ),
    "skip_missing": (lambda: Plan(prepare=no_skip), [["residual"], ["skip"]], [["rank"], ["vanish"]], None),
    "skips_all_missing": (
        lambda: Plan(prepare=lambda m: [setattr(b, "skip", False) for b in blocks_of(m)] and None),
        [["residual"], ["skip"]],
        [["rank"], ["vanish"], ["not learning"]],
        ("gpt", "llama"),
    ),
    "dropout_most": (
        lambda: Plan(options={"dropout": 0.9}),
        [["dropout"]],
        [["rank"], ["not learning"]],
        None,
    ),
    "decay_too_strong": (
        lambda: Plan(optimizer=adamw(3e-3, weight_decay=10.0)),
        [["decay"]],
        [["rank"], ["not learning"]],
        None,
    ),
    "rate_too_high": (
        lambda: Plan(optimizer=adamw(0.3), steps=200),
        [["rate", "high"]],
        [["update"], ["loss"], ["rank"], ["one hot"], ["logit"], ["not learning"]],
        None,
    ),
    "rate_too_high_sgd": (
        lambda: Plan(optimizer=sgd(30.0)),
        [["rate", "high"]],
        [["update"], ["loss"], ["rank"], ["finite"], ["not a"], ["not learning"], ["one hot"]],
        None,
    ),
    "rate_too_low": (
        lambda: Plan(optimizer=adamw(3e-8), steps=260),
        [["rate", "low"]],
        [["not learning"], ["round"]],
        None,
    ),
    "rate_grows": (
        lambda: Plan(rate=lambda k: 3e-3 * 1.06**k, steps=200),
        [["rate", "high"]],
        [["update"], ["loss"], ["rank"], ["logit"], ["entropy"], ["one hot"]],
        None,
    ),
    "maximized": (lambda: Plan(optimizer=adamw(maximize=True)), [["maximi"]], [["loss"], ["update"]], None),
    "loss_negated": (
        lambda: Plan(loss=lambda loss, _: -loss),
        [["sign"], ["maximi"]],
        [["loss"], ["update"]],
        None,
    ),
    "loss_detached": (
        lambda: Plan(loss=lambda loss, _: loss.detach()),
        [["no gradient"], ["detach"]],
        [["no gradient"], ["still"], ["constant"]],
        None,
    ),
    "block_detached": (
        lambda: Plan(prepare=no_gradient),
        [["detach"], ["does not depend"]],
        [["still"], ["reach"]],
        None,
    ),
    "epsilon_of_one": (lambda: Plan(optimizer=adamw(eps=1.0)), [["eps"]], [["not learning"]], None),
    "clipped_to_nothing": (
        lambda: Plan(optimizer=sgd(0.3), between=clip(1e-4)),
        [["clip"]],
        [["not learning"]],
        None,
    ),
    "half_precision_weights": (
        lambda: Plan(prepare=lambda m: m.to(torch.bfloat16) and None, optimizer=adamw(1e-5)),
        [["precision"], ["round"]],
        [["round"]],
        None,
    ),
    "same_batch": (both_first, [["same batch"]], [["same"]], None),
    "inputs_constant": (
        lambda: Plan(inputs=lambda x, _: torch.full_like(x, 3)),
        [["constant"], ["all tokens"]],
        [["not learning"], ["rank"]],
        None,
    ),
    "sequences_alike": (
        lambda: Plan(inputs=lambda x, _: x[:1].expand_as(x), labels=lambda y, _: y[:1].expand_as(y)),
        [["copies"], ["same"]],
        [["same"]],
        None,
    ),
    "labels_constant": (
        lambda: Plan(labels=lambda y, _: torch.zeros_like(y)),
        [["labels", "constant"]],
        [["same"]],
        None,
    ),
    "positions_missing": (
        lambda: Plan(options={"places": False}, steps=260),
        [["position"]],
        [["not learning"], ["rank"]],
        ("gpt", "llama"),
    ),
    "nan_weight": (lambda: Plan(start=poisoned("", 60)), [["parameter"]], [["finite"], ["not a"]], None),
    "nan_in_block": (
        lambda: Plan(start=poisoned(".1.", 60)),
        [["parameter"], ["1."]],
        [["finite"], ["not a"]],
        None,
    ),
    "nan_in_readout": (
        lambda: Plan(output=at(60, lambda z: z / 0.0)),
        [["loss is computed"], ["output"]],
        [["finite"], ["not a"]],
        None,
    ),
    "nan_loss": (
        lambda: Plan(loss=lambda loss, k: loss * float("nan") if k >= 60 else loss),
        [["loss is computed"]],
        [["finite"], ["not a"]],
        None,
    ),
    "bad_batch": (
        lambda: Plan(inputs=at(100, lambda x: torch.randint_like(x, VOCABULARY))),
        [["batch"], ["data"]],
        [["batch"], ["loss"]],
        None,
    ),
    "evaluation_mode": (
        lambda: Plan(options={"dropout": 0.1}, start=lambda m, k: m.eval() and None if k >= 5 else None),
        [["evaluation mode"]],
        [["mode"]],
        None,
    ),
    "queries_huge": (
        lambda: Plan(prepare=scaled(lambda n: any(w in n for w in ("in_proj", "qkv", "c_attn")), 60.0)),
        [["logit"]],
        [["one hot"], ["entropy"], ["logit"]],
        None,
    ),
    "loss_constant": (
        lambda: Plan(output=lambda z, _: z * 0.0),
        [["multiplied by zero"], ["does not depend"]],
        [["constant"], ["gradient"]],
        None,
    ),
}
CONTROLS: dict[str, Callable[[], Plan]] = {
    "plain": lambda: Plan(steps=300),
    "warm_up": lambda: Plan(rate=lambda k: 3e-3 * min(1.0, k / 50), steps=300),
    "warm_restarts": lambda: Plan(rate=lambda k: 3e-3 * (1 - (k % 100) / 100), steps=300),
    "curriculum": lambda: Plan(source=lambda k: int(k >= 180), steps=300),
    "accumulation_and_smoothing": lambda: Plan(accumulate=3, smoothing=0.1, steps=200),
    "bfloat16_autocast": lambda: Plan(autocast=True, steps=300),
    "clipping": lambda: Plan(between=clip(1.0), steps=300),
    "sgd": lambda: Plan(optimizer=sgd(0.1), steps=300),
    "dropout": lambda: Plan(options={"dropout": 0.1}, steps=300),
    "frozen_then_not": lambda: Plan(
        prepare=lambda m: blocks_of(m).requires_grad_(False) and None,
        start=lambda m, k: blocks_of(m).requires_grad_(True) and None if k == 100 else None,
        steps=300,
    ),
}
ONLY = {name: list(row[3]) for name, row in MISTAKES.items() if row[3] is not None}


def _twin(plan: Plan) -> Plan:
    return replace(Plan(), steps=plan.steps)


def _case(name: str) -> Callable[[str, bool], dict[str, Any]]:
    make, cause, symptom, _ = MISTAKES[name]

    def case(architecture: str, broken: bool) -> dict[str, Any]:
        plan = make()
        run = training(architecture, plan if broken else _twin(plan))
        return run | {"truth": {"cause": cause, "symptom": symptom}}

    return case


for _name in MISTAKES:
    globals()[f"case_{_name}"] = _case(_name)
for _name, _make in CONTROLS.items():
    globals()[f"control_{_name}"] = lambda architecture, make=_make: training(architecture, make())

__all__ = ["ARCHITECTURES", "CONTROLS", "MISTAKES", "ONLY"]
