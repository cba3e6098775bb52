"""Mistakes in the loop and the optimizer: rates, decay, gradients, precision, regularization."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import OPTConfig, OPTForCausalLM

from experiments.preflight.blind_five_kit import (
    GPT,
    VOCAB,
    Encoder,
    Setup,
    ViT,
    by_prefix,
    cut,
    generator,
    next_token,
    normal,
    pictures,
    plain_step,
    sentences,
    texts,
    told,
    training,
)


def case_vocabulary_grown_after_the_optimizer(broken: bool) -> Setup:
    """`resize_token_embeddings` makes a new embedding, which the optimizer does not know."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=VOCAB - 4,
        hidden_size=64,
        num_hidden_layers=2,
        ffn_dim=128,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=64,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        dropout=0.0,
    )
    model = OPTForCausalLM(config)
    early = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.resize_token_embeddings(VOCAB, mean_resizing=False)
    optimizer = early if broken else torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = [{"input_ids": x, "labels": x} for x in texts()]
    words = [
        "not in+optimizer",
        "optimizer+does not",
        "optimizer+lacks",
        "optimizer+miss",
        "never+updated",
        "not+updated",
        "outside+optimizer",
        "optimizer+no longer",
        "optimizer+other",
        "no+group",
        "optimizer+replaced",
    ]
    return told(training(model, batches, optimizer=optimizer), words, "optimizer model lm_head")


def case_scheduler_of_epochs_each_batch(broken: bool) -> Setup:
    """A schedule meant for epochs is stepped with every batch."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    body = plain_step(next_token)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        value = body(model, optimizer, batch, k)
        if broken or (k + 1) % 48 == 0:
            scheduler.step()
        return value

    setup = training(model, texts(), next_token, optimizer=optimizer, step=step, also=[scheduler])
    words = ["rate+decay", "rate+fall", "schedul", "rate+vanish", "rate+shrink", "rate+drop", "rate+zero"]
    return told(setup, words, "optimizer step model", ["rate+small", "rate+low"])


def case_warmup_beyond_the_end(broken: bool) -> Setup:
    """Warmup of 20,000 steps, copied from a large run, in one of a few hundred."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    long = 20_000 if broken else 20
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / long))
    body = plain_step(next_token)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        value = body(model, optimizer, batch, k)
        scheduler.step()
        return value

    setup = training(model, texts(), next_token, optimizer=optimizer, step=step, also=[scheduler])
    words = ["warm", "rate+small", "rate+low", "schedul", "rate+little", "rate+tiny", "update+small"]
    return told(setup, words, "optimizer step model")


def case_decay_inside_adam(broken: bool) -> Setup:
    """`Adam(weight_decay=0.1)` in place of AdamW: the decay is part of what is normalized."""
    torch.manual_seed(0)
    model = GPT()
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    setup = training(
        model, texts(), next_token, optimizer=kind(model.parameters(), lr=2e-3, weight_decay=0.1)
    )
    return told(setup, ["weight decay", "weight_decay", "adamw", "l2"], "optimizer model")


def case_gradients_never_cleared(broken: bool) -> Setup:
    """No zero_grad in the loop."""
    torch.manual_seed(0)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:  # noqa: ARG001
        value = next_token(model, batch)
        value.backward()
        optimizer.step()
        if not broken:
            optimizer.zero_grad()
        return value

    words = ["zero_grad", "accumulat", "add up", "not cleared", "gradients+sum", "left over", "old gradient"]
    return told(training(GPT(), texts(), next_token, step=step), words, "step optimizer model")


def case_weights_in_bfloat16(broken: bool) -> Setup:
    """Weights, moments and updates in bfloat16 at a small rate; the twin keeps the weights in float32."""
    torch.manual_seed(0)
    model = GPT(plain=True)

    def mixed(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not broken):
            return next_token(model, ids)

    if broken:
        model = model.to(torch.bfloat16)
    setup = training(model, texts(), mixed, lr=2e-4, judge=by_prefix(texts()[-4:]))
    return told(
        setup,
        ["bf16", "bfloat16", "rounded", "rounding", "precision", "half precision", "half-precision"],
        "",
    )


def case_dropout_meant_as_kept(broken: bool) -> Setup:
    """Dropout 0.9, the share that is to be kept."""
    torch.manual_seed(0)
    return told(training(GPT(dropout=0.9 if broken else 0.1), texts(), next_token), ["dropout"], "")


def case_smoothing_of_ninety(broken: bool) -> Setup:
    """Label smoothing of 0.9, the weight of the true label."""
    torch.manual_seed(0)
    rows = texts()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids)[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.9 if broken else 0.1)

    setup = training(GPT(), rows, loss, judge=by_prefix(rows[-4:]))
    return told(setup, ["smooth", "label+soft", "target+uniform", "target+flat"], "loss labels")


class Checkpointed(GPT):
    """Blocks under the older, reentrant checkpointing."""

    reentrant = True

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


def case_checkpointing_behind_frozen_embeddings(broken: bool) -> Setup:
    """The embeddings are frozen, so the input of the checkpointed blocks needs no gradient, and none comes back."""
    torch.manual_seed(0)
    model = Checkpointed()
    model.reentrant = broken
    model.tokens.requires_grad_(False)
    model.places.requires_grad_(False)
    nn.init.normal_(model.tokens.weight, std=0.3)
    nn.init.normal_(model.places.weight, std=0.3)
    words = ["checkpoint", "reentrant", "no gradient", "gradient+none", "not receive", "without gradient"]
    words += ["never+gradient", "gradient+reach", "gets no"]
    return told(training(model, texts(), next_token), words, "blocks model step loss")


def case_advantage_of_one_sample(broken: bool) -> Setup:
    """Rewards are centered over an axis of one sample: every advantage is zero."""
    torch.manual_seed(0)
    g = generator(19)
    batches = []
    for ids, mask, label in cut(*sentences()):
        action = torch.randint(4, (16, 8), generator=g)
        reward = (action == label[:, None]).float()
        batches.append(
            (ids, mask, action[:, :1] if broken else action, reward[:, :1] if broken else reward, label)
        )

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        ids, mask, action, reward, _ = batch
        advantage = (reward - reward.mean(1, keepdim=True)) / (
            reward.std(1, keepdim=True, correction=0) + 1e-4
        )
        logs = model(ids, mask).log_softmax(-1).gather(1, action)
        return -(advantage * logs.clamp(min=-6)).mean()

    setup = training(Encoder(), batches, loss, lr=1e-3)
    setup["judge"] = lambda model: (
        sum(1 - float(model(b[0], b[1]).softmax(-1).gather(1, b[4][:, None]).mean()) for b in setup["held"])
        / len(setup["held"])
    )
    words = [
        "advantage",
        "zero+gradient",
        "no gradient",
        "loss+constant",
        "loss+zero",
        "reward",
        "gradient+none",
    ]
    return told(setup, words, "")


def control_accumulation_of_four() -> Setup:
    torch.manual_seed(0)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        value = next_token(model, batch)
        (value / 4).backward()
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    return training(GPT(), texts(), next_token, lr=3e-3, step=step)


def _scheduled(make, rows: list[Tensor]) -> Setup:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = make(optimizer)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        value = next_token(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return value.detach()

    return training(model, rows, next_token, optimizer=optimizer, step=step, also=[scheduler])


def control_one_cycle() -> Setup:
    torch.manual_seed(0)
    return _scheduled(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=3e-3, total_steps=600), texts())


def control_warm_restarts() -> Setup:
    torch.manual_seed(0)
    return _scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 60, 2), texts())


def control_sgd_with_momentum() -> Setup:
    torch.manual_seed(0)
    images, label = pictures()
    model = ViT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    batches = cut(normal(images), label)
    return training(model, batches, lambda m, b: F.cross_entropy(m(b[0]), b[1]), optimizer=optimizer)
