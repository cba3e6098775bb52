"""Unusual but healthy trainings of the fifth blind list."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from experiments.preflight.blind_five_kit import (
    GPT,
    VOCAB,
    WORDS,
    Block,
    Encoder,
    Open,
    SelfAttention,
    Setup,
    ViT,
    classified,
    cut,
    generator,
    language,
    next_token,
    normal,
    pictures,
    sentences,
    series,
    small,
    texts,
    training,
)
from experiments.preflight.blind_five_other import Adapter
from experiments.preflight.blind_five_signals import Denoiser, Forecaster
from experiments.preflight.blind_five_text import Experts


def _fitted(model: nn.Module, steps: int = 40) -> nn.Module:
    """Some training on the first texts, as a checkpoint would hold."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x in texts()[:steps]:
        optimizer.zero_grad()
        next_token(model, x).backward()
        optimizer.step()
    return model


def control_prompts_not_scored() -> Setup:
    """Answers of 12 words behind prompts of 20, which carry no label."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    behind = torch.arange(32)[None] >= 20
    return training(
        model, [{"input_ids": x, "labels": x.masked_fill(~behind, -100)} for x in texts()], lr=2e-3
    )


class Prefixed(SelfAttention):
    """All of the first half may be seen, the rest is causal."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        mask[:, :16] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def control_prefix_language_model() -> Setup:
    """The prefix is read in both directions and not scored."""
    torch.manual_seed(0)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids)[:, 15:-1].flatten(0, 1), ids[:, 16:].flatten())

    return training(GPT(attention=Prefixed), texts(), loss)


def control_mostly_padding() -> Setup:
    """Three quarters of every batch is padding, rightly masked."""
    torch.manual_seed(0)
    ids, mask, label = sentences()
    ids, mask = F.pad(ids, (0, 36)), F.pad(mask, (0, 36))
    return training(Encoder(), cut(ids, mask, label), classified, lr=1e-3)


class Bag(ViT):
    """No positions: the color decides, and patches may come in any order."""

    def features(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(1, keepdim=True)


def control_patches_in_any_order() -> Setup:
    torch.manual_seed(0)
    g = generator(30)
    label = torch.randint(3, (52 * 16,), generator=g)
    images = torch.randn(52 * 16, 3, 16, 16, generator=g) + F.one_hot(label, 3)[:, :, None, None]
    model = Bag(classes=3)
    del model.first, model.places
    return training(model, cut(images, label), lambda m, b: F.cross_entropy(m(b[0]), b[1]), lr=5e-4)


def control_adapters_of_rank_four() -> Setup:
    """One factor starts at zero, the body is a fitted one and frozen."""
    torch.manual_seed(0)
    model = _fitted(GPT()).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = Adapter(block.attention.qkv, zero=False)
        block.mlp[0] = Adapter(block.mlp[0], zero=False)
        block.mlp[2] = Adapter(block.mlp[2], zero=False)
    swap = torch.cat(
        [torch.zeros(1, dtype=torch.long), torch.randperm(VOCAB - 1, generator=generator(17)) + 1]
    )
    return training(model, [swap[x] for x in texts()], next_token, lr=3e-3)


class ReZeroBlock(Block):
    """Branches that start switched off."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 4, SelfAttention)
        self.gain = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gain[0] * self.attention(self.norm1(x))
        return x + self.gain[1] * self.mlp(self.norm2(x))


def control_branches_switched_off() -> Setup:
    torch.manual_seed(0)
    model = GPT()
    model.blocks = nn.ModuleList(ReZeroBlock(64) for _ in range(4))
    return training(model.apply(small), texts(), next_token, lr=3e-3)


class Pooled(ViT):
    """The mean over the patches."""

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images)[:, 1:].mean(1))


class Clip(nn.Module):
    """Two towers and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Pooled(classes=32), Encoder(classes=32)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        a, b = F.normalize(self.image(images), dim=-1), F.normalize(self.text(ids, mask), dim=-1)
        logits = self.scale.clamp(max=4.6).exp() * a @ b.T
        target = torch.arange(len(a))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def control_clip_with_a_learned_temperature() -> Setup:
    """Pictures of eight squares and the words for them: every row of a batch is another."""
    torch.manual_seed(0)
    g = generator(31)
    rows = 52 * 16
    marks = torch.rand(rows, 16, generator=g).argsort(1)[:, :5]
    board = torch.zeros(rows, 16).scatter_(1, marks, 2.0).view(rows, 1, 4, 4)
    images = board.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1)
    images = images + 0.3 * torch.randn(rows, 3, 16, 16, generator=g)
    ids = marks + 2
    batches = cut(images, ids, torch.ones_like(ids))
    return training(Clip(), batches, lambda model, batch: model(*batch))


def control_bfloat16_autocast() -> Setup:
    torch.manual_seed(0)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token(model, ids)

    return training(GPT(), texts(), loss)


class Bootstrap(nn.Module):
    """BYOL: a target network without gradient that follows the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.online = ViT(classes=32)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        return 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()


def control_target_network() -> Setup:
    torch.manual_seed(0)
    images, _ = pictures()
    x = normal(images)
    g = generator(32)
    model = Bootstrap()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(*batch)

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], _: int
    ) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(model.target.parameters(), model.online.parameters(), strict=True):
                old.lerp_(new, 0.01)
        return value.detach()

    batches = cut(x, x + 0.3 * torch.randn(x.shape, generator=g))
    return training(model, batches, loss, lr=5e-4, step=step)


def control_gaussian_likelihood() -> Setup:
    """Mean and variance of the next steps: the loss is a density and rightly falls below zero."""
    torch.manual_seed(0)
    x = series()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        mean, spread = model(batch[0]).chunk(2, dim=-1)
        return F.gaussian_nll_loss(mean, batch[1], F.softplus(spread) + 1e-3)

    return training(Forecaster(horizon=16), cut(x[:, :32], x[:, 32:40]), loss, lr=1e-3)


def control_focal_loss_of_rare_class() -> Setup:
    """One row in twelve is positive, and the loss turns to what is hard."""
    torch.manual_seed(0)
    ids, mask, label = sentences(classes=2, share=(0.92, 0.08))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(model(*batch[:2]), batch[2], reduction="none")
        return (each * (1 - (-each).exp()) ** 2).mean()

    return training(Encoder(classes=2), cut(ids, mask, label), loss, lr=1e-3)


def control_one_layer_four_times() -> Setup:
    """ALBERT: the blocks share their weights."""
    torch.manual_seed(0)
    model = AlbertForSequenceClassification(
        AlbertConfig(
            vocab_size=WORDS,
            embedding_size=32,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=4,
            max_position_embeddings=64,
        )
    )
    batches = [{"input_ids": x, "attention_mask": m, "labels": y} for x, m, y in cut(*sentences())]
    return training(model, batches, lr=5e-4)


def control_t5() -> Setup:
    """Relative positions, no scaling of the scores, RMS norms, labels padded with -100."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCAB,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    source = language(length=10)
    other = torch.randperm(VOCAB - 3, generator=generator(14)) + 3
    target = other[source % (VOCAB - 3)]
    end = torch.arange(10)[None] >= torch.randint(6, 11, (len(target), 1), generator=generator(33))
    batches = [{"input_ids": a, "labels": b} for a, b in cut(source, target.masked_fill(end, -100))]
    return training(T5ForConditionalGeneration(config), batches, lr=2e-3)


def control_slopes_in_place_of_positions() -> Setup:
    """Bloom: ALiBi and a norm behind the embedding."""
    torch.manual_seed(0)
    config = BloomConfig(
        vocab_size=VOCAB, hidden_size=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return training(BloomForCausalLM(config), [{"input_ids": x, "labels": x} for x in texts()])


def control_experts_in_balance() -> Setup:
    """Four experts, weighed by the router, one chosen."""
    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        block.mlp = Experts(64, weighed=True)
    model.apply(small)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        load = []
        hooks = [b.mlp.router.register_forward_hook(lambda m, a, out: load.append(out)) for b in model.blocks]
        value = next_token(model, ids)
        for hook in hooks:
            hook.remove()
        for logits in load:
            p = logits.softmax(-1).flatten(0, -2)
            share = F.one_hot(p.argmax(-1), 4).float().mean(0)
            value = value + 0.01 * 4 * (share * p.mean(0)).sum()
        return value

    return training(model, texts(), loss)


class Dropped(Block):
    """Stochastic depth."""

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(len(x), 1, 1) > 0.2 if self.training else torch.ones(len(x), 1, 1) > 0
        scale = keep / 0.8 if self.training else keep
        x = x + scale * self.attention(self.norm1(x))
        return x + scale * self.mlp(self.norm2(x))


def control_mixup_and_stochastic_depth() -> Setup:
    """Pictures are laid over each other in the loss, and their labels are shares."""
    torch.manual_seed(0)
    images, label = pictures()
    model = ViT(depth=0)
    model.blocks = nn.ModuleList(Dropped(64, 4, Open) for _ in range(3))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        soft = F.one_hot(y, 4).float()
        if model.training:
            part = 0.7 + 0.3 * torch.rand(len(x), 1)
            order = torch.randperm(len(x))
            x = part[..., None, None] * x + (1 - part[..., None, None]) * x[order]
            soft = part * soft + (1 - part) * soft[order]
        return F.cross_entropy(model(x), soft)

    return training(model, cut(normal(images), label), loss, lr=1e-3)


def control_velocity_of_diffusion() -> Setup:
    """The target of flow matching, picture minus noise, drawn in the loss."""
    torch.manual_seed(0)
    images, _ = pictures()

    def loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        (x,) = batch
        noise, t = torch.randn(x.shape), torch.rand(len(x))
        part = t[:, None, None, None]
        return F.mse_loss(model((1 - part) * x + part * noise, t), x - noise)

    return training(Denoiser(), cut(normal(images)), loss, lr=1e-3)


class Packed(GPT):
    """Documents in one row: each sees itself alone and counts from zero."""

    def forward(self, ids: Tensor) -> Tensor:
        owner = (ids == 0).cumsum(1)
        place = torch.arange(ids.shape[1])
        start = torch.where(ids == 0, place, torch.zeros_like(place)).cummax(1).values
        mask = (owner[:, None] == owner[:, :, None]) & (place[:, None] >= place)
        x = self.tokens(ids) + self.places(place - start)
        for block in self.blocks:
            a = block.attention
            q, k, v = (a.split(part) for part in a.qkv(block.norm1(x)).chunk(3, dim=-1))
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
            x = x + a.out(seen.transpose(1, 2).reshape(x.shape))
            x = x + block.mlp(block.norm2(x))
        return self.head(self.norm(x))


def control_documents_packed() -> Setup:
    torch.manual_seed(0)
    rows = []
    for k, x in enumerate(texts()):
        ids = x.clone()
        ids[:, torch.randint(8, 16, (1,), generator=generator(k))] = 0
        ids[:, torch.randint(18, 28, (1,), generator=generator(k + 99))] = 0
        ids[:, 0] = 0
        rows.append(ids)
    return training(Packed(), rows, next_token)


def control_checkpointing_in_its_new_form() -> Setup:
    """Frozen embeddings, blocks recomputed, gradients as they should be."""
    torch.manual_seed(0)
    model = _fitted(GPT())
    model.tokens.requires_grad_(False)
    model.places.requires_grad_(False)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        x = model.embed(ids)
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = model.head(model.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return training(model, texts(), loss, lr=1e-3)


def control_rates_by_depth() -> Setup:
    """A fitted model whose lower blocks learn more slowly; norms and biases without decay."""
    torch.manual_seed(0)
    model = _fitted(GPT(depth=3))
    groups = []
    for name, parameter in model.named_parameters():
        depth = int(name.split(".")[1]) + 1 if name.startswith("blocks") else 0 if "norm" not in name else 4
        rate = 1e-3 * 0.7 ** (4 - depth)
        groups.append({"params": [parameter], "lr": rate, "weight_decay": 0.1 if parameter.ndim > 1 else 0.0})
    swap = torch.cat(
        [torch.zeros(1, dtype=torch.long), torch.randperm(VOCAB - 1, generator=generator(34)) + 1]
    )
    return training(model, [swap[x] for x in texts()], next_token, optimizer=torch.optim.AdamW(groups))


def control_mostly_one_token() -> Setup:
    """Every other token is a space."""
    torch.manual_seed(0)
    rows = [torch.stack([x, torch.zeros_like(x)], 2).flatten(1) for x in texts(length=24)]
    return training(GPT(), rows, next_token)


def control_distilled_at_temperature_two() -> Setup:
    torch.manual_seed(0)
    batches = cut(*sentences())
    teacher = Encoder()
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for batch in batches[:40]:
        optimizer.zero_grad()
        classified(teacher, batch).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        logits = model(*batch[:2])
        with torch.no_grad():
            soft = (teacher(*batch[:2]) / 2).softmax(-1)
        kl = F.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean")
        return 0.5 * F.cross_entropy(logits, batch[2]) + 0.5 * 4 * kl

    return training(Encoder(width=32, depth=1), batches, loss)
