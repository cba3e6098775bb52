"""A blind list of mistakes in running trainings for `edgewise watch`, with healthy twins and controls.

The author has not read the monitor. The networks and languages are those of the blind list for `edgewise check`,
here trained for 250 steps on fresh data. `COST` is the loss of the broken training minus that of its twin, in nats,
on batches that were held out: the weights of the broken training are put into the healthy model and scored by the
healthy loss if the shapes allow it, averaged over the architectures. 10.0 stands for NaN; that of a softmax before the
cross entropy is the floor of the reported loss. "Midway" is step 120 or so.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.preflight.blind_two import (
    GPT,
    PAD,
    VOCAB,
    Attention,
    Block,
    Encoder,
    Experts,
    Lora,
    Translator,
    ViT,
    _alternatives,
    _checkpoint,
    _classify,
    _full,
    _gpt,
    _images,
    _mlp,
    _modern,
    _next,
    _padded,
    _pairs,
    _pretrained,
    _text,
    _topics,
    _translate,
    _wrapped,
)

ARCHITECTURES = ["gpt", "modern", "encoder", "vit", "translator"]
MIDWAY = 120
POOL = 130
Case = dict[str, Any]
Loss = Callable[[nn.Module, Any], Tensor]

COST: dict[str, float] = {
    "future_leaks": 2.21,
    "labels_unshifted": 8.46,
    "padding_only": 0.23,
    "no_zero_grad": 10.0,
    "zeroed_before_step": 0.5,
    "rate_too_high": 1.81,
    "rate_too_low": 1.43,
    "warmup_without_end": 0.38,
    "body_frozen": 0.33,
    "optimizer_of_the_head": 1.13,
    "dropout_of_keeping": 2.07,
    "labels_of_others": 0.15,
    "softmax_twice": 0.74,
    "tied_unit_init": 1.1,
    "no_residual": 3.34,
    "scores_multiplied": 0.9,
    "adam_with_l2": 2.79,
    "betas_swapped": 0.56,
    "epsilon_too_large": 2.93,
    "clipped_to_nothing": 3.24,
    "one_batch_forever": 2.53,
    "sorted_by_class": 3.12,
    "positions_forgotten": 1.34,
    "decoder_ignores_encoder": 0.13,
    "decoder_unmasked": 2.22,
    "lora_both_zero": 3.15,
    "detached_blocks": 1.31,
    "pure_bf16": 1.07,
    "half_precision": 10.0,
    "images_in_bytes": 2.14,
    "router_without_gradient": 0.7,
    "summed_loss": 10.0,
    "accumulated_sum": 10.0,
    "weights_start_at_zero": 0.21,
    "sign_flipped": 36.66,
    "padding_scored": 0.39,
    "rate_jumps": 1.92,
    "rate_ends_early": 1.2,
    "data_turns_to_noise": 3.91,
    "labels_turn_to_noise": 0.19,
    "nan_batch": 10.0,
    "thawed_outside_optimizer": 0.19,
    "eval_mode_stays": 0.21,
    "loader_stuck": 2.19,
    "second_moment_lost": 0.28,
    "batch_of_one": 0.98,
    "average_swapped_in": 1.68,
    "decay_times_thousand": 3.51,
}

ONLY = {
    "future_leaks": ["gpt"],
    "labels_unshifted": ["modern"],
    "padding_only": ["encoder"],
    "no_zero_grad": ["vit"],
    "zeroed_before_step": ["encoder"],
    "rate_too_high": ["gpt", "translator"],
    "rate_too_low": ["vit"],
    "warmup_without_end": ["encoder"],
    "body_frozen": ["encoder"],
    "optimizer_of_the_head": ["modern"],
    "dropout_of_keeping": ["gpt"],
    "labels_of_others": ["encoder"],
    "softmax_twice": ["vit"],
    "tied_unit_init": ["gpt"],
    "no_residual": ["modern"],
    "scores_multiplied": ["gpt"],
    "adam_with_l2": ["modern"],
    "betas_swapped": ["translator"],
    "epsilon_too_large": ["gpt"],
    "clipped_to_nothing": ["modern"],
    "one_batch_forever": ["translator"],
    "sorted_by_class": ["vit"],
    "positions_forgotten": ["vit"],
    "decoder_ignores_encoder": ["translator"],
    "decoder_unmasked": ["translator"],
    "lora_both_zero": ["gpt"],
    "detached_blocks": ["modern"],
    "pure_bf16": ["gpt"],
    "half_precision": ["gpt"],
    "images_in_bytes": ["vit"],
    "router_without_gradient": ["gpt"],
    "summed_loss": ["gpt"],
    "accumulated_sum": ["modern"],
    "weights_start_at_zero": ["vit"],
    "sign_flipped": ["vit"],
    "padding_scored": ["translator"],
    "rate_jumps": ["gpt", "translator"],
    "rate_ends_early": ["modern", "encoder"],
    "data_turns_to_noise": ["gpt", "translator"],
    "labels_turn_to_noise": ["vit", "encoder"],
    "nan_batch": ["vit"],
    "inf_gradients_applied": ["gpt"],
    "thawed_outside_optimizer": ["modern", "encoder"],
    "thawed_at_high_rate": ["gpt"],
    "frozen_by_validation": ["vit"],
    "eval_mode_stays": ["encoder"],
    "loader_stuck": ["translator"],
    "old_weights_loaded": ["gpt"],
    "second_moment_lost": ["modern"],
    "tokens_renumbered": ["gpt"],
    "causal_flag_lost": ["modern"],
    "batch_of_one": ["modern"],
    "step_never_due": ["encoder"],
    "average_swapped_in": ["gpt"],
    "decay_times_thousand": ["modern"],
    "optimizer_rebuilt": ["translator"],
    "curriculum_jump": ["gpt"],
    "warm_restarts": ["modern", "vit"],
    "gradual_unfreezing": ["encoder"],
    "accumulation_tying_smoothing": ["gpt"],
    "bf16_autocast": ["modern"],
    "fine_tuning": ["gpt"],
    "lora": ["gpt"],
    "large_batch": ["vit"],
    "dropout_and_clipping": ["vit", "translator"],
    "cyclic_rate": ["encoder", "gpt"],
    "momentum_sgd": ["gpt"],
    "growing_batch": ["modern"],
    "longer_sequences": ["modern"],
    "validation_between": ["encoder"],
    "long_warmup": ["translator"],
    "rate_dropped_tenfold": ["vit"],
    "experts_balanced": ["gpt"],
}


@dataclass
class Setup:
    """A model, its loss, and its batches."""

    model: nn.Module
    loss: Loss
    batches: list[Any]


def _start(architecture: str, seed: int, model: nn.Module | None = None, drop: float = 0.0) -> Setup:
    torch.manual_seed(seed)
    if architecture == "gpt":
        return Setup(model or _gpt(drop=drop), _next, _text(POOL, seed=seed))
    if architecture == "modern":
        return Setup(model or _modern(), _next, _text(POOL, seed=seed))
    if architecture == "encoder":
        return Setup(model or Encoder(4, drop=drop), _classify, _hard_topics(seed))
    if architecture == "vit":
        return Setup(model or ViT(), _classify, _images(POOL, seed=seed))
    return Setup(model or Translator(), _translate, _pairs(POOL, seed=seed))


def _hard_topics(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Topics of short texts in which a third of the letters is replaced."""
    generator, batches = torch.Generator().manual_seed(seed), []
    for x, y in _topics(POOL, seed=seed):
        noise = torch.randint(6, VOCAB, x.shape, generator=generator)
        swapped = (torch.rand(x.shape, generator=generator) < 0.35) & (x != PAD)
        batches.append((torch.where(swapped, noise, x), y))
    return batches


RATES = {"gpt": 2e-3, "modern": 2e-3, "encoder": 5e-4, "vit": 1e-3, "translator": 1e-3}


def _adamw(architecture: str, model: nn.Module, factor: float = 1.0, **kwargs: Any) -> torch.optim.Optimizer:
    chosen = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(chosen, lr=RATES[architecture] * factor, **kwargs)


def _loop(
    setup: Setup,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None = None,
    before: Callable[[int], None] | None = None,
    after: Callable[[int], None] | None = None,
    clip: float | None = None,
) -> Callable[[int], Tensor]:
    """A usual loop body; `before` and `after` run around it, and `setup.batches` is read anew at each step."""
    score = loss or setup.loss

    def step(k: int) -> Tensor:
        if before is not None:
            before(k)
        value = score(setup.model, setup.batches[k % len(setup.batches)])
        optimizer.zero_grad()
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(setup.model.parameters(), clip)
        optimizer.step()
        if after is not None:
            after(k)
        return value.detach()

    return step


def _case(name: str, setup: Setup, step: Callable[[int], Tensor], cause: str, symptom: str = "") -> Case:
    """Alternatives are divided by `|`, the words of one by `+`."""
    truth = {
        "cause": _alternatives(cause),
        "symptom": _alternatives(symptom + " | " + SYMPTOMS),
        "cost": COST.get(name),
    }
    return {"model": setup.model, "step": step, "truth": truth}


SYMPTOMS = (
    "loss+rose | loss+jump | loss+stop | loss+not fall | plateau | stuck | diverg | spike | nan | not finite"
)
NO_UPDATE = "not change | no update | not updat | not move | never+change | constant"


# From the first step


def case_future_leaks(architecture: str, broken: bool) -> Case:
    """The causal mask leaves one token of the future open."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril(1 if broken else 0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    torch.manual_seed(1)
    rotary = architecture == "modern"
    model = _modern(make=lambda: Attention(64, 4, attend, rotary=True)) if rotary else _gpt(attend=attend)
    setup = _start(architecture, 1, model)
    step = _loop(setup, _adamw(architecture, model))
    return _case(
        "future_leaks",
        setup,
        step,
        "causal | future | leak | mask | ahead",
        "too low | suspicious | too good",
    )


def case_labels_unshifted(architecture: str, broken: bool) -> Case:
    """The labels are the tokens that were read (huggingface/transformers#35066)."""
    setup = _start(architecture, 2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), (ids[:, :-1] if broken else ids[:, 1:]).flatten())

    step = _loop(setup, _adamw(architecture, setup.model), loss)
    cause = "shift | label+input | copy | leak | same token | future"
    return _case("labels_unshifted", setup, step, cause, "too low | suspicious | too good")


def case_padding_only(architecture: str, broken: bool) -> Case:
    """The padding mask is inverted: only padding is attended (pytorch/pytorch#24816)."""

    class Inverted(Encoder):
        def states(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
            return self.norm(self.encoder(x, src_key_padding_mask=ids != PAD if broken else ids == PAD))

    torch.manual_seed(3)
    setup = _start(architecture, 3, Inverted(4))
    for x, _ in setup.batches:
        x[:, -1] = PAD
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case("padding_only", setup, step, "pad | mask+invert | mask+revers | attention+mask", "attention")


def case_no_zero_grad(architecture: str, broken: bool) -> Case:
    """The gradients are never cleared."""
    setup = _start(architecture, 4)
    optimizer = torch.optim.SGD(setup.model.parameters(), lr=0.2, momentum=0.9)

    def step(k: int) -> Tensor:
        value = setup.loss(setup.model, setup.batches[k % POOL])
        if not broken:
            optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return _case(
        "no_zero_grad", setup, step, "zero_grad | add up | accumul | clear | not reset", "gradient+grow"
    )


def case_zeroed_before_step(architecture: str, broken: bool) -> Case:
    """`zero_grad` stands after `backward`."""
    setup = _start(architecture, 5)
    optimizer = _adamw(architecture, setup.model)

    def step(k: int) -> Tensor:
        value = setup.loss(setup.model, setup.batches[k % POOL])
        optimizer.zero_grad()
        value.backward()
        if broken:
            optimizer.zero_grad()
        optimizer.step()
        return value.detach()

    return _case(
        "zeroed_before_step",
        setup,
        step,
        "zero_grad | clear+before | optimizer.step",
        "no gradient | gradient+zero | " + NO_UPDATE,
    )


def case_rate_too_high(architecture: str, broken: bool) -> Case:
    """The rate is forty times too high."""
    setup = _start(architecture, 6)
    step = _loop(setup, _adamw(architecture, setup.model, 40.0 if broken else 1.0))
    cause = "learning rate | lr | rate+high | step+large | update+large"
    return _case("rate_too_high", setup, step, cause, "gradient | saturat | activation")


def case_rate_too_low(architecture: str, broken: bool) -> Case:
    """The rate is ten thousand times too low."""
    setup = _start(architecture, 7)
    step = _loop(setup, _adamw(architecture, setup.model, 1e-4 if broken else 1.0))
    return _case(
        "rate_too_low", setup, step, "learning rate | lr | rate+low | step+small | update+small", NO_UPDATE
    )


def case_warmup_without_end(architecture: str, broken: bool) -> Case:
    """The warmup lasts 50,000 steps instead of 20."""
    setup = _start(architecture, 8)
    optimizer = _adamw(architecture, setup.model)
    last = 50_000 if broken else 20
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / last))
    step = _loop(setup, optimizer, after=lambda _: scheduler.step())
    cause = "learning rate | lr | warmup | warm-up | schedul | step+small | update+small"
    return _case("warmup_without_end", setup, step, cause, NO_UPDATE)


def case_body_frozen(architecture: str, broken: bool) -> Case:
    """A body without pretrained weights stays frozen from a script for fine-tuning."""
    setup = _start(architecture, 9)
    if broken:
        for name, p in setup.model.named_parameters():
            p.requires_grad_(name.startswith("head"))
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case("body_frozen", setup, step, "frozen | freez | requires_grad | no gradient", NO_UPDATE)


def case_optimizer_of_the_head(architecture: str, broken: bool) -> Case:
    """The optimizer is given `model.head.parameters()` and the norms only."""
    torch.manual_seed(10)
    setup = _start(architecture, 10, _modern(tied=False) if architecture == "modern" else None)
    chosen = [p for n, p in setup.model.named_parameters() if not broken or "head" in n or "norm" in n]
    step = _loop(setup, torch.optim.AdamW(chosen, lr=RATES[architecture]))
    return _case("optimizer_of_the_head", setup, step, "optimizer", NO_UPDATE)


def case_dropout_of_keeping(architecture: str, broken: bool) -> Case:
    """0.9 was the probability to keep."""
    torch.manual_seed(11)
    setup = _start(architecture, 11, drop=0.9 if broken else 0.1)
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case("dropout_of_keeping", setup, step, "dropout", "noise | noisy")


def case_labels_of_others(architecture: str, broken: bool) -> Case:
    """Inputs and labels are shuffled apart."""
    setup = _start(architecture, 12)
    if broken:
        labels = torch.cat([y for _, y in setup.batches])
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))]
        setup.batches = [(x, y) for (x, _), y in zip(setup.batches, labels.split(16), strict=True)]
    step = _loop(setup, _adamw(architecture, setup.model))
    cause = "label+random | label+noise | label+not depend | label+unrelated | shuffl | label+input | label+independent"
    return _case("labels_of_others", setup, step, cause, "chance | not learn | memori")


def case_softmax_twice(architecture: str, broken: bool) -> Case:
    """The cross entropy gets probabilities."""
    setup = _start(architecture, 13)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0])
        return F.cross_entropy(logits.softmax(-1) if broken else logits, batch[1])

    step = _loop(setup, _adamw(architecture, setup.model), loss)
    return _case("softmax_twice", setup, step, "softmax | probabilit | not logits", "gradient+small | logit")


def case_tied_unit_init(architecture: str, broken: bool) -> Case:
    """Tied embeddings of unit variance give logits of a deviation of eleven."""
    torch.manual_seed(14)
    setup = _start(architecture, 14, _gpt(2, width=128))
    if broken:
        nn.init.normal_(setup.model.tokens.weight)
    step = _loop(setup, _adamw(architecture, setup.model, 0.25))
    return _case("tied_unit_init", setup, step, "init | first loss | logit+large | start | chance | uniform")


def case_no_residual(architecture: str, broken: bool) -> Case:
    """The blocks lost their residual connections."""

    class Plain(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.feed(self.norm2(self.attention(self.norm1(x)))) if broken else super().forward(x)

    torch.manual_seed(15)
    blocks: list[nn.Module] = [Plain(64, Attention(64, 4, rotary=True), _mlp(64)) for _ in range(5)]
    setup = _start(architecture, 15, GPT(blocks, positions=False))
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "no_residual",
        setup,
        step,
        "residual | skip | vanish | depth | rank | signal",
        "gradient+small | chance",
    )


def case_scores_multiplied(architecture: str, broken: bool) -> Case:
    """The scores are multiplied by the root of the head's size, and a factor was added to the queries."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        root = q.shape[-1] ** 0.5
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=root if broken else 1 / root)

    torch.manual_seed(16)
    setup = _start(architecture, 16, _modern(make=lambda: Attention(64, 2, attend, qk_norm=True), length=64))
    step = _loop(setup, _adamw(architecture, setup.model))
    cause = "attention+saturat | attention+scale | scores | entropy | one token | sharp | peak | attention+collaps"
    return _case("scores_multiplied", setup, step, cause, "attention")


def case_adam_with_l2(architecture: str, broken: bool) -> Case:
    """`Adam(weight_decay=0.1)` where AdamW was meant."""
    setup = _start(architecture, 17)
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    step = _loop(setup, kind(setup.model.parameters(), lr=2e-3, weight_decay=0.1))
    return _case("adam_with_l2", setup, step, "decay | l2 | adamw", "shrink | weights+small")


def case_betas_swapped(architecture: str, broken: bool) -> Case:
    """`betas=(0.999, 0.9)`."""
    setup = _start(architecture, 18)
    step = _loop(setup, _adamw(architecture, setup.model, betas=(0.999, 0.9) if broken else (0.9, 0.999)))
    return _case("betas_swapped", setup, step, "beta | momentum", "learning rate | update | step")


def case_epsilon_too_large(architecture: str, broken: bool) -> Case:
    """Adam's epsilon is 1.0, which is above every gradient, so the steps are a thousandth."""
    setup = _start(architecture, 19)
    step = _loop(setup, _adamw(architecture, setup.model, eps=1.0 if broken else 1e-8))
    cause = "eps | learning rate | step+small | update+small | rate+low"
    return _case("epsilon_too_large", setup, step, cause, NO_UPDATE)


def case_clipped_to_nothing(architecture: str, broken: bool) -> Case:
    """The gradients are clipped to a norm of 1e-4 before SGD."""
    setup = _start(architecture, 20)
    optimizer = torch.optim.SGD(setup.model.parameters(), lr=0.3, momentum=0.9)
    step = _loop(setup, optimizer, clip=1e-4 if broken else 1.0)
    return _case(
        "clipped_to_nothing", setup, step, "clip | learning rate | update+small | step+small", NO_UPDATE
    )


def case_one_batch_forever(architecture: str, broken: bool) -> Case:
    """The loader is made again at every step with the same seed."""
    setup = _start(architecture, 21)
    if broken:
        setup.batches = setup.batches[:1]
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "one_batch_forever",
        setup,
        step,
        "same batch | repeat | identical | memori | overfit | same data | duplicat",
    )


def case_sorted_by_class(architecture: str, broken: bool) -> Case:
    """The images come sorted by class."""
    setup = _start(architecture, 22)
    if broken:
        x, y = torch.cat([x for x, _ in setup.batches]), torch.cat([y for _, y in setup.batches])
        order = y.argsort(stable=True)
        setup.batches = list(zip(x[order].split(16), y[order].split(16), strict=True))
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "sorted_by_class",
        setup,
        step,
        "shuffl | sort | one class | same class | same label | one label",
    )


def case_positions_forgotten(architecture: str, broken: bool) -> Case:
    """`pos_embed` is never added."""

    class Blind(ViT):
        def embed(self, images: Tensor) -> Tensor:
            if not broken:
                return super().embed(images)
            x = self.patches(images).flatten(2).transpose(1, 2)
            return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)

    torch.manual_seed(23)
    setup = _start(architecture, 23, Blind())
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case("positions_forgotten", setup, step, "pos_embed | position | unused | no gradient", NO_UPDATE)


def case_decoder_ignores_encoder(architecture: str, broken: bool) -> Case:
    """The decoder attends to zeros instead of the encoder's output."""

    class Deaf(Translator):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory = self.core.encoder(self.look(self.source, source), src_key_padding_mask=source == PAD)
            hidden = self.core.decoder(
                self.look(self.target, target),
                torch.zeros_like(memory) if broken else memory,
                tgt_mask=self.mask(target.shape[1]),
                memory_key_padding_mask=source == PAD,
            )
            return self.head(hidden)

    torch.manual_seed(24)
    setup = _start(architecture, 24, Deaf())
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case("decoder_ignores_encoder", setup, step, "encoder | source | no gradient | unused", NO_UPDATE)


def case_decoder_unmasked(architecture: str, broken: bool) -> Case:
    """`tgt_mask` is missing."""

    class Open(Translator):
        def mask(self, length: int) -> Tensor | None:
            return None if broken else super().mask(length)

    torch.manual_seed(25)
    setup = _start(architecture, 25, Open())
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "decoder_unmasked",
        setup,
        step,
        "causal | future | leak | mask | ahead",
        "too low | suspicious | too good",
    )


def case_lora_both_zero(architecture: str, broken: bool) -> Case:
    """Both factors of LoRA start at zero."""
    torch.manual_seed(26)
    setup = _start(architecture, 26, _wrapped(_pretrained(), zero=broken))
    setup.batches = _text(POOL, seed=26, topic=1)
    step = _loop(setup, _adamw(architecture, setup.model, 5.0))
    return _case(
        "lora_both_zero", setup, step, "lora | gradient+zero | no gradient | zero gradient", NO_UPDATE
    )


class Cut(Block):
    """A block whose output is detached."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


def case_detached_blocks(architecture: str, broken: bool) -> Case:
    """A `detach()` from a probe stays behind the last block, so that only the head is trained."""
    torch.manual_seed(27)
    kinds = [Block, Block, Cut if broken else Block]
    blocks: list[nn.Module] = [kind(64, Attention(64, 4, rotary=True), _mlp(64)) for kind in kinds]
    setup = _start(architecture, 27, GPT(blocks, positions=False, tied=False))
    step = _loop(setup, _adamw(architecture, setup.model, weight_decay=0.0))
    return _case("detached_blocks", setup, step, "detach | no gradient | gradient+zero | graph", NO_UPDATE)


def case_pure_bf16(architecture: str, broken: bool) -> Case:
    """Fine-tuning in pure bfloat16 at a rate that rounds away (meta-pytorch/torchtune#2254)."""
    torch.manual_seed(28)
    model = _pretrained()
    setup = _start(architecture, 28, model.to(torch.bfloat16) if broken else model)
    setup.batches = _text(POOL, seed=28, topic=1)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    setup.loss = loss
    step = _loop(setup, _adamw(architecture, setup.model, 0.02, weight_decay=0.0))
    return _case(
        "pure_bf16",
        setup,
        step,
        "bfloat16 | bf16 | precision | round",
        "update+small | learning rate | " + NO_UPDATE,
    )


def case_half_precision(architecture: str, broken: bool) -> Case:
    """`model.half()` with Adam: its epsilon is zero in float16."""
    setup = _start(architecture, 29)
    setup.batches = [x[:4] for x in setup.batches]
    if broken:
        setup.model.half()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    setup.loss = loss
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "half_precision", setup, step, "half | float16 | fp16 | precision | eps | underflow | overflow", "inf"
    )


def case_images_in_bytes(architecture: str, broken: bool) -> Case:
    """Pixels between 0 and 255 without normalization."""
    setup = _start(architecture, 30)
    setup.batches = [((x * 40 + 128).clamp(0, 255), y) for x, y in setup.batches]
    if not broken:
        setup.batches = [((x - 128) / 40, y) for x, y in setup.batches]
    step = _loop(setup, _adamw(architecture, setup.model))
    cause = "normali | input+scale | input+large | pixel | input+mean | standardi | input+range"
    return _case("images_in_bytes", setup, step, cause, "activation | saturat | gradient")


def case_router_without_gradient(architecture: str, broken: bool) -> Case:
    """The experts' outputs are not weighed by the router's probability."""
    torch.manual_seed(31)
    blocks: list[nn.Module] = [Block(64, Attention(64, 4), Experts(64, weigh=not broken)) for _ in range(2)]
    setup = _start(architecture, 31, GPT(blocks))
    step = _loop(setup, _adamw(architecture, setup.model, weight_decay=0.0))
    return _case("router_without_gradient", setup, step, "router | gate | no gradient | expert", NO_UPDATE)


def case_summed_loss(architecture: str, broken: bool) -> Case:
    """`reduction="sum"` at a rate for the mean."""
    setup = _start(architecture, 32)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits, labels = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        return F.cross_entropy(logits, labels, reduction="sum" if broken else "mean")

    step = _loop(setup, torch.optim.SGD(setup.model.parameters(), lr=0.3, momentum=0.9), loss)
    cause = "sum | reduc | learning rate | rate+high | step+large | update+large"
    return _case("summed_loss", setup, step, cause, "gradient")


def case_accumulated_sum(architecture: str, broken: bool) -> Case:
    """The losses of sixteen micro-batches are added without division (karpathy/nanoGPT#206)."""
    setup = _start(architecture, 33)
    optimizer = torch.optim.SGD(setup.model.parameters(), lr=0.3, momentum=0.9)

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in setup.batches[k % POOL].split(1):
            value = setup.loss(setup.model, part)
            (value if broken else value / 16).backward()
            total = total + value.detach() / 16
        optimizer.step()
        return total

    cause = "accumul | learning rate | divid | rate+high | step+large | update+large"
    return _case("accumulated_sum", setup, step, cause, "gradient")


def case_weights_start_at_zero(architecture: str, broken: bool) -> Case:
    """An init function sets all linear weights to zero."""
    setup = _start(architecture, 34)
    if broken:
        for module in setup.model.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "weights_start_at_zero", setup, step, "init | zero | symmetr", "no gradient | chance | " + NO_UPDATE
    )


def case_sign_flipped(architecture: str, broken: bool) -> Case:
    """The loss is a log-likelihood, and it is minimized."""
    setup = _start(architecture, 35)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = _classify(model, batch)
        return -value if broken else value

    step = _loop(setup, _adamw(architecture, setup.model), loss)
    return _case("sign_flipped", setup, step, "sign | negative | maximi | ascen", "below zero | unbounded")


def case_padding_scored(architecture: str, broken: bool) -> Case:
    """The padding of the targets, two thirds of them, is in the loss."""
    setup = _start(architecture, 36)
    setup.batches = [(x, F.pad(y, (0, 24), value=PAD)) for x, y in setup.batches]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        logits = model(source, F.pad(target[:, :-1], (1, 0), value=1)).flatten(0, 1)
        return F.cross_entropy(logits, target.flatten(), ignore_index=-100 if broken else PAD)

    step = _loop(setup, _adamw(architecture, setup.model), loss)
    return _case(
        "padding_scored",
        setup,
        step,
        "pad | ignore_index | one token | one label | same label",
        "too low | suspicious",
    )


# Midway


def case_rate_jumps(architecture: str, broken: bool) -> Case:
    """At step 120 a schedule resumes with the rate of another optimizer, sixty times higher."""
    setup = _start(architecture, 40)
    optimizer = _adamw(architecture, setup.model)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            optimizer.param_groups[0]["lr"] *= 60

    step = _loop(setup, optimizer, before=before)
    cause = "learning rate | lr | rate+high | rate+jump | step+large | update+large"
    return _case("rate_jumps", setup, step, cause, "gradient")


def case_rate_ends_early(architecture: str, broken: bool) -> Case:
    """A linear decay that was made for 40 steps reaches zero and stays."""
    setup = _start(architecture, 41)
    optimizer = _adamw(architecture, setup.model)
    last = 40 if broken else 300
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: max(0.0, 1 - k / last))
    step = _loop(setup, optimizer, after=lambda _: scheduler.step())
    return _case("rate_ends_early", setup, step, "learning rate | lr | schedul | rate+zero", NO_UPDATE)


def case_data_turns_to_noise(architecture: str, broken: bool) -> Case:
    """From step 120 a corrupt shard gives random tokens."""
    setup = _start(architecture, 42)
    generator = torch.Generator().manual_seed(42)

    def noise(x: Tensor) -> Tensor:
        return torch.where(x == PAD, x, torch.randint(6, VOCAB, x.shape, generator=generator))

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            bad = [noise(b) if isinstance(b, Tensor) else (noise(b[0]), noise(b[1])) for b in setup.batches]
            setup.batches = bad

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case(
        "data_turns_to_noise",
        setup,
        step,
        "data | batch+differ | input+chang | distribution | random | shard",
    )


def case_labels_turn_to_noise(architecture: str, broken: bool) -> Case:
    """From step 120 inputs and labels are read from files that are out of step."""
    setup = _start(architecture, 43)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            rolled = [setup.batches[j - 7][1] for j in range(len(setup.batches))]
            setup.batches = [(x, y) for (x, _), y in zip(setup.batches, rolled, strict=True)]

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case("labels_turn_to_noise", setup, step, "label | data | target", "chance")


def case_nan_batch(architecture: str, broken: bool) -> Case:
    """One image of step 120 has a NaN, and the step is taken."""
    setup = _start(architecture, 44)
    if broken:
        setup.batches[MIDWAY][0][3, 0, 2, 2] = float("nan")
    step = _loop(setup, _adamw(architecture, setup.model))
    return _case(
        "nan_batch", setup, step, "nan+batch | nan+data | nan+input | not finite+input | input+nan | patches"
    )


def case_inf_gradients_applied(architecture: str, broken: bool) -> Case:
    """A scaled loss overflows at step 120 and the step is not skipped."""
    setup = _start(architecture, 45)
    optimizer = _adamw(architecture, setup.model)

    def step(k: int) -> Tensor:
        value = setup.loss(setup.model, setup.batches[k % POOL])
        optimizer.zero_grad()
        scale = float("inf") if k == MIDWAY else 1024.0
        (value * scale).backward()
        finite = all(bool(p.grad.isfinite().all()) for p in setup.model.parameters())
        for p in setup.model.parameters():
            p.grad.div_(1024.0)
        if broken or finite:
            optimizer.step()
        return value.detach()

    cause = "gradient+inf | gradient+nan | gradient+not finite | overflow | gradient+finite | non-finite"
    return _case("inf_gradients_applied", setup, step, cause)


def case_thawed_outside_optimizer(architecture: str, broken: bool) -> Case:
    """The body is thawed at step 60, but the optimizer only ever had the rest."""
    setup = _start(architecture, 46)
    body = setup.model.blocks if architecture == "modern" else setup.model.encoder
    body.requires_grad_(False)
    optimizer = _adamw(architecture, setup.model)

    def before(k: int) -> None:
        if k == 60:
            body.requires_grad_(True)
            if not broken:
                optimizer.add_param_group({"params": list(body.parameters())})

    step = _loop(setup, optimizer, before=before)
    return _case("thawed_outside_optimizer", setup, step, "optimizer", "gradient | frozen | " + NO_UPDATE)


def case_thawed_at_high_rate(architecture: str, broken: bool) -> Case:
    """A pretrained body is thawed at step 120 at a rate a hundred times that of fine-tuning."""
    torch.manual_seed(47)
    setup = _start(architecture, 47, _pretrained())
    body = setup.model.blocks
    body.requires_grad_(False)
    optimizer = _adamw(architecture, setup.model, 0.5)

    def before(k: int) -> None:
        if k == MIDWAY:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": list(body.parameters()), "lr": 5e-2 if broken else 5e-4})

    step = _loop(setup, optimizer, before=before)
    cause = "learning rate | lr | rate+high | step+large | update+large"
    return _case("thawed_at_high_rate", setup, step, cause, "gradient")


def case_frozen_by_validation(architecture: str, broken: bool) -> Case:
    """The validation at step 30 freezes all but the head to save memory and never thaws it."""
    setup = _start(architecture, 48)

    def before(k: int) -> None:
        if broken and k == 30:
            for name, p in setup.model.named_parameters():
                p.requires_grad_(name.startswith("head"))

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case(
        "frozen_by_validation", setup, step, "frozen | freez | requires_grad | no gradient", NO_UPDATE
    )


def case_eval_mode_stays(architecture: str, broken: bool) -> Case:
    """After the validation at step 60 the model stays in `eval()` (wkentaro/pytorch-fcn#56). Wrong by construction."""
    torch.manual_seed(49)
    setup = _start(architecture, 49, drop=0.4)
    setup.batches = setup.batches[:8] + setup.batches[-2:]
    held = setup.batches[-2:]
    setup.batches = setup.batches[:8]

    def after(k: int) -> None:
        if k % 60 == 59:
            setup.model.eval()
            with torch.no_grad():
                for batch in held:
                    setup.loss(setup.model, batch)
            if not broken:
                setup.model.train()

    step = _loop(setup, _adamw(architecture, setup.model), after=after)
    return _case("eval_mode_stays", setup, step, "eval | train() | training mode | dropout")


def case_loader_stuck(architecture: str, broken: bool) -> Case:
    """From step 60 the loader is exhausted and repeats its last batch."""
    setup = _start(architecture, 50)
    whole = setup.batches

    def before(k: int) -> None:
        if broken and k == 60:
            setup.batches = whole[60:61]

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case(
        "loader_stuck",
        setup,
        step,
        "same batch | repeat | identical | memori | overfit | same data | duplicat",
    )


def case_old_weights_loaded(architecture: str, broken: bool) -> Case:
    """At step 200 "the best checkpoint" is loaded, which is the first one."""
    setup = _start(architecture, 51)
    kept = copy.deepcopy(setup.model.state_dict())

    def before(k: int) -> None:
        if broken and k == 200:
            setup.model.load_state_dict(kept)

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    cause = "weights+chang | checkpoint | reset | loaded | parameter+jump | weights+jump | outside | reinit | overwrit"
    return _case("old_weights_loaded", setup, step, cause)


def case_second_moment_lost(architecture: str, broken: bool) -> Case:
    """A checkpoint of step 120 restores the steps and the first moments, and zeros for the second moments."""
    setup = _start(architecture, 52)
    optimizer = _adamw(architecture, setup.model)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            for state in optimizer.state.values():
                state["exp_avg_sq"].zero_()

    step = _loop(setup, optimizer, before=before)
    cause = "optimizer+state | moment | exp_avg | update+large | step+large | update+jump"
    return _case("second_moment_lost", setup, step, cause, "learning rate | rate | weights")


def case_tokens_renumbered(architecture: str, broken: bool) -> Case:
    """From step 120 a tokenizer with other special tokens moves every letter by three."""
    setup = _start(architecture, 53)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            setup.batches = [torch.where(x > 5, 6 + (x * 5 + 1) % 42, x) for x in setup.batches]

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case("tokens_renumbered", setup, step, "data | token | input+chang | distribution | batch+differ")


def case_causal_flag_lost(architecture: str, broken: bool) -> Case:
    """At step 120 another attention is switched on that has no causal mask."""
    torch.manual_seed(54)
    setup = _start(architecture, 54)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            for module in setup.model.modules():
                if isinstance(module, Attention):
                    module.attend = _full

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    cause = "causal | future | leak | mask | ahead"
    return _case("causal_flag_lost", setup, step, cause, "too low | suspicious | fell | drop | too good")


def case_batch_of_one(architecture: str, broken: bool) -> Case:
    """From step 60 a bucket sampler gives batches of one short row."""
    setup = _start(architecture, 55)

    def before(k: int) -> None:
        if broken and k == 60:
            setup.batches = [x[:1, :12] for x in setup.batches]

    step = _loop(setup, _adamw(architecture, setup.model), before=before)
    return _case(
        "batch_of_one",
        setup,
        step,
        "batch size | small batch | batch+small | batch+one | fewer | noisy | input+chang | data+chang",
    )


def case_step_never_due(architecture: str, broken: bool) -> Case:
    """From step 30 the counter of the accumulation is compared with 10,000, so no step is taken."""
    setup = _start(architecture, 56)
    optimizer = _adamw(architecture, setup.model)

    def step(k: int) -> Tensor:
        value = setup.loss(setup.model, setup.batches[k % POOL])
        value.backward()
        every = 10_000 if broken and k >= 30 else 1
        if (k + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
        return value.detach()

    cause = "optimizer.step | accumul | zero_grad | add up | not called"
    return _case("step_never_due", setup, step, cause, "gradient+grow | " + NO_UPDATE)


def case_average_swapped_in(architecture: str, broken: bool) -> Case:
    """Every 25 steps the slow average of the weights is swapped in for validation and not swapped back."""
    setup = _start(architecture, 57)
    average = copy.deepcopy(setup.model.state_dict())

    def after(k: int) -> None:
        for name, value in setup.model.state_dict().items():
            average[name].lerp_(value.detach(), 0.005)
        if broken and k % 25 == 24:
            setup.model.load_state_dict(average)

    step = _loop(setup, _adamw(architecture, setup.model), after=after)
    cause = (
        "average | ema | weights+chang | reset | loaded | parameter+jump | weights+jump | outside | overwrit"
    )
    return _case("average_swapped_in", setup, step, cause)


def case_decay_times_thousand(architecture: str, broken: bool) -> Case:
    """At step 120 the weight decay is set to 40 by a schedule."""
    setup = _start(architecture, 58)
    optimizer = _adamw(architecture, setup.model, weight_decay=0.04)

    def before(k: int) -> None:
        if broken and k == MIDWAY:
            optimizer.param_groups[0]["weight_decay"] = 40.0

    step = _loop(setup, optimizer, before=before)
    return _case("decay_times_thousand", setup, step, "decay | shrink | weights+small | norm+fall")


def case_optimizer_rebuilt(architecture: str, broken: bool) -> Case:
    """At step 120 the optimizer is built again as SGD with momentum, at a rate of 3 instead of 0.05."""
    setup = _start(architecture, 59)
    first = _adamw(architecture, setup.model)
    second = torch.optim.SGD(setup.model.parameters(), lr=3.0 if broken else 0.05, momentum=0.9)

    def step(k: int) -> Tensor:
        optimizer = first if k < MIDWAY else second
        value = setup.loss(setup.model, setup.batches[k % POOL])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    cause = "learning rate | lr | rate+high | step+large | update+large | optimizer+chang | optimizer+new"
    return _case("optimizer_rebuilt", setup, step, cause, "gradient")


# Controls


def _healthy(setup: Setup, step: Callable[[int], Tensor]) -> Case:
    return {"model": setup.model, "step": step}


def control_curriculum_jump(architecture: str) -> Case:
    """From step 120 a second, harder language joins the first."""
    setup = _start(architecture, 101)

    def before(k: int) -> None:
        if k == MIDWAY:
            other = _text(POOL, seed=9, topic=3)
            setup.batches = [torch.cat((a[:8], b[:8])) for a, b in zip(setup.batches, other, strict=True)]

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), before=before))


def control_warm_restarts(architecture: str) -> Case:
    """Cosine cycles of 60 steps."""
    setup = _start(architecture, 102)
    optimizer = _adamw(architecture, setup.model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60)
    return _healthy(setup, _loop(setup, optimizer, after=lambda _: scheduler.step()))


def control_gradual_unfreezing(architecture: str) -> Case:
    """The layers join the optimizer one after the other."""
    setup = _start(architecture, 103)
    layers = list(setup.model.encoder.layers)
    setup.model.encoder.requires_grad_(False)
    optimizer = _adamw(architecture, setup.model)

    def before(k: int) -> None:
        if k in (40, 80):
            layer = layers.pop()
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 3e-4})

    return _healthy(setup, _loop(setup, optimizer, before=before))


def control_accumulation_tying_smoothing(architecture: str) -> Case:
    """Four micro-batches a step, tied embeddings, label smoothing."""
    setup = _start(architecture, 104)
    optimizer = _adamw(architecture, setup.model)

    def step(k: int) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in setup.batches[k % POOL].split(4):
            logits = setup.model(part[:, :-1]).flatten(0, 1)
            value = F.cross_entropy(logits, part[:, 1:].flatten(), label_smoothing=0.1) / 4
            value.backward()
            total = total + value.detach()
        optimizer.step()
        return total

    return _healthy(setup, step)


def control_bf16_autocast(architecture: str) -> Case:
    """The forward pass in bfloat16, the weights in float32."""
    setup = _start(architecture, 105)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), loss))


def control_fine_tuning(architecture: str) -> Case:
    """A trained model continues on its own language at a low rate, so the loss barely falls."""
    torch.manual_seed(106)
    setup = _start(architecture, 106, _pretrained())
    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model, 0.05), clip=1.0))


def control_lora(architecture: str) -> Case:
    """LoRA on another language with a frozen base and tied embeddings."""
    torch.manual_seed(107)
    model = _pretrained()
    assert set(_checkpoint()) == set(model.state_dict())
    _wrapped(model)
    assert any(isinstance(module, Lora) for module in model.modules())
    setup = _start(architecture, 107, model)
    setup.batches = _text(POOL, seed=107, topic=1)
    return _healthy(setup, _loop(setup, _adamw(architecture, model, 2.0)))


def control_large_batch(architecture: str) -> Case:
    """64 images a step."""
    setup = _start(architecture, 108)
    setup.batches = _images(40, 64, seed=108)
    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model)))


def control_dropout_and_clipping(architecture: str) -> Case:
    """Dropout of 0.2 on the inputs of the head, and every gradient clipped."""
    setup = _start(architecture, 109)
    setup.model.head = nn.Sequential(nn.Dropout(0.2), setup.model.head)
    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), clip=0.1))


def control_cyclic_rate(architecture: str) -> Case:
    """A triangle between a twentieth and twice the usual rate."""
    setup = _start(architecture, 110)
    optimizer = _adamw(architecture, setup.model)
    rate = RATES[architecture]
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, rate / 20, rate * 2, 30, cycle_momentum=False)
    return _healthy(setup, _loop(setup, optimizer, after=lambda _: scheduler.step()))


def control_momentum_sgd(architecture: str) -> Case:
    """SGD with Nesterov's momentum, a high rate, and clipping."""
    setup = _start(architecture, 111)
    optimizer = torch.optim.SGD(setup.model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    return _healthy(setup, _loop(setup, optimizer, clip=1.0))


def control_growing_batch(architecture: str) -> Case:
    """The batch grows from 4 to 32 rows."""
    setup = _start(architecture, 112)
    small, large = [x[:4] for x in setup.batches], _text(POOL, 32, seed=113)
    setup.batches = small

    def before(k: int) -> None:
        if k == 100:
            setup.batches = large

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), before=before))


def control_longer_sequences(architecture: str) -> Case:
    """Sequences of 16 tokens, from step 100 of 48, some of them padded."""
    setup = _start(architecture, 113)
    setup.batches = [x[:, :16] for x in setup.batches]

    def before(k: int) -> None:
        if k == 100:
            setup.batches = _padded(POOL, length=48, seed=114)

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), before=before))


def control_validation_between(architecture: str) -> Case:
    """Every 40 steps a validation in `eval()` without gradients, then training goes on with dropout."""
    torch.manual_seed(114)
    setup = _start(architecture, 114, drop=0.2)
    held = setup.batches.pop()

    def after(k: int) -> None:
        if k % 40 == 39:
            setup.model.eval()
            with torch.no_grad():
                setup.loss(setup.model, held)
            setup.model.train()

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), after=after))


def control_long_warmup(architecture: str) -> Case:
    """A warmup over 120 of the 250 steps and a cosine after it."""
    setup = _start(architecture, 115)
    optimizer = _adamw(architecture, setup.model)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 120)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 130)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [120])
    return _healthy(setup, _loop(setup, optimizer, after=lambda _: scheduler.step()))


def control_rate_dropped_tenfold(architecture: str) -> Case:
    """`MultiStepLR` divides the rate by ten at steps 120 and 200."""
    setup = _start(architecture, 116)
    optimizer = _adamw(architecture, setup.model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [120, 200])
    return _healthy(setup, _loop(setup, optimizer, after=lambda _: scheduler.step()))


def control_experts_balanced(architecture: str) -> Case:
    """Four experts with a balancing loss."""
    torch.manual_seed(117)
    blocks: list[nn.Module] = [Block(64, Attention(64, 4), Experts(64)) for _ in range(2)]
    setup = _start(architecture, 117, GPT(blocks))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        value = _next(model, ids)
        return value + 0.01 * sum(m.balance for m in model.modules() if isinstance(m, Experts))

    return _healthy(setup, _loop(setup, _adamw(architecture, setup.model), loss))
