"""Unusual but healthy trainings: nothing but notes may be said of them."""

# ruff: noqa: ARG001  a step has one signature

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.preflight.networks import NETWORKS, TOKENS, VOCABULARY, WIDTH, Language, Vision, data, setup

GPT, ENCODER, VISION = NETWORKS[0], NETWORKS[4], NETWORKS[7]


def trained(made: dict[str, Any], steps: int = 60) -> dict[str, Any]:
    """Train for some steps; the optimizer is then a new one."""
    optimizer = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    for k in range(steps):
        optimizer.zero_grad()
        made["loss"](made["model"], made["batches"][k % len(made["batches"])]).backward()
        optimizer.step()
    optimizer.zero_grad()
    made["optimizer"] = torch.optim.AdamW([p for p in made["model"].parameters() if p.requires_grad], lr=1e-3)
    return made


def control_zero_projections() -> dict[str, Any]:
    made = setup(GPT)
    for block in made["model"].blocks:
        nn.init.zeros_(block.attn.out.weight)
        nn.init.zeros_(block.down.weight)
    nn.init.zeros_(made["model"].head.weight)
    return made


def control_layer_scale() -> dict[str, Any]:
    made = setup(GPT)
    for block in made["model"].blocks:
        block.scale = nn.Parameter(torch.full((WIDTH,), 1e-6))
        block.attn.register_forward_hook(lambda m, a, out, s=block.scale: s * out)
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    return made


def control_rezero() -> dict[str, Any]:
    made = setup(GPT)
    for block in made["model"].blocks:
        block.alpha = nn.Parameter(torch.zeros(1))
        block.attn.register_forward_hook(lambda m, a, out, s=block.alpha: s * out)
        block.down.register_forward_hook(lambda m, a, out, s=block.alpha: s * out)
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    return made


class LowRank(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base, self.lora_a = linear, nn.Linear(linear.in_features, 4, bias=False)
        self.lora_b = nn.Linear(4, linear.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


def control_adapters_on_trained_weights() -> dict[str, Any]:
    made = trained(setup(GPT))
    made["model"].requires_grad_(False)
    for block in made["model"].blocks:
        block.up = LowRank(block.up)
    made["optimizer"] = torch.optim.AdamW([p for p in made["model"].parameters() if p.requires_grad], lr=1e-3)
    return made


def control_new_head_on_a_frozen_body() -> dict[str, Any]:
    made = trained(setup(GPT))
    made["model"].requires_grad_(False)
    made["model"].head = nn.Linear(WIDTH, VOCABULARY)
    made["optimizer"] = torch.optim.AdamW(made["model"].head.parameters(), lr=1e-3)
    return made


def control_prior_bias() -> dict[str, Any]:
    made = setup(GPT)
    head = made["model"].head = nn.Linear(WIDTH, VOCABULARY)
    counts = torch.stack(made["batches"]).flatten().bincount(minlength=VOCABULARY).float() + 1
    head.bias.data = (counts / counts.sum()).log()
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    return made


def control_label_smoothing() -> dict[str, Any]:
    made = setup(GPT)
    made["loss"] = lambda m, ids: F.cross_entropy(
        m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1
    )
    return made


def control_regression() -> dict[str, Any]:
    made = setup(VISION)
    made["loss"] = lambda m, b: F.mse_loss(m(b[0])[:, 0], b[1].float() / 5 - 1)
    return made


def control_many_labels() -> dict[str, Any]:
    made = setup(VISION)
    made["loss"] = lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), F.one_hot(b[1], 10).float())
    return made


def padded(ignored: bool) -> dict[str, Any]:
    made = setup(GPT)
    for batch in made["batches"]:
        for i, row in enumerate(batch):
            row[TOKENS - 3 - 2 * i :] = 0

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        labels = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100) if ignored else ids[:, 1:]
        return F.cross_entropy(model(ids[:, :-1], ids[:, :-1] == 0).flatten(0, 1), labels.flatten())

    made["loss"] = loss
    return made


def control_padding_ignored() -> dict[str, Any]:
    return padded(ignored=True)


def control_accumulation() -> dict[str, Any]:
    made = setup(GPT)
    loss = made["loss"]

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        for part in batch.chunk(3):
            value = loss(model, part) / 3
            value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    return made | {"step": step}


def control_warm_up_from_zero() -> dict[str, Any]:
    made = setup(GPT)
    scheduler = torch.optim.lr_scheduler.LambdaLR(made["optimizer"], lambda k: min(1.0, k / 100))
    loss = made["loss"]

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        scheduler.step()
        return value

    return made | {"step": step, "also": [scheduler]}


def control_order_does_not_matter() -> dict[str, Any]:
    torch.manual_seed(0)
    model = Language(positions=False, causal=False)
    model.head = nn.Linear(WIDTH, 2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).mean(1), (ids.sum(1) % 2))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "batches": data(GPT), "loss": loss, "optimizer": optimizer}


def control_batch_norm_images() -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    model = nn.Sequential(*layers, nn.Linear(16, 10))
    made = setup(VISION)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return made | {"model": model, "optimizer": optimizer}


def control_masked_words() -> dict[str, Any]:
    return setup(ENCODER)


def control_scaled_readout() -> dict[str, Any]:
    made = setup(GPT)
    made["model"].tok.weight.data.normal_(std=0.25)
    made["model"].head.weight = made["model"].tok.weight
    made["model"].head.register_forward_hook(lambda m, a, out: out / math.sqrt(WIDTH))
    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    return made


def control_small_vision() -> dict[str, Any]:
    torch.manual_seed(1)
    model = Vision()
    made = setup(VISION, 1)
    return made | {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-4)}


def control_two_heads_for_two_tokens() -> dict[str, Any]:
    """The last Linear layer is not the one of the first loss."""
    made = setup(GPT)
    made["model"].second = nn.Linear(WIDTH, VOCABULARY)
    body: dict[str, Tensor] = {}
    made["model"].head.register_forward_pre_hook(lambda m, a: body.update(x=a[0]))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        first = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        second = model.second(body["x"][:, :-1])
        return first + 0.3 * F.cross_entropy(second.flatten(0, 1), ids[:, 2:].flatten())

    made["optimizer"] = torch.optim.AdamW(made["model"].parameters(), lr=1e-3)
    return made | {"loss": loss}


def control_rotary_in_low_precision() -> dict[str, Any]:
    made = setup(NETWORKS[3])
    right = made["loss"]

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return right(model, ids)

    return made | {"loss": loss}


def control_linear_decay_over_100_steps() -> dict[str, Any]:
    made = setup(GPT)
    scheduler = torch.optim.lr_scheduler.LambdaLR(made["optimizer"], lambda k: max(0.0, 1 - k / 100))
    right = made["loss"]

    def step(model: nn.Module, optimizer: Any, batch: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        value = right(model, batch)
        value.backward()
        optimizer.step()
        scheduler.step()
        return value

    return made | {"step": step, "also": [scheduler]}


def more() -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Every network of the development list, fresh and after 60 steps, with several seeds."""
    for seed in range(4):
        for network in NETWORKS:
            yield f"{network.name}, fresh, seed {seed}", "control", lambda n=network, s=seed: setup(n, s)
            yield (
                f"{network.name}, trained, seed {seed}",
                "control",
                lambda n=network, s=seed: trained(setup(n, s)),
            )
