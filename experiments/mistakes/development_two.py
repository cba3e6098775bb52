"""The second development list: mistakes in the wiring, the start, the optimizer and the data; see `development`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.mistakes.development import Plan, Words, adamw, sgd, training
from experiments.mistakes.networks import ARCHITECTURES, VOCABULARY, blocks_of, rotated, text

OWN = ("gpt", "llama")  # whose attention is written out in networks.py


def attention(scores: Callable[[Tensor], Tensor], *, mixed: bool = False) -> Callable[[nn.Module], None]:
    """Replace the attention of every block: scores (B, H, T, T) to weights."""

    def prepare(model: nn.Module) -> None:
        for block in blocks_of(model):
            own: Any = block.attention

            def forward(x: Tensor, own: Any = own) -> Tensor:
                parts = own.qkv(x).chunk(3, -1)
                if mixed:
                    q, k, v = (p.reshape(len(x), 4, x.shape[1], -1) for p in parts)
                else:
                    q, k, v = (p.unflatten(-1, (4, -1)).transpose(1, 2) for p in parts)
                q, k = (rotated(q), rotated(k)) if own.rotary else (q, k)
                y = scores(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])) @ v
                return own.out(y.transpose(1, 2).flatten(2))

            own.forward = forward

    return prepare


def causal(scores: Tensor, keep: Callable[[Tensor], Tensor] = torch.tril) -> Tensor:
    allowed = keep(torch.ones(scores.shape[-2:], dtype=torch.bool))
    return scores.masked_fill(~allowed, -1e9)


def each(change: Callable[[Any], object]) -> Callable[[nn.Module], object]:
    """Change every block."""
    return lambda model: [change(block) for block in blocks_of(model)]


def weights(change: Callable[[str, Tensor], object]) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    change(name, parameter)

    return prepare


def tables(model: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.mul_(factor)


def readout(model: nn.Module) -> nn.Linear:
    return [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == VOCABULARY][-1]


def frozen(pick: Callable[[str], bool]) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if pick(name):
                parameter.requires_grad_(False)

    return prepare


def every(period: int, change: Callable[[nn.Module], None]) -> Callable[[nn.Module, int], None]:
    return lambda model, k: change(model) if k and k % period == 0 else None


def once(step: int, change: Callable[[nn.Module], None]) -> Callable[[nn.Module, int], None]:
    return lambda model, k: change(model) if k == step else None


def reset(model: nn.Module) -> None:
    torch.manual_seed(3)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def zero_block(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in blocks_of(model)[1].parameters():
            parameter.zero_()


def gradients(change: Callable[[str, nn.Parameter], object]) -> Callable[[nn.Module, int], None]:
    def between(model: nn.Module, _: int) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                change(name, parameter)

    return between


def noisy(_: str, parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.add_(torch.randn_like(parameter.grad) * 30 * parameter.grad.std())


class Fresh(torch.optim.AdamW):
    """An optimizer that is made again at every step."""

    def step(self, closure: Any = None) -> Any:
        self.state.clear()
        return super().step(closure)


class Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


def few(count: int) -> Callable[[Tensor, int], Tensor]:
    """The first batches again and again; inputs and labels alike."""
    kept: dict[int, Tensor] = {}
    return lambda x, k: kept.setdefault(k % count, x)


def half_wrong(y: Tensor, k: int) -> Tensor:
    generator = torch.Generator().manual_seed(k)
    drawn = torch.randint(0, VOCABULARY, y.shape, generator=generator)
    return torch.where(torch.rand(y.shape, generator=generator) < 0.6, drawn, y)


def permuted(x: Tensor, k: int) -> Tensor:
    return x[:, torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(k))]


def padded(x: Tensor, _: int) -> Tensor:
    x = x.clone()
    x[:, 8:] = 0
    return x


def linear(block: Any) -> None:
    block.forward = lambda x: (lambda y: y + block.down(block.up(block.norm2(y))))(
        x + block.attention(block.norm1(x))
    )


def no_norms(block: Any) -> None:
    block.norm1 = block.norm2 = nn.Identity()


def wrong_axis(block: Any) -> None:
    width = 32
    for name in ("norm1", "norm2"):
        norm = nn.LayerNorm(width)
        block.add_module(f"{name}_tokens", norm)
        setattr(block, name, nn.Identity())
    inner = block.attention.forward
    block.attention.forward = lambda x: inner(block.norm1_tokens(x.transpose(1, 2)).transpose(1, 2))


NOT = [["not learning"], ["rank"], ["loss"], ["update"], ["logit"], ["one hot"]]
MISTAKES: dict[str, tuple[Callable[[], Plan], Words, Words, tuple[str, ...] | None]] = {
    "softmax_over_queries": (
        lambda: Plan(prepare=attention(lambda s: causal(s).softmax(-2))),
        [["softmax", "axis"], ["softmax", "quer"], ["sum"]],
        [*NOT, ["leak"], ["sees"]],
        OWN,
    ),
    "heads_mixed": (
        lambda: Plan(prepare=attention(lambda s: causal(s).softmax(-1), mixed=True)),
        [["mask"], ["sees"], ["head"], ["axes"], ["token"]],
        NOT,
        OWN,
    ),
    "mask_reversed": (
        lambda: Plan(prepare=attention(lambda s: causal(s, torch.triu).softmax(-1))),
        [["mask"], ["sees"], ["future"]],
        [["impossible"]],
        OWN,
    ),
    "no_softmax": (
        lambda: Plan(prepare=attention(lambda s: causal(s).clamp_min(0.0))),
        [["softmax"], ["attention", "sum"]],
        NOT,
        OWN,
    ),
    "norms_missing": (
        lambda: Plan(prepare=each(no_norms), optimizer=adamw(1e-2)),
        [["norm"]],
        [*NOT, ["explod"]],
        OWN,
    ),
    "norm_over_tokens": (
        lambda: Plan(prepare=each(wrong_axis)),
        [["norm", "axis"], ["norm", "token"], ["sees"]],
        [*NOT, ["leak"]],
        OWN,
    ),
    "mlp_linear": (lambda: Plan(prepare=each(linear)), [["activation"], ["linear"]], NOT, OWN),
    "all_weights_zero": (
        lambda: Plan(prepare=weights(lambda n, p: p.zero_())),
        [["zero"], ["constant"], ["symmetr"], ["same"]],
        [*NOT, ["gradient"], ["still"]],
        None,
    ),
    "all_weights_equal": (
        lambda: Plan(prepare=weights(lambda n, p: p.fill_(0.02))),
        [["equal"], ["constant"], ["symmetr"], ["same"], ["alike"], ["identical"]],
        [*NOT, ["gradient"], ["still"]],
        None,
    ),
    "weights_of_size_one": (
        lambda: Plan(prepare=weights(lambda n, p: p.normal_())),
        [["init"], ["weights", "large"], ["scale"], ["logit"], ["spread"]],
        [*NOT, ["spike"]],
        None,
    ),
    "weights_tiny": (
        lambda: Plan(prepare=weights(lambda n, p: p.mul_(1e-4))),
        [["init"], ["small"], ["scale"], ["tiny"]],
        [*NOT, ["vanish"], ["gradient"]],
        None,
    ),
    "readout_huge": (
        lambda: Plan(prepare=lambda m: readout(m).weight.data.mul_(200.0)),
        [["readout"], ["first loss"], ["output", "large"], ["scale"], ["chance"]],
        NOT,
        OWN,
    ),
    "embeddings_huge": (
        lambda: Plan(prepare=lambda m: tables(m, 100.0)),
        [["embedding"], ["scale"], ["branch"]],
        NOT,
        OWN,
    ),
    "blocks_frozen": (
        lambda: Plan(prepare=frozen(lambda n: "blocks" in n or ".layers." in n or ".h." in n)),
        [["frozen"], ["requires_grad"], ["not train"]],
        [["still"], *NOT],
        None,
    ),
    "readout_not_trained": (
        lambda: Plan(
            optimizer=lambda m: torch.optim.AdamW([p for p in m.parameters() if p.dim() == 1], 3e-3),
            steps=200,
        ),
        [["not in", "optimizer"]],
        [["still"], *NOT],
        None,
    ),
    "optimizer_made_again": (
        lambda: Plan(optimizer=lambda m: Fresh(m.parameters(), 3e-3)),
        [["optimizer", "again"], ["state"], ["optimizer", "every step"]],
        NOT,
        None,
    ),
    "steps_twice": (
        lambda: Plan(optimizer=lambda m: Twice(m.parameters(), 0.1)),
        [["twice"], ["step"]],
        NOT,
        None,
    ),
    "momentum_too_high": (
        lambda: Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.999), steps=250),
        [["momentum"]],
        [*NOT, ["rate"]],
        None,
    ),
    "betas_swapped": (
        lambda: Plan(optimizer=adamw(3e-3, betas=(0.999, 0.9)), steps=250),
        [["beta"], ["momentum"]],
        [*NOT, ["rate"]],
        None,
    ),
    "rate_decays_at_once": (
        lambda: Plan(rate=lambda k: 3e-3 * 0.8**k, steps=250),
        [["rate", "low"], ["schedul"], ["rate", "0"], ["rate", "decay"]],
        [*NOT, ["round"], ["still"]],
        None,
    ),
    "warm_up_endless": (
        lambda: Plan(rate=lambda k: 1e-9 * (k + 1), steps=250),
        [["rate", "low"], ["warm"]],
        [*NOT, ["round"], ["still"]],
        None,
    ),
    "rate_jumps": (
        lambda: Plan(rate=lambda k: 3e-3 if k < 100 else 0.3, steps=200),
        [["rate"]],
        NOT,
        None,
    ),
    "loss_times_1000": (
        lambda: Plan(optimizer=sgd(0.1), loss=lambda loss, _: loss * 1000.0),
        [["loss", "multiplied"], ["gradient", "times"], ["rate", "high"], ["scale"]],
        [*NOT, ["finite"], ["not a"]],
        None,
    ),
    "gradient_noise": (
        lambda: Plan(optimizer=sgd(0.1), between=gradients(noisy)),
        [["gradient", "changed"], ["noise"], ["gradient", "not", "loss"]],
        NOT,
        None,
    ),
    "weights_reset": (
        lambda: Plan(start=every(60, reset), steps=200),
        [["weights", "changed"], ["reset"], ["outside"], ["overwritten"], ["loaded"]],
        NOT,
        None,
    ),
    "block_zeroed": (
        lambda: Plan(start=once(100, zero_block), steps=200),
        [["weights", "changed"], ["zero"], ["outside"], ["overwritten"]],
        NOT,
        None,
    ),
    "few_batches": (
        lambda: Plan(inputs=few(2), labels=few(2), steps=250),
        [["same batch"], ["repeat"], ["few"]],
        [["same"], ["impossible"]],
        None,
    ),
    "labels_half_wrong": (
        lambda: Plan(labels=half_wrong, steps=250),
        [["labels"]],
        NOT,
        None,
    ),
    "inputs_permuted": (
        lambda: Plan(inputs=permuted, steps=250),
        [["labels", "inputs"], ["shuffled"], ["order"]],
        NOT,
        None,
    ),
    "mostly_padding": (
        lambda: Plan(inputs=padded, labels=padded, steps=200),
        [["padding"], ["constant"], ["one token"], ["most"]],
        [["same"], *NOT],
        None,
    ),
    "logits_divided": (
        lambda: Plan(output=lambda z, _: z / 100.0, optimizer=sgd(0.1)),
        [["scaled"], ["temperature"], ["logits"]],
        NOT,
        None,
    ),
    "logits_multiplied": (
        lambda: Plan(output=lambda z, _: z * 100.0),
        [["scaled"], ["temperature"], ["logits"], ["first loss"], ["chance"]],
        NOT,
        None,
    ),
    "smoothed_away": (
        lambda: Plan(smoothing=0.95),
        [["smoothing"]],
        NOT,
        None,
    ),
    "half_precision_overflow": (
        lambda: Plan(
            output=lambda z, k: (z.half() * 3000.0).float() if k >= 40 else z,
        ),
        [["output"], ["half"], ["overflow"], ["loss is computed"]],
        [*NOT, ["finite"], ["not a"]],
        None,
    ),
    "attention_detached": (
        lambda: Plan(
            prepare=each(
                lambda b: setattr(
                    b.attention, "forward", (lambda f: lambda x: f(x).detach())(b.attention.forward)
                )
            )
        ),
        [["detach"], ["does not depend"], ["no gradient"]],
        [["still"], ["reach"]],
        OWN,
    ),
    "gradient_zeroed_in_block": (
        lambda: Plan(
            between=gradients(lambda n, p: p.grad.zero_() if ".1." in n else None)  # type: ignore[union-attr]
        ),
        [["cleared"], ["zero"], ["does not depend"]],
        [["still"], ["gradient"]],
        None,
    ),
    "tokens_replaced": (
        lambda: Plan(
            inputs=lambda x, k: torch.where(
                torch.rand(x.shape) < 0.5, torch.randint(0, VOCABULARY, x.shape), x
            ),
            steps=250,
        ),
        [["input"]],
        NOT,
        None,
    ),
    "same_position_everywhere": (
        lambda: Plan(prepare=lambda m: m.places.weight.data.copy_(m.places.weight.data[:1].clone())),
        [["position"], ["rows"], ["same"], ["equal"]],
        NOT,
        ("gpt", "encoder"),
    ),
}


def functional(architecture: str, broken: bool) -> dict[str, Any]:
    """A loop without a criterion: F.cross_entropy, with probabilities instead of logits."""
    run = training(architecture, Plan())
    model, batches = run["model"], text(1)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def step(_: int) -> float:
        x = next(batches)
        output = model(x[:, :-1])
        output = getattr(output, "logits", output)
        output = output.softmax(-1) if broken else output
        loss = F.cross_entropy(output.flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss)

    truth = {"cause": [["softmax"]], "symptom": [["not learning"]]}
    return {"model": model, "step": step, "steps": 150, "truth": truth}


CONTROLS: dict[str, Callable[[], Plan]] = {
    "cosine": lambda: Plan(rate=lambda k: 3e-3 * 0.5 * (1 + math.cos(math.pi * k / 300)), steps=300),
    "rate_ten_times_lower": lambda: Plan(optimizer=adamw(3e-4), steps=300),
    "large_decay": lambda: Plan(optimizer=adamw(3e-3, weight_decay=0.3), steps=300),
    "beta_of_large_models": lambda: Plan(optimizer=adamw(3e-3, betas=(0.9, 0.95)), steps=300),
    "momentum": lambda: Plan(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.95, nesterov=True), steps=300
    ),
    "readout_frozen_at_zero_rate": lambda: Plan(
        optimizer=lambda m: torch.optim.AdamW(
            [
                {"params": [p for p in m.parameters() if p.dim() > 1]},
                {"params": [p for p in m.parameters() if p.dim() < 2], "weight_decay": 0.0},
            ],
            3e-3,
        ),
        steps=300,
    ),
    "smoothing_and_dropout": lambda: Plan(options={"dropout": 0.2}, smoothing=0.2, steps=300),
    "noisy_labels": lambda: Plan(
        labels=lambda y, k: torch.where(torch.rand(y.shape) < 0.1, torch.randint_like(y, VOCABULARY), y),
        steps=300,
    ),
}
ONLY = {name: list(row[3]) for name, row in MISTAKES.items() if row[3] is not None}


def _case(name: str) -> Callable[[str, bool], dict[str, Any]]:
    make, cause, symptom, _ = MISTAKES[name]

    def case(architecture: str, broken: bool) -> dict[str, Any]:
        plan = make()
        run = training(architecture, plan if broken else Plan(steps=plan.steps))
        return run | {"truth": {"cause": cause, "symptom": symptom}}

    return case


for _name in MISTAKES:
    globals()[f"case_{_name}"] = _case(_name)
for _name, _make in CONTROLS.items():
    globals()[f"control_{_name}"] = lambda architecture, make=_make: training(architecture, make())
case_functional_softmax = functional

__all__ = ["ARCHITECTURES", "CONTROLS", "MISTAKES", "ONLY"]
