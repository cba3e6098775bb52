"""Controls of `blind_three.py`: trainings that look odd and are healthy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.preflight import blind_three_tasks as tasks
from experiments.preflight.blind_three_tasks import (
    BOS,
    EOS,
    FIRST,
    HELD_OUT,
    MASK,
    PAD,
    SMALL,
    VOCAB,
    Attention,
    Batch,
    Block,
    Case,
    Denoiser,
    Encoder,
    Experts,
    Forecaster,
    Gpt,
    Llama,
    RelativeBlock,
    RMSNorm,
    Speech,
    Table,
    Tower,
    Vit,
    bandit,
    digits,
    fit,
    forecast,
    foreign,
    frozen,
    hugging,
    image,
    language,
    markers,
    nearest,
    neighbors,
    next_word,
    number,
    numbers,
    phrases,
    plain,
    preferred,
    records,
    seeded,
    sentence,
    series,
    sgd,
    split,
    spoken,
    tags,
    topics,
    trained,
    with_lora,
)


def control_bag_of_words() -> Case:
    """No positions and a mean: the order of words does not matter to the task."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.block, self.classify = (
                nn.Embedding(VOCAB, 32),
                Block(32, 2, causal=False),
                nn.Linear(32, 4),
            )

        def forward(self, ids: Tensor) -> Tensor:
            return self.classify(self.block(self.words(ids)).mean(dim=1))

    return fit(seeded(Own), markers, sentence)


def control_set_of_points() -> Case:
    """Sets of points to the size of their spread: a learned query attends to all, no positions, a regression."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.query = (
                nn.Sequential(nn.Linear(2, 32), nn.ReLU()),
                nn.Parameter(torch.randn(1, 1, 32)),
            )
            self.pool, self.read = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 1)
            self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU())

        def forward(self, points: Tensor) -> Tensor:
            x = self.lift(points)
            x = self.pool(self.query.expand(len(x), -1, -1), x, x, need_weights=False)[0]
            return self.read(self.mlp(x))[:, 0, 0]

    def sets(count: int = 24, seed: int = 0) -> list[Batch]:
        stream = numbers(seed)
        spread = torch.rand(count * 32, generator=stream) + 0.2
        return split(
            count,
            points=torch.randn(count * 32, 12, 2, generator=stream) * spread[:, None, None],
            spread=spread,
        )

    return fit(seeded(Own), sets, lambda model, b: F.mse_loss(model(b["points"]), b["spread"]))


def control_two_tiny_experts() -> Case:
    """A router over two experts on states of width 16, one chosen, no balance loss."""

    class Own(Experts):
        def weights(self, x: Tensor) -> Tensor:
            gates = self.router(x).softmax(dim=-1)
            return gates * F.one_hot(gates.argmax(dim=-1), 2)

    def make() -> nn.Module:
        net = Gpt(d=16)
        for block in net.blocks:
            block.mlp = Own(16, 2)
        return net

    return fit(seeded(make), language, next_word, lr=1e-2)


def control_expert_choice() -> Case:
    """Experts choose their tokens in an encoder: a softmax over tokens is meant, and some tokens get no expert."""

    class Own(Experts):
        def weights(self, x: Tensor) -> Tensor:
            gates = self.router(x).softmax(dim=-1)
            best = gates.topk(x.shape[1] // 3, dim=1).values[:, -1:]
            return gates * (gates >= best)

    def make() -> nn.Module:
        net = Gpt(out=4, causal=False)
        net.blocks[1].mlp = Own(32)
        return net

    return fit(seeded(make), neighbors, tags)


def control_nearly_all_padding() -> Case:
    """Sentences of four to twelve words in rows of 64, the padding masked and never pooled."""

    def wide(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{**b, "ids": F.pad(b["ids"], (0, 52), value=PAD)} for b in markers(count, seed, padded=True)]

    def make() -> nn.Module:
        net = Encoder(pooled=True)
        net.places = nn.Parameter(0.3 * torch.randn(64, 32))
        return net

    return fit(seeded(make), wide, sentence)


def control_half_frozen_on_a_new_language() -> Case:
    """The lower half of a trained decoder is frozen, and the text is of another language: a loud first loss."""
    net: Any = trained("gpt")
    frozen(net.blocks[0])
    net.pos.weight.requires_grad_(False)
    return fit(net, foreign, next_word)


def control_prefix_tuning() -> Case:
    """A frozen decoder, and learned keys and values before every block's own."""

    class Prefixed(nn.Module):
        def __init__(self, attention: Attention) -> None:
            super().__init__()
            self.attention, self.prefix = frozen(attention), nn.Parameter(torch.randn(2, 2, 6, 16))

        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
            rows, length, d = x.shape
            q, k, v = (
                part.view(rows, length, 2, -1).transpose(1, 2)
                for part in self.attention.qkv(x).chunk(3, dim=-1)
            )
            k, v = (
                torch.cat([own.expand(rows, -1, -1, -1), part], dim=2)
                for own, part in zip(self.prefix, (k, v), strict=True)
            )
            seen = torch.ones(length, length + 6).tril(6).bool()
            return self.attention.out(
                F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).reshape(rows, length, d)
            )

    net: Any = frozen(trained("gpt"))
    for block in net.blocks:
        block.attn = Prefixed(block.attn)
    net.head = nn.Linear(32, VOCAB)
    return fit(net, foreign, next_word, lr=1e-2)


def control_biases_only() -> Case:
    """BitFit: all but biases and the norms' gains is frozen, on another language; the embedding is tied to nothing."""
    net: Any = trained("gpt")
    for name, weight in net.named_parameters():
        weight.requires_grad_(weight.dim() == 1 or name.startswith("head"))
    return fit(net, foreign, next_word, lr=1e-2)


def control_lora_small_scale() -> Case:
    """LoRA with a scale of one quarter and a high rate on another language."""
    return fit(with_lora(trained("gpt"), 0.25), foreign, next_word, lr=2e-2)


def control_random_body() -> Case:
    """A reservoir: the body is random and frozen, only norm and readout train."""
    net: Any = seeded(lambda: Vit())
    frozen(net.blocks)
    frozen(net.patch)
    net.cls.requires_grad_(False)
    net.pos.requires_grad_(False)
    return fit(net, digits, image, lr=5e-2)


def control_diffusion_with_zero_gates() -> Case:
    """adaLN-Zero: every branch, and the readout, begins at zero."""

    class Gated(nn.Module):
        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block, self.gate = block, nn.Parameter(torch.zeros(2, 32))

        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
            x = x + self.gate[0] * self.block.attn(self.block.norm1(x))
            return x + self.gate[1] * self.block.mlp(self.block.norm2(x))

    def make() -> nn.Module:
        net = Denoiser()
        net.blocks = nn.ModuleList(Gated(block) for block in net.blocks)
        nn.init.zeros_(net.read.weight)
        nn.init.zeros_(net.read.bias)
        return net

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        values = batch["past"] / 2
        level = torch.rand(len(values), 1) * 0.9 + 0.1
        noise = torch.randn_like(values)
        return F.mse_loss(model((1 - level**2).sqrt() * values + level * noise, level), noise)

    return fit(seeded(make), series, loss)


def control_dynamic_tanh() -> Case:
    """Norms replaced by `gain * tanh(a x) + bias`."""

    class Squash(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.gain, self.bias = (
                nn.Parameter(torch.tensor(0.7)),
                nn.Parameter(torch.ones(32)),
                nn.Parameter(torch.zeros(32)),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * torch.tanh(self.a * x) + self.bias

    def make() -> nn.Module:
        net = Gpt()
        net.norm = Squash()
        for block in net.blocks:
            block.norm1, block.norm2 = Squash(), Squash()
        return net

    return fit(seeded(make), language, next_word)


def control_one_gain_per_norm() -> Case:
    """ScaleNorm: states on a sphere whose radius is one learned number; gains stored as one plus a weight elsewhere."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.radius = nn.Parameter(torch.tensor(32.0**0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.radius * F.normalize(x, dim=-1)

    class OnePlus(RMSNorm):
        def __init__(self, d: int) -> None:
            super().__init__(d)
            nn.init.zeros_(self.weight)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * (1 + self.weight)

    def make() -> nn.Module:
        net = Llama()
        for layer in net.layers:
            layer.input_norm, layer.post_norm = Scale(), OnePlus(32)
        return net

    return fit(seeded(make), language, next_word)


def control_weight_norm_parametrization() -> Case:
    """Matrices as length times direction by `torch.nn.utils.parametrizations`, the readout with spectral norm."""

    def make() -> nn.Module:
        net = Vit()
        for block in net.blocks:
            nn.utils.parametrizations.weight_norm(block.mlp[0])
            nn.utils.parametrizations.weight_norm(block.attn.qkv)
        nn.utils.parametrizations.spectral_norm(net.head)
        return net

    return fit(seeded(make), digits, image)


def control_factorized_tied_embedding() -> Case:
    """Words of width 8 lifted to 32, and read out through the same two matrices with a bias of its own."""

    class Own(Gpt):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.lift = nn.Embedding(VOCAB, 8), nn.Linear(8, 32, bias=False)
            self.head, self.bias = nn.Identity(), nn.Parameter(torch.zeros(VOCAB))
            nn.init.normal_(self.tok.weight, std=0.3)

        def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
            x = self.lift(self.tok(ids)) + self.pos(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x, hidden)
            return self.norm(x) @ self.lift.weight @ self.tok.weight.T + self.bias

    return fit(seeded(Own), language, next_word, lr=1e-2)


def control_keys_shared_with_values() -> Case:
    """One projection for queries, keys and values of a layer, and one set of weights for every other layer."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.out = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
            y = self.own(x).unflatten(-1, (2, 16)).transpose(1, 2)
            return self.out(
                F.scaled_dot_product_attention(y, y, y, is_causal=True).transpose(1, 2).flatten(2)
            )

    def make() -> nn.Module:
        net = Gpt(layers=4)
        for block in net.blocks:
            block.attn = Shared()
        net.blocks[2], net.blocks[3] = net.blocks[0], net.blocks[1]
        return net

    return fit(seeded(make), language, next_word)


def control_right_to_left() -> Case:
    """A language model that predicts the word before: its mask hides the past."""

    class Backward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCAB, 32), nn.Embedding(64, 32)
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body, self.read = (
                nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
                nn.Linear(32, VOCAB),
            )

        def forward(self, ids: Tensor) -> Tensor:
            length = ids.shape[1]
            past = torch.ones(length, length).tril(-1).bool()
            return self.read(self.body(self.words(ids) + self.places(torch.arange(length)), mask=past))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"][:, 1:]).flatten(0, 1), batch["ids"][:, :-1].flatten())

    return fit(seeded(Backward), language, loss)


def control_linear_attention() -> Case:
    """Kernel attention without softmax, causal by cumulative sums."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
            q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
            sums = torch.einsum("btk,btv->btkv", k, v).cumsum(dim=1)
            return self.out(
                torch.einsum("btk,btkv->btv", q, sums) / (q * k.cumsum(dim=1)).sum(dim=-1, keepdim=True)
            )

    def make() -> nn.Module:
        net = Gpt()
        for block in net.blocks:
            block.attn = Linear()
        return net

    return fit(seeded(make), language, next_word)


def control_relative_bias_only() -> Case:
    """No absolute positions; a bias by distance of which a window uses the first rows only."""

    def make() -> nn.Module:
        net = Gpt()
        net.blocks = nn.ModuleList(RelativeBlock(False) for _ in range(2))
        net.pos = nn.Embedding(64, 32)
        nn.init.zeros_(net.pos.weight).requires_grad_(False)
        return net

    return fit(seeded(make), language, next_word)


def control_latent_queries() -> Case:
    """Perceiver: eight learned latents read an image of 64 single pixels, and the class comes from their mean."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pixel, self.pos = nn.Linear(1, 32), nn.Parameter(torch.randn(64, 32))
            self.latents, self.read = (
                nn.Parameter(torch.randn(8, 32)),
                nn.MultiheadAttention(32, 4, batch_first=True),
            )
            self.block, self.classify = Block(32, 4, causal=False), nn.Linear(32, 10)

        def forward(self, images: Tensor) -> Tensor:
            x = self.pixel(images.flatten(1)[..., None]) * self.pos
            y = self.latents + self.read(self.latents.expand(len(x), -1, -1), x, x, need_weights=False)[0]
            return self.classify(self.block(y).mean(dim=1))

    return fit(seeded(Own), digits, image, lr=5e-3)


def control_pointer() -> Case:
    """The answer is a place: logits are scores of the last word against all places, and there is no readout matrix."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.key = Gpt(causal=False), nn.Linear(32, 32)
            self.body.head = nn.Identity()

        def forward(self, ids: Tensor) -> Tensor:
            x = self.body(ids)
            return (self.key(x) @ x[:, -1:].transpose(1, 2))[..., 0] / 32**0.5

    def places(count: int = 24, seed: int = 0) -> list[Batch]:
        return [
            {"ids": b["ids"], "labels": ((b["ids"] >= FIRST) & (b["ids"] < FIRST + 4)).int().argmax(dim=1)}
            for b in markers(count, seed)
        ]

    return fit(seeded(Own), places, sentence)


def control_bytes_of_which_few_occur() -> Case:
    """A vocabulary of 256 of which the data use 24, and rows of length three."""
    return fit(
        seeded(lambda: Gpt(256)), lambda count=24, seed=0: language(count, seed, length=5), next_word, lr=5e-3
    )


def control_soft_words() -> Case:
    """Inputs are mixtures of words, not ids, and targets are distributions."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.block, self.read = (
                nn.Linear(VOCAB, 32, bias=False),
                Block(32, 2),
                nn.Linear(32, VOCAB),
            )

        def forward(self, soft: Tensor) -> Tensor:
            return self.read(self.block(self.lift(soft)))

    def mixtures(count: int = 24, seed: int = 0) -> list[Batch]:
        found = [0.9 * F.one_hot(b["ids"], VOCAB).float() + 0.1 / VOCAB for b in language(count, seed)]
        return [{"soft": soft[:, :-1], "goal": soft[:, 1:]} for soft in found]

    return fit(
        seeded(Own),
        mixtures,
        lambda model, b: F.cross_entropy(model(b["soft"]).flatten(0, 1), b["goal"].flatten(0, 1)),
    )


def control_noise_in_the_labels() -> Case:
    """Three labels of ten are wrong on purpose, as in studies of robustness; the loss is generalized cross-entropy."""

    def noisy(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(digits(count, seed)):
            bad = torch.rand(len(b["labels"]), generator=numbers(seed + i)) < 0.3
            found.append({**b, "labels": torch.where(bad, (b["labels"] + 3) % 10, b["labels"])})
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        own = model(batch["images"]).softmax(-1).gather(1, batch["labels"][:, None])
        return ((1 - own**0.7) / 0.7).mean()

    return fit(seeded(Vit), noisy, loss)


def control_one_fraud_in_twenty() -> Case:
    """A real imbalance: the mark is in one sentence of twenty, the readout's bias begins at the prior."""

    def rare(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(markers(count, seed)):
            keep = torch.rand(len(b["ids"]), generator=numbers(seed + i)) < 0.08
            keep[0] = i % 2 == 0
            marks = (b["ids"] >= FIRST) & (b["ids"] < FIRST + 4)
            found.append({"ids": torch.where(marks & ~keep[:, None], 9, b["ids"]), "labels": keep.float()})
        return found

    def make() -> nn.Module:
        net = Encoder(1, pooled=True)
        nn.init.constant_(net.classify.bias, -2.5)
        return net

    return fit(
        seeded(make),
        rare,
        lambda model, b: F.binary_cross_entropy_with_logits(model(b["ids"])[:, 0], b["labels"]),
    )


def control_ordered_classes() -> Case:
    """Ordinal regression: one score and three learned thresholds, a binary loss for each."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.cuts = Encoder(1, pooled=True), nn.Parameter(torch.tensor([-1.0, 0.0, 1.0]))

        def forward(self, ids: Tensor) -> Tensor:
            return self.body(ids) - self.cuts

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            model(batch["ids"]), (batch["labels"][:, None] > torch.arange(3)).float()
        )

    return fit(seeded(Own), markers, loss)


def control_poisson_counts() -> Case:
    """Counts by a Poisson loss on the logarithm of the rate: losses below zero are right."""

    def counted(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for b in records(count, seed):
            rate = torch.exp(1.5 + 0.4 * b["value"])
            found.append({"columns": b["columns"], "value": torch.poisson(rate, generator=numbers(seed + 3))})
        return found

    return fit(seeded(Table), counted, lambda model, b: F.poisson_nll_loss(model(b["columns"]), b["value"]))


def control_quantiles() -> Case:
    """Three quantiles of each forecast by the pinball loss."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error = batch["future"][..., None] - model(batch["past"]).unflatten(-1, (8, 3))
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return fit(seeded(lambda: Forecaster(out=24)), series, loss)


def control_density_below_zero() -> Case:
    """A Gaussian likelihood with learned spread on a small scale: the loss is negative when it is good."""

    def small(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{name: column / 20 for name, column in b.items()} for b in series(count, seed, level=1.0)]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        mean, spread = model(batch["past"]).chunk(2, dim=-1)
        return F.gaussian_nll_loss(mean, batch["future"], F.softplus(spread) + 1e-4)

    return fit(seeded(lambda: Forecaster(out=16)), small, loss, lr=1e-3)


def control_log_cosh() -> Case:
    """Regression with the logarithm of the hyperbolic cosine and a few wild targets."""

    def wild(count: int = 24, seed: int = 0) -> list[Batch]:
        found = records(count, seed)
        for b in found if seed != HELD_OUT else []:
            b["value"] = b["value"].clone()
            b["value"][0] = 15.0
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error = model(batch["columns"]) - batch["value"]
        return (error + F.softplus(-2 * error) - 0.6931).mean()

    return fit(seeded(Table), wild, loss, judge=number)


def control_sigmoid_pairs() -> Case:
    """SigLIP: every pair is a binary question, with a learned temperature and a bias that begins at -10."""

    class Own(Tower):
        def __init__(self) -> None:
            super().__init__()
            self.t, self.b = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))

    def loss(model: Any, batch: Batch) -> Tensor:
        one, two = (F.normalize(model(batch[side]), dim=-1) for side in ("one", "two"))
        scores = one @ two.T * model.t.exp() + model.b
        return -F.logsigmoid(scores * (2 * torch.eye(len(one)) - 1)).sum() / len(one)

    return fit(seeded(Own), topics, loss)


def control_redundancy_reduction() -> Case:
    """Barlow twins: features are normalized over the batch, and the loss mixes examples."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        one, two = (model(batch[side]) for side in ("one", "two"))
        one, two = ((z - z.mean(dim=0)) / (z.std(dim=0) + 1e-4) for z in (one, two))
        found = one.T @ two / len(one)
        diagonal = torch.diagonal(found)
        return ((1 - diagonal) ** 2).sum() / 32 + 0.02 * ((found**2).sum() - (diagonal**2).sum()) / 32

    return fit(seeded(Tower), topics, loss)


def control_preferences_against_a_reference() -> Case:
    """DPO: policy and frozen reference are equal at first, so that the first loss is log 2 for every pair."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = trained("gpt")
            self.reference = frozen(copy.deepcopy(self.policy))

        def forward(self, ids: Tensor) -> Tensor:
            own, fixed = (-F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none").sum(dim=1)
                          for net in (self.policy, self.reference))  # fmt: skip
            return 0.1 * (own - fixed)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return -F.logsigmoid(model(batch["chosen"]) - model(batch["rejected"])).mean()

    return fit(seeded(Pair), preferred, loss, lr=1e-3)


def control_policy_gradient_with_baseline() -> Case:
    """REINFORCE with sampled actions and an entropy bonus: the loss hops around zero while the policy learns."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        policy, action, reward = bandit(model, batch)
        return -((reward - reward.mean()) * policy.log_prob(action)).mean() - 0.01 * policy.entropy().mean()

    return fit(seeded(lambda: Encoder(pooled=True)), markers, loss, judge=sentence)


def control_codes_with_straight_through() -> Case:
    """Vector quantization done right: the forward pass jumps, the gradient is copied over the jump."""

    class Own(Vit):
        def __init__(self) -> None:
            super().__init__(layers=1)
            self.codes = nn.Embedding(48, 32)

        def forward(self, images: Tensor) -> Tensor:
            states = self.states(images)
            code = self.codes(torch.cdist(states, self.codes.weight).argmin(dim=-1))
            self.pull = F.mse_loss(code, states.detach()) + 0.25 * F.mse_loss(states, code.detach())
            return self.head(states + (code - states).detach())

    def loss(model: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["images"]), batch["labels"]) + model.pull

    return fit(seeded(Own), digits, loss, judge=image)


def control_two_passes_agree() -> Case:
    """R-Drop: two passes with dropout, and a divergence that draws them together."""

    class Own(Vit):
        def forward(self, images: Tensor) -> Tensor:
            return self.head(F.dropout(self.states(images), 0.3, self.training))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        one, two = (model(batch["images"]).log_softmax(-1) for _ in range(2))
        apart = F.kl_div(one, two, log_target=True, reduction="batchmean") + F.kl_div(
            two, one, log_target=True, reduction="batchmean"
        )
        return F.nll_loss(one, batch["labels"]) + F.nll_loss(two, batch["labels"]) + apart

    return fit(seeded(Own), digits, loss, judge=image)


def control_batches_of_one() -> Case:
    """One example per batch, under plain gradient descent."""

    def single(count: int = 96, seed: int = 0) -> list[Batch]:
        return split(
            count if seed != HELD_OUT else 4,
            **{k: torch.cat([b[k] for b in language(6, seed)]) for k in ("ids",)},
        )

    net = seeded(Gpt)
    return fit(net, single, next_word, batches=single(), optimizer=sgd(net, 0.1, 0.9))


def control_lengths_change_with_the_batch() -> Case:
    """Batches of different length and number of rows, as buckets make them."""

    def buckets(count: int = 24, seed: int = 0) -> list[Batch]:
        return [
            {"ids": b["ids"][: 4 + 3 * (i % 5), : 6 + 4 * (i % 4)]}
            for i, b in enumerate(language(count, seed))
        ]

    return fit(seeded(Llama), buckets, next_word)


def control_restarts_from_zero() -> Case:
    """A rate that begins at zero and comes back to it every thirty steps."""
    net = seeded(Gpt)
    optimizer = torch.optim.AdamW(net.parameters(), lr=6e-3)
    cycle = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (k % 30) / 30)
    return fit(
        net,
        language,
        next_word,
        optimizer=optimizer,
        step=plain(next_word, after=lambda k: cycle.step()),
        also=[cycle],
    )


def control_orthogonal_updates() -> Case:
    """A Muon of our own: the momentum of matrices is made orthogonal, vectors get the sign of their gradient."""

    class Muon(torch.optim.Optimizer):
        def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
            super().__init__(weights, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # noqa: ARG002
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is None:
                        continue
                    mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                    mean.mul_(0.9).add_(weight.grad)
                    if weight.dim() == 2:
                        u, _, v = torch.linalg.svd(mean, full_matrices=False)
                        weight.sub_(u @ v, alpha=group["lr"])
                    else:
                        weight.sub_(mean.sign(), alpha=group["lr"] / 10)

    net = seeded(Gpt)
    return fit(net, language, next_word, optimizer=Muon(list(net.parameters()), 0.03))


def control_sharpness_aware() -> Case:
    """SAM: climb, take the gradient, come back, step."""
    net = seeded(Vit)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        image(model, batch).backward()
        own = [weight for weight in model.parameters() if weight.grad is not None]
        length = torch.stack([weight.grad.norm() for weight in own]).norm()
        climbs = [0.05 * weight.grad / length for weight in own]
        before = [weight.detach().clone() for weight in own]
        with torch.no_grad():
            for weight, climb in zip(own, climbs, strict=True):
                weight.add_(climb)
        optimizer.zero_grad()
        found = image(model, batch)
        found.backward()
        with torch.no_grad():
            for weight, old in zip(own, before, strict=True):
                weight.copy_(old)
        optimizer.step()
        return found.detach()

    return fit(net, digits, image, step=step)


def control_two_optimizers() -> Case:
    """Embedding and readout by plain descent, the rest by Adam, in one loop; gradients get a little noise."""
    net = seeded(Gpt)
    edge = [weight for name, weight in net.named_parameters() if name.startswith(("tok", "head"))]
    rest = [weight for name, weight in net.named_parameters() if not name.startswith(("tok", "head"))]
    second = torch.optim.SGD(edge, lr=0.5, momentum=0.9)

    def noise(_: int) -> None:
        for weight in rest:
            if weight.grad is not None:
                weight.grad += 1e-4 * torch.randn_like(weight)
        second.step()
        second.zero_grad()

    return fit(
        net,
        language,
        next_word,
        optimizer=torch.optim.AdamW(rest, lr=3e-3),
        step=plain(next_word, before=noise),
        also=[second],
    )


def control_averaged_weights_beside() -> Case:
    """An average of the weights is kept beside the training by `swa_utils`, and never used in it."""
    net = seeded(lambda: Encoder(pooled=True))
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    step = plain(sentence, after=lambda k: average.update_parameters(net))
    return fit(net, markers, sentence, step=step, also=[average])


def control_blank_at_the_end() -> Case:
    """CTC with the blank as the last class, two frames to one state."""

    class Own(Speech):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv1d(12, 32, 3, stride=2, padding=1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch["sound"]).log_softmax(dim=-1).transpose(0, 1)
        lengths = torch.full((scores.shape[1],), scores.shape[0])
        return F.ctc_loss(scores, batch["letters"] - 1, lengths, batch["sizes"], blank=8)

    return fit(seeded(Own), spoken, loss)


def control_spans_with_t5() -> Case:
    """T5 fills gaps: sentinels in the source, few words in the target, most of it ignored."""

    def gaps(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for b in language(count, seed, length=12):
            source = b["ids"].clone()
            source[:, 5:7] = MASK
            labels = torch.full((tasks.ROWS, 6), -100)
            labels[:, :2], labels[:, 2] = b["ids"][:, 5:7], EOS
            found.append({"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels})
        return found

    small = dict(
        vocab_size=VOCAB,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=PAD,
        initializer_factor=1.0,
    )
    return fit(
        seeded(lambda: hugging("T5ForConditionalGeneration", "T5Config", **small)), gaps, None, lr=5e-3
    )


def control_bart_translates() -> Case:
    """BART: one embedding for encoder, decoder and readout, and a bias of the logits that is a buffer."""

    def prepared(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for b in phrases(count, seed):
            labels = b["target"][:, 1:].masked_fill(b["target"][:, 1:] == PAD, -100)
            words = {"input_ids": b["source"], "attention_mask": (b["source"] != PAD).long()}
            found.append({**words, "decoder_input_ids": b["target"][:, :-1], "labels": labels})
        return found

    small = dict(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        dropout=0.0,
        init_std=0.1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    return fit(
        seeded(lambda: hugging("BartForConditionalGeneration", "BartConfig", **small)),
        prepared,
        None,
        lr=5e-3,
    )


def control_replaced_words() -> Case:
    """ELECTRA: which words were replaced? Four of five labels are zero, and the words themselves are not predicted."""

    def replaced(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(language(count, seed)):
            stream = numbers(300 * seed + i)
            other = torch.randint(FIRST, VOCAB, b["ids"].shape, generator=stream)
            swap = torch.rand(b["ids"].shape, generator=stream) < 0.2
            ids = torch.where(swap, other, b["ids"])
            found.append(
                {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids != b["ids"]).long()}
            )
        return found

    small = dict(SMALL, embedding_size=16, initializer_range=0.15)
    return fit(
        seeded(lambda: hugging("ElectraForPreTraining", "ElectraConfig", **small)), replaced, None, lr=5e-3
    )


def control_mixed_images() -> Case:
    """Mixup as it is meant."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(0.7 * batch["images"] + 0.3 * batch["images"].flip(0))
        return 0.7 * F.cross_entropy(logits, batch["labels"]) + 0.3 * F.cross_entropy(
            logits, batch["labels"].flip(0)
        )

    return fit(seeded(Vit), digits, loss, judge=image)


def control_distance_readout() -> Case:
    """Prototypes: logits are minus squared distances to class centers, never above zero."""

    class Own(Vit):
        def forward(self, images: Tensor) -> Tensor:
            return -torch.cdist(self.states(images), self.head.weight).square() / 4

    net = seeded(Own)
    net.head.bias = None
    return fit(net, digits, image)


def control_summed_loss_small_rate() -> Case:
    """Losses are summed over 300 words, and the rate of plain descent is small to match."""
    net = seeded(Gpt)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(
            model(batch["ids"][:, :-1]).flatten(0, 1), batch["ids"][:, 1:].flatten(), reduction="sum"
        )

    return fit(net, language, loss, judge=next_word, optimizer=sgd(net, 3e-4, 0.9))


def control_topic_vectors() -> Case:
    """Texts against 32 learned topic vectors, of which a batch of 16 uses half."""

    class Own(Tower):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(32, 32))

    def loss(model: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(
            F.normalize(model(batch["one"]), dim=-1) @ F.normalize(model.centers, dim=-1).T * 12,
            batch["topic"],
        )

    return fit(seeded(Own), topics, loss)


def control_forecast_of_changes() -> Case:
    """The model predicts changes, and the last value is added on the way out; its readout begins at zero."""

    class Own(Forecaster):
        def forward(self, past: Tensor) -> Tensor:
            return past[:, -1:] + self.raw(past - past[:, -1:])

    def make() -> nn.Module:
        net = Own()
        nn.init.zeros_(net.read.weight)
        return net

    return fit(seeded(make), series, forecast)


def control_late_teacher() -> Case:
    """Self-distillation against a moving average of the student, which is a copy of it at first."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = Tower()
            self.guess = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
            self.teacher = frozen(copy.deepcopy(self.student))

    def loss(model: Any, batch: Batch) -> Tensor:
        with torch.no_grad():
            goal = model.teacher(batch["two"])
        return 1 - F.cosine_similarity(model.guess(model.student(batch["one"])), goal).mean()

    net: Any = seeded(Own)

    def follow(_: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(net.teacher.parameters(), net.student.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

    return fit(net, topics, loss, step=plain(loss, after=follow))


def control_nearest_with_many_negatives() -> Case:
    """InfoNCE with old texts kept as further negatives, whose vectors have no gradient and begin as noise."""
    bank = F.normalize(torch.randn(64, 32, generator=numbers(44)), dim=-1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        one, two = (F.normalize(model(batch[side]), dim=-1) for side in ("one", "two"))
        return F.cross_entropy(torch.cat([one @ two.T, one @ bank.T], dim=1) / 0.1, torch.arange(len(one)))

    return fit(seeded(Tower), topics, loss, judge=nearest)
