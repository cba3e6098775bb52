"""Fourth blind list: unusual but healthy trainings; every error or warning of the check is false here."""
# ruff: noqa: E501, ARG001

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from experiments.preflight.blind_four_data import (
    HELD,
    adamw,
    blobs,
    chain,
    encoder,
    gratings,
    keyed,
    later,
    marked,
    patches,
    series,
    source,
    tones,
    training,
    warm,
)

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}


def entropy(logits: Tensor, target: Tensor, **rest) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), **rest)


class Words(nn.Module):
    """A classifier of sentences on PyTorch's encoder."""

    def __init__(self, classes: int = 4, vocab: int = 40, width: int = 32, **rest) -> None:
        super().__init__()
        self.embed, self.encode = nn.Embedding(vocab, width), encoder(width, **rest)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.encode(self.embed(words), src_key_padding_mask=padding)
        if padding is None:
            return self.head(x.mean(1))
        kept = (~padding).float()[..., None]
        return self.head((x * kept).sum(1) / kept.sum(1))


class Causal(nn.Module):
    """A language model on PyTorch's encoder."""

    def __init__(self, vocab: int = 32, width: int = 32, layers: int = 2, **rest) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, width), nn.Parameter(0.02 * torch.randn(40, width))
        self.encode, self.norm, self.head = (
            encoder(width, layers, **rest),
            nn.LayerNorm(width),
            nn.Linear(width, vocab),
        )

    def body(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.norm(self.encode(self.embed(words) + self.place[: words.shape[1]], mask, is_causal=True))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.body(words))


def next_word(m: nn.Module, x: Tensor) -> Tensor:
    return entropy(m(x)[:, :-1], x[:, 1:])


def labeled(m: nn.Module, batch: tuple) -> Tensor:
    return F.cross_entropy(m(*batch[:-1]), batch[-1])


def control_left_padded_rows() -> dict:
    """Rows padded on the left with their position ids, as for generation."""
    model = hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=34, n_embd=32, n_layer=2, n_head=4, n_positions=32, **STILL)
    )

    def stream(k: int, rows: int = 24) -> dict:
        words = chain(k, rows)
        empty = torch.randint(0, 12, (rows, 1), generator=source(k))
        real = torch.arange(24) >= empty
        labels = torch.where(real, words, -100)
        first = real & ~F.pad(real, (1, 0))[:, :-1]
        labels[first] = -100
        places = (real.cumsum(1) - 1).clamp(min=0)
        return {
            "input_ids": torch.where(real, words, 33),
            "attention_mask": real.long(),
            "position_ids": places,
            "labels": labels,
        }

    return training(model, stream, lambda m: float(m(**stream(HELD, 96)).loss), optimizer=adamw(model, 3e-3))


def control_mostly_padding_on_the_right() -> dict:
    """Short sentences in long rows: three quarters of all positions are padding, masked everywhere."""
    model = Words()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor, Tensor]:
        words, label = marked(k, rows, length=10)
        long = F.pad(words, (0, 30))
        return long, (torch.arange(40) >= 10).expand(rows, -1), label

    return training(
        model, stream, lambda m: float(labeled(m, stream(HELD, 128))), loss=labeled, optimizer=adamw(model)
    )


def control_packed_documents() -> dict:
    """Several documents in a row, a block-diagonal mask, positions that start again, the first word not asked for."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(32, 32), nn.Embedding(24, 32)
            self.encode, self.head = encoder(), nn.Linear(32, 32)

        def forward(self, words: Tensor, document: Tensor) -> Tensor:
            at = torch.arange(24)
            start = (document[:, None] == document[..., None]).int().argmax(-1)
            closed = (document[:, None] != document[..., None]) | (at[None] > at[:, None])
            x = self.embed(words) + self.place(at - start)
            return self.head(self.encode(x, closed.repeat_interleave(4, 0)))

    model = Packed()

    def stream(k: int, rows: int = 24) -> tuple[Tensor, Tensor, Tensor]:
        words = torch.cat([chain(k, rows, 9), chain(k + 7, rows, 8), chain(k + 13, rows, 7)], 1)
        document = torch.tensor([0] * 9 + [1] * 8 + [2] * 7).expand(rows, -1)
        labels = F.pad(words[:, 1:], (0, 1), value=-100).clone()
        labels[:, [8, 16]] = -100
        return words, document, labels

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return entropy(m(*batch[:2]), batch[2])

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_heavy_label_smoothing() -> dict:
    model = hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(
            vocab_size=40, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32, dropout=0.0,
            attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=4,
        )
    )  # fmt: skip

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(input_ids=batch[0]).logits, batch[1], label_smoothing=0.2)

    return training(
        model, marked, lambda m: float(loss(m, marked(HELD, 128))), loss=loss, optimizer=adamw(model)
    )


def control_rare_labels_with_a_prior_bias() -> dict:
    """Eight labels at once, each true in 4 %; the bias of the head starts at their log-odds (as in RetinaNet)."""
    model = Words(classes=8)
    nn.init.constant_(model.head.bias, math.log(0.04 / 0.96))

    def stream(k: int, rows: int = 64) -> tuple[Tensor, Tensor]:
        draw = source(k)
        words = torch.randint(8, 40, (rows, 12), generator=draw)
        target = (torch.rand(rows, 8, generator=draw) < 0.04).float()
        for n, kind in target.nonzero().tolist():
            words[n, kind] = kind
        return words, target

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1])

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model, 4e-3)
    )


def control_robust_regression() -> dict:
    """Huber loss on standardized targets of a time series in patches."""

    class Patched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.place = nn.Linear(5, 32), nn.Parameter(0.1 * torch.randn(8, 32))
            self.encode, self.head = encoder(), nn.Linear(256, 4)

        def forward(self, past: Tensor) -> Tensor:
            return self.head(self.encode(self.inlet(past.view(-1, 8, 5)) + self.place).flatten(1))

    model = Patched()

    def loss(m: nn.Module, waves: Tensor) -> Tensor:
        return F.huber_loss(m(waves[:, :40]), waves[:, 40:], delta=0.5)

    def stream(k: int, rows: int = 32) -> Tensor:
        return series(k, rows, 44)

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, optimizer=adamw(model)
    )


def control_in_batch_negatives() -> dict:
    """Two views of a sentence, one tower, every other row a negative, temperature 0.05."""
    model = Words(classes=32)

    def stream(k: int, rows: int = 24) -> Tensor:
        draw = source(k)
        bag = torch.randint(0, 40, (rows, 8), generator=draw)
        return torch.stack(
            [bag.gather(1, torch.rand(rows, 8, generator=draw).argsort(1)[:, :6]) for _ in range(2)]
        )

    def loss(m: nn.Module, pair: Tensor) -> Tensor:
        one, two = (F.normalize(m(words), dim=-1) for words in pair)
        scores, own = one @ two.mT / 0.05, torch.arange(len(one))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 24))), loss=loss, optimizer=adamw(model, 1e-3)
    )


def control_teacher_and_student() -> dict:
    """A small student, softened targets of a trained teacher (temperature 2) and one tenth of the true labels."""
    teacher = Words(width=48)
    warm(teacher, lambda m, k: labeled(m, marked(k + 300)), 60)
    teacher.requires_grad_(False).eval()
    model = Words(width=16, layers=1)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        with torch.no_grad():
            soft = (teacher(batch[0]) / 2).softmax(-1)
        out = m(batch[0])
        return 0.9 * 4 * F.kl_div(
            (out / 2).log_softmax(-1), soft, reduction="batchmean"
        ) + 0.1 * F.cross_entropy(out, batch[1])

    return training(
        model, marked, lambda m: float(labeled(m, marked(HELD, 128))), loss=loss, optimizer=adamw(model, 4e-3)
    )


def control_average_of_weights() -> dict:
    """An exponential average beside the training, updated after each step and never used in it."""
    model = Causal()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        o.zero_grad()
        value = next_word(m, batch)
        value.backward()
        o.step()
        average.update_parameters(m)
        return value

    return training(
        model, chain, lambda m: later(m, chain(HELD, 96)), loss=next_word, step=step, also=[average],
        optimizer=adamw(model, 3e-3),
    )  # fmt: skip


def control_normed_queries_and_keys() -> dict:
    """Qwen3 (norms on queries and keys), grouped heads, tied readout."""
    model = hf.Qwen3ForCausalLM(
        hf.Qwen3Config(
            vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
        )
    )  # fmt: skip

    def stream(k: int, rows: int = 32) -> dict:
        words = chain(k, rows)
        return {"input_ids": words, "labels": words}

    return training(model, stream, lambda m: float(m(**stream(HELD, 96)).loss), optimizer=adamw(model, 4e-3))


def control_mixtral() -> dict:
    """Two of four experts, with the balance loss of the library."""
    model = hf.MixtralForCausalLM(
        hf.MixtralConfig(
            vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
            router_aux_loss_coef=0.01, max_position_embeddings=32,
        )
    )  # fmt: skip

    def stream(k: int, rows: int = 16) -> dict:
        words = chain(k, rows)
        return {"input_ids": words, "labels": words}

    return training(model, stream, lambda m: float(m(**stream(HELD, 64)).loss), optimizer=adamw(model, 4e-3))


def control_prefix_tuning() -> dict:
    """Learned keys and values before each frozen block's own; the body was trained a little on many keys."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.two = nn.LayerNorm(48), nn.LayerNorm(48)
            self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)
            self.mlp = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))

        def forward(self, x: Tensor, before: Tensor | None) -> Tensor:
            rows, length, _ = x.shape
            q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, 4, 12).permute(2, 0, 3, 1, 4)
            allowed = torch.ones(length, length).tril().bool()
            if before is not None:
                more = before.view(2, 1, 4, -1, 12).expand(2, rows, -1, -1, -1)
                k, v = torch.cat([more[0], k], 2), torch.cat([more[1], v], 2)
                allowed = F.pad(allowed, (more.shape[3], 0), value=True)
            y = F.scaled_dot_product_attention(q, k, v, allowed).transpose(1, 2).reshape(rows, length, 48)
            x = x + self.out(y)
            return x + self.mlp(self.two(x))

    class Prefixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(64, 48), nn.Embedding(16, 48)
            self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(48, 64)
            self.prefix: nn.Parameter | None = None

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words) + self.place.weight[: words.shape[1]]
            for n, block in enumerate(self.blocks):
                x = block(x, None if self.prefix is None else self.prefix[n])
            return self.head(x)

    model = Prefixed()

    def text(k: int, rows: int = 32) -> Tensor:
        return torch.cat(keyed(k, rows, prompt=3), 1)

    warm(model, lambda m, k: entropy(m(text(k))[:, 2:-1], text(k)[:, 3:]), 80)
    model.requires_grad_(False)
    model.prefix = nn.Parameter(0.3 * torch.randn(2, 2, 4, 5, 12))

    def stream(k: int, rows: int = 32) -> Tensor:
        ask = torch.randint(40, 60, (rows, 3), generator=source(k))
        return torch.cat([ask, keyed(2, 1)[1].expand(rows, -1)], 1)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return entropy(m(x)[:, 2:-1], x[:, 3:])

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD))), loss=loss,
        optimizer=torch.optim.AdamW([model.prefix], 3e-2),
    )  # fmt: skip


def control_short_rows_first() -> dict:
    """Curriculum: the rows grow from 6 to 24 tokens."""
    model = Causal()

    def stream(k: int) -> Tensor:
        return chain(k)[:, : min(24, 6 + 3 * (k // 2))]

    return training(
        model, stream, lambda m: later(m, chain(HELD, 96)), loss=next_word, optimizer=adamw(model, 3e-3)
    )


def control_one_class_in_fifty() -> dict:
    """A rare class with its weight in the loss."""
    model = Words(classes=2)

    def stream(k: int, rows: int = 64) -> tuple[Tensor, Tensor]:
        words = torch.randint(1, 40, (rows, 12), generator=source(k))
        label = (torch.rand(rows, generator=source(k + 1)) < 0.04).long()
        words[label == 1, 4] = 0
        return words, label

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1], weight=torch.tensor([1.0, 20.0]))

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 512))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_two_rows_a_batch() -> dict:
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32,
        )
    )  # fmt: skip

    def stream(k: int, rows: int = 2) -> dict:
        words = chain(k, rows)
        return {"input_ids": words, "labels": words}

    return training(model, stream, lambda m: float(m(**stream(HELD, 96)).loss), optimizer=adamw(model, 2e-3))


def control_weighted_actions() -> dict:
    """REINFORCE: the log-probability of drawn actions times rewards of both signs, less their mean; the loss is near 0."""
    model = Words(classes=4)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        log = m(batch[0]).log_softmax(-1)
        action = torch.multinomial(log.detach().exp(), 1)
        reward = (action[:, 0] == batch[1]).float()
        return -((reward - reward.mean()) * log.gather(1, action)[:, 0]).mean()

    def stream(k: int, rows: int = 128) -> tuple[Tensor, Tensor]:
        return marked(k, rows)

    return training(
        model, stream, lambda m: float(labeled(m, marked(HELD, 256))), loss=loss, optimizer=adamw(model, 2e-3)
    )


def control_masked_language() -> dict:
    """A sixth of the words hidden; eight in ten of them by [MASK], one random, one left; labels only there."""
    model = hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=34, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=32, **QUIET,
        )
    )  # fmt: skip

    def stream(k: int, rows: int = 48) -> dict:
        words, draw = chain(k, rows), source(k)
        chosen = torch.rand(words.shape, generator=draw) < 0.16
        labels = torch.where(chosen, words, -100)
        kind = torch.rand(words.shape, generator=draw)
        shown = torch.where(chosen & (kind < 0.8), 33, words)
        other = torch.randint(0, 32, words.shape, generator=draw)
        return {"input_ids": torch.where(chosen & (kind > 0.9), other, shown), "labels": labels}

    return training(model, stream, lambda m: float(m(**stream(HELD, 192)).loss), optimizer=adamw(model, 4e-3))


def control_noise_prediction() -> dict:
    """Diffusion: fresh noise and times at each step, the outlet starts at zero."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.outlet = nn.Linear(48, 48), encoder(48), nn.Linear(48, 48)
            self.place, self.when = nn.Parameter(0.1 * torch.randn(16, 48)), nn.Embedding(40, 48)
            nn.init.zeros_(self.outlet.weight)
            nn.init.zeros_(self.outlet.bias)

        def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
            return self.outlet(self.encode(self.inlet(noisy) + self.place + self.when(time)[:, None]))

    model = Denoiser()
    kept = (1 - torch.linspace(0.002, 0.2, 40)).cumprod(0)

    def loss(m: nn.Module, cut: Tensor) -> Tensor:
        time, noise = torch.randint(0, 40, (len(cut),)), torch.randn_like(cut)
        share = kept[time][:, None, None]
        return F.mse_loss(m(share.sqrt() * cut + (1 - share).sqrt() * noise, time), noise)

    def stream(k: int, rows: int = 32) -> Tensor:
        return 3 * (patches(gratings(k, rows)[0]) - 0.5)

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 192))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_bfloat16_autocast() -> dict:
    model = hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
            patch_size=4, num_labels=4, **QUIET,
        )
    )  # fmt: skip

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = m(pixel_values=batch[0]).logits
        return F.cross_entropy(out.float(), batch[1])

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, label = gratings(k, rows)
        return 4 * (image - 0.5), label

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96))), loss=loss, optimizer=adamw(model)
    )


def control_accumulation_with_clipping() -> dict:
    """Four parts a batch, each divided by four, clipped once before the step, cosine over the run."""
    model = Causal()
    optimizer = adamw(model, 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        o.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for part in batch.chunk(4):
            value = next_word(m, part) / 4
            value.backward()
            total += value.detach()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        schedule.step()
        return total

    return training(
        model, chain, lambda m: later(m, chain(HELD, 96)), loss=next_word, step=step, also=[schedule],
        optimizer=optimizer,
    )  # fmt: skip


def control_rate_from_zero() -> dict:
    """Linear warm-up whose first rate is exactly zero, as in transformers."""
    model = Words(first=False)
    optimizer = adamw(model, 3e-3)
    schedule = hf.get_linear_schedule_with_warmup(optimizer, 20, 400)

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: tuple, k: int) -> Tensor:
        value = labeled(m, batch)
        value.backward()
        o.step()
        schedule.step()
        o.zero_grad()
        return value

    return training(
        model, marked, lambda m: float(labeled(m, marked(HELD, 128))), loss=labeled, step=step, also=[schedule],
        optimizer=optimizer,
    )  # fmt: skip


def control_cosine_restarts() -> dict:
    model = Causal(width=40)
    optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 15, 2)

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        o.zero_grad()
        value = next_word(m, batch)
        value.backward()
        o.step()
        schedule.step()
        return value

    return training(
        model, chain, lambda m: later(m, chain(HELD, 96)), loss=next_word, step=step, also=[schedule],
        optimizer=optimizer,
    )  # fmt: skip


def control_frozen_vision_linear_probe() -> dict:
    """A body trained on angles is frozen and in eval; only the head learns, on the same images with other names."""
    body = hf.ViTModel(
        hf.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
            patch_size=4, **QUIET,
        ),
        add_pooling_layer=False,
    )  # fmt: skip

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(32, 4)

        def forward(self, image: Tensor) -> Tensor:
            return self.head(self.body(pixel_values=4 * (image - 0.5)).last_hidden_state[:, 0])

    model = Probe()
    warm(model, lambda m, k: labeled(m, gratings(k + 400)), 60)
    model.body.requires_grad_(False).eval()
    model.head = nn.Linear(32, 4)

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        image, label = gratings(k, rows)
        return image, (3 - label) % 4

    return training(
        model,
        stream,
        lambda m: float(labeled(m, stream(HELD, 128))),
        loss=labeled,
        optimizer=adamw(model, 1e-2),
    )


def control_bottleneck_adapters() -> dict:
    """A lightly trained encoder, frozen but for its norms and small adapters that start as the identity."""

    class Adapter(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer, self.down, self.up = layer, nn.Linear(32, 8), nn.Linear(8, 32)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return x + self.up(F.gelu(self.down(x)))

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layers, self.head = nn.Embedding(40, 32), encoder().layers, nn.Linear(32, 4)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words)
            for layer in self.layers:
                x = layer(x)
            return self.head(x.amax(1))

    model = Sentences()
    warm(model, lambda m, k: labeled(m, marked(k + 600)), 50)
    model.requires_grad_(False)
    model.layers = nn.ModuleList(Adapter(layer) for layer in model.layers)
    model.head.requires_grad_(True)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.requires_grad_(True)

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        words, label = marked(k, rows)
        return words, (label + 1) % 4

    return training(
        model,
        stream,
        lambda m: float(labeled(m, stream(HELD, 128))),
        loss=labeled,
        optimizer=adamw(model, 4e-3),
    )


def control_whole_body_lightly_trained() -> dict:
    """Fine-tuning at a small rate of a body that already knows most of the task, with layer-wise rates."""
    model = Causal(layers=3)
    warm(model, lambda m, k: next_word(m, chain(k + 800, step=5)), 70)
    groups = [{"params": list(model.head.parameters()) + list(model.norm.parameters()), "lr": 1e-3}]
    groups += [
        {"params": list(layer.parameters()), "lr": 1e-3 * 0.6 ** (3 - n)}
        for n, layer in enumerate(model.encode.layers)
    ]
    groups += [{"params": [*model.embed.parameters(), model.place], "lr": 1e-4}]
    return training(
        model, lambda k: chain(k, step=7), lambda m: later(m, chain(HELD, 96, step=7)), loss=next_word,
        optimizer=torch.optim.AdamW(groups, weight_decay=0.01),
    )  # fmt: skip


def control_tied_bart() -> dict:
    """Sequence to sequence with everything tied, question and answer padded to different lengths."""
    model = hf.BartForConditionalGeneration(
        hf.BartConfig(
            vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, dropout=0.0,
            bos_token_id=61, pad_token_id=62, eos_token_id=63, decoder_start_token_id=63, forced_eos_token_id=63,
        )
    )  # fmt: skip

    def stream(k: int, rows: int = 32) -> dict:
        ask, reply = keyed(k, rows, prompt=6)
        size = torch.randint(0, 4, (rows, 1), generator=source(k))
        ask = torch.cat([ask, torch.full((rows, 3), 62)], 1)
        more = torch.arange(9) < 6 + size
        ask = torch.where(more & (ask == 62), 45, ask)
        labels = torch.cat([reply, torch.full((rows, 1), 63), torch.full((rows, 2), -100)], 1)
        return {"input_ids": ask, "attention_mask": more.long(), "labels": labels}

    return training(model, stream, lambda m: float(m(**stream(HELD, 96)).loss), optimizer=adamw(model, 4e-3))


def control_speech_with_ctc() -> dict:
    """Speech: strided convolutions, the lengths of their output, blank 0, frames masked at random in training."""

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(nn.Conv1d(1, 32, 16, 8), nn.GELU(), nn.Conv1d(32, 32, 4, 2), nn.GELU())
            self.encode, self.head = encoder(), nn.Linear(32, 5)

        def forward(self, sound: Tensor) -> Tensor:
            x = self.front(sound[:, None]).mT
            if self.training:
                x = x * (torch.rand(x.shape[:2]) > 0.08)[..., None]
            return self.head(self.encode(x)).log_softmax(-1).transpose(0, 1)

    model = Speech()

    def stream(k: int, rows: int = 16) -> tuple[Tensor, Tensor]:
        one, two = tones(2 * k, rows, 112), tones(2 * k + 1, rows, 112)
        return torch.cat([one[0], two[0]], 1), 1 + torch.stack([one[1], two[1]], 1)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        out = m(batch[0])
        rows = len(batch[0])
        return F.ctc_loss(
            out, batch[1], torch.full((rows,), len(out)), torch.full((rows,), 2), zero_infinity=True
        )

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 64))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_quantiles() -> dict:
    """Three quantiles of the next value with the pinball loss; a series with its level taken off and put back."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.head = nn.Linear(1, 32), encoder(), nn.Linear(32, 3)
            self.place = nn.Parameter(0.1 * torch.randn(24, 32))

        def forward(self, past: Tensor) -> Tensor:
            level = past[:, -1:]
            return level + self.head(self.encode(self.inlet((past - level)[..., None]) + self.place)[:, -1])

    model = Forecast()

    def stream(k: int, rows: int = 32) -> Tensor:
        return series(k, rows, 25) + 4 * torch.randn(rows, 1, generator=source(k + 2))

    def loss(m: nn.Module, waves: Tensor) -> Tensor:
        error = waves[:, 24:] - m(waves[:, :24])
        share = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(share * error, (share - 1) * error).mean()

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_masked_images() -> dict:
    """Masked autoencoder with three quarters hidden and a loss on the hidden patches only."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.encode, self.decode = nn.Linear(48, 48), encoder(48), encoder(48, 1)
            self.place = nn.Parameter(0.2 * torch.randn(16, 48))
            self.blank, self.outlet = nn.Parameter(0.02 * torch.randn(48)), nn.Linear(48, 48)

        def forward(self, cut: Tensor) -> Tensor:
            rows = len(cut)
            order = torch.rand(rows, 16).argsort(1)
            seen = (self.inlet(cut) + self.place).gather(1, order[:, :4, None].expand(-1, -1, 48))
            x = torch.cat([self.encode(seen), self.blank.expand(rows, 12, 48)], 1)
            x = x.gather(1, order.argsort(1)[..., None].expand(-1, -1, 48))
            hidden = torch.zeros(rows, 16).scatter(1, order[:, 4:], 1.0)
            out = self.outlet(self.decode(x + self.place))
            return ((out - cut).square().mean(-1) * hidden).sum() / hidden.sum()

    model = Masked()

    def stream(k: int, rows: int = 32) -> Tensor:
        return 3 * (patches(gratings(k, rows)[0]) - 0.5)

    return training(
        model,
        stream,
        lambda m: float(m(stream(HELD, 128))),
        loss=lambda m, x: m(x),
        optimizer=adamw(model, 4e-3),
    )


def control_boxes_and_classes() -> dict:
    """Two tasks: the class by cross-entropy and the box by L1 in shares of the image, weight 5 as in DETR."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.place = nn.Conv2d(3, 32, 4, 4), nn.Parameter(0.1 * torch.randn(16, 32))
            layer = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
            self.decode, self.query = nn.TransformerDecoder(layer, 2), nn.Parameter(torch.randn(1, 32))
            self.kind, self.box = nn.Linear(32, 2), nn.Linear(32, 4)

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            memory = self.stem(image).flatten(2).mT + self.place
            x = self.decode(self.query.expand(len(image), 1, 32), memory)[:, 0]
            return self.kind(x), self.box(x).sigmoid()

    model = Detector()

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor, Tensor]:
        image, row, column = blobs(k, rows)
        box = torch.stack([column, row, column + 1, row + 1], 1) / 4
        return image, (row > 1).long(), box

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        kind, box = m(batch[0])
        return F.cross_entropy(kind, batch[1]) + 5 * F.l1_loss(box, batch[2])

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96))), loss=loss, optimizer=adamw(model, 3e-3)
    )


def control_stop_gradient_twins() -> dict:
    """Self-supervision: a predictor on one view, the other view's average tower without gradient, cosine distance."""

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = Words(classes=24)
            self.predict = nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 24))
            self.slow = copy.deepcopy(self.tower).requires_grad_(False)

    model = Twin()

    def stream(k: int, rows: int = 32) -> Tensor:
        draw = source(k)
        bag = torch.randint(0, 40, (rows, 8), generator=draw)
        return torch.stack(
            [bag.gather(1, torch.rand(rows, 8, generator=draw).argsort(1)[:, :6]) for _ in range(2)]
        )

    def loss(m: nn.Module, pair: Tensor) -> Tensor:
        out = torch.zeros(())
        for one, two in ((0, 1), (1, 0)):
            with torch.no_grad():
                target = m.slow(pair[two])
            out = out - F.cosine_similarity(m.predict(m.tower(pair[one])), target).mean() / 2
        return out

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        o.zero_grad()
        value = loss(m, batch)
        value.backward()
        o.step()
        with torch.no_grad():
            for own, new in zip(m.slow.parameters(), m.tower.parameters(), strict=True):
                own.lerp_(new, 0.02)
        return value

    return training(
        model,
        stream,
        lambda m: float(loss(m, stream(HELD, 64))),
        loss=loss,
        step=step,
        optimizer=adamw(model, 1e-3),
    )


def control_preferences_against_a_reference() -> dict:
    """DPO: a lightly trained model and its frozen copy; the loss starts at exactly ln 2."""
    model = Causal(vocab=64, width=48)

    def text(k: int, rows: int = 32) -> Tensor:
        return torch.cat(keyed(k, rows, prompt=3), 1)

    warm(model, lambda m, k: next_word(m, text(k)), 30)
    reference = copy.deepcopy(model).requires_grad_(False).eval()

    def stream(k: int, rows: int = 24) -> tuple[Tensor, Tensor]:
        good = text(k, rows)
        bad = good.clone()
        bad[:, 3:] = good.roll(1, 0)[:, 3:]
        return good, bad

    def log(m: nn.Module, x: Tensor) -> Tensor:
        return m(x)[:, 2:-1].log_softmax(-1).gather(2, x[:, 3:, None])[..., 0].sum(1)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        good, bad = batch
        with torch.no_grad():
            base = log(reference, good) - log(reference, bad)
        return -F.logsigmoid(0.1 * (log(m, good) - log(m, bad) - base)).mean()

    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 96))), loss=loss, optimizer=adamw(model, 1e-3)
    )


def control_sharp_depth_scaled_init() -> dict:
    """GPT by hand, twelve thin blocks, GPT-2's scaled output matrices, SGD with momentum and clipping."""
    model = Causal(width=24, layers=12, heads=2)
    for name, weight in model.named_parameters():
        if name.endswith(("linear2.weight", "out_proj.weight")):
            nn.init.normal_(weight, std=0.1 / math.sqrt(24))

    def step(m: nn.Module, o: torch.optim.Optimizer, batch: Tensor, k: int) -> Tensor:
        o.zero_grad()
        value = next_word(m, batch)
        value.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        return value

    return training(
        model, lambda k: chain(k, 16), lambda m: later(m, chain(HELD, 64)), loss=next_word, step=step,
        optimizer=torch.optim.SGD(model.parameters(), 0.2, momentum=0.9, nesterov=True),
    )  # fmt: skip
