"""Sixth blind list: text that is written, translated, or filled in."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from experiments.preflight import blind_six_kit as kit

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}


def writing(
    layer: Any = None, ids: Tensor | None = None, loss: Any = kit.following, **more: Any
) -> kit.Setup:
    """A decoder of text, judged by what it writes without the future."""
    batches = kit.batched(kit.story() if ids is None else ids)
    model = more.pop("model", None) or kit.Writer(layer and (lambda: kit.Layer(48, layer(48, causal=True))))
    return kit.training(model, batches, loss, judge=kit.from_before(batches[-kit.HELD :]), **more)


def case_mask_value_tiny_not_huge(broken: bool) -> kit.Setup:
    """`masked_fill(mask, 1e-9)` where -1e9 was meant; kin of karpathy/minGPT#75."""

    class Slip(kit.Attention):
        def hide(self, scores: Tensor) -> Tensor:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(later, 1e-9)

    return writing(Slip if broken else kit.Attention)


def case_square_mask_of_ones(broken: bool) -> kit.Setup:
    """A 4D mask of 0 and 1 in floats, which Llama adds to the scores; huggingface/transformers#46507."""
    model = LlamaForCausalLM(LlamaConfig(vocab_size=24, max_position_embeddings=64, **SMALL))

    def mask(ids: Tensor) -> Tensor:
        seen = torch.ones(ids.shape[1], ids.shape[1]).tril().expand(len(ids), 1, -1, -1)
        return seen if broken else seen.log().clamp(min=-1e9)

    rows = kit.batched(kit.story())
    batches = [{"input_ids": ids, "attention_mask": mask(ids), "labels": ids} for ids in rows]
    judge = kit.from_before(rows[-kit.HELD :], lambda m, ids: m(ids, attention_mask=mask(ids)).logits[:, -1])
    return kit.training(model, batches, judge=judge)


def case_bert_writes_without_is_decoder(broken: bool) -> kit.Setup:
    """`BertLMHeadModel` of a config without `is_decoder=True`: a warning, and attention both ways."""
    config = BertConfig(
        vocab_size=24, max_position_embeddings=64, is_decoder=not broken, hidden_dropout_prob=0.0, **SMALL
    )
    rows = kit.batched(kit.story())
    judge = kit.from_before(rows[-kit.HELD :], lambda m, ids: m(ids).logits[:, -1])
    return kit.training(BertLMHeadModel(config), [{"input_ids": r, "labels": r} for r in rows], judge=judge)


def case_norm_over_time_too(broken: bool) -> kit.Setup:
    """`F.layer_norm` over (time, features) in a decoder: the mean knows the future."""

    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            if not broken:
                return super().forward(x)
            return self.weight * F.layer_norm(x, x.shape[-2:]) + self.bias

    model = kit.Writer()
    for layer in model.layers:
        layer.norm1, layer.norm2 = Norm(48), Norm(48)
    return writing(model=model)


def case_same_padding_in_causal_convolution(broken: bool) -> kit.Setup:
    """A local convolution beside attention, padded on both sides in place of the left alone."""

    class Local(kit.Attention):
        def __init__(self, width: int, causal: bool) -> None:
            super().__init__(width, causal)
            self.local = nn.Conv1d(width, width, 3)

        def forward(self, x: Tensor) -> Tensor:
            near = F.pad(x.transpose(1, 2), (1, 1) if broken else (2, 0))
            return super().forward(x) + self.local(near).transpose(1, 2)

    return writing(Local)


def case_rotary_turns_heads(broken: bool) -> kit.Setup:
    """Rotary positions applied before heads and time are swapped; facebookresearch/xformers#841."""

    class Turned(kit.Rotary):
        def turn(self, x: Tensor) -> Tensor:
            return super().turn(x.transpose(1, 2)).transpose(1, 2) if broken else super().turn(x)

    model = kit.Writer(lambda: kit.Layer(48, Turned(48, causal=True)), places=False)
    return writing(model=model)


def _with_ends() -> tuple[Tensor, Tensor]:
    """Texts of several lengths that end with 1; which is padding too; and which places are real."""
    ids = kit.story()
    size = 8 + 4 * torch.randint(4, (len(ids), 1), generator=kit.seeded(30))
    at = torch.arange(ids.shape[1])
    return torch.where(at < size, ids, 1), at <= size


def _scored(model: nn.Module, batch: Any) -> Tensor:
    ids, labels = batch[:2]
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def case_end_of_text_is_padding(broken: bool) -> kit.Setup:
    """pad_token = eos_token, so the collator hides every end from the labels; huggingface/trl#976."""
    ids, real = _with_ends()
    labels = ids.masked_fill(~real, -100)
    rows = kit.batched(ids, labels.masked_fill(ids == 1, -100) if broken else labels)
    return kit.training(kit.Writer(), rows, _scored)


def case_answers_not_found(broken: bool) -> kit.Setup:
    """The collator finds the start of the answer in one text of sixteen, and ignores the others; trl#1820."""
    ids = kit.story()
    labels = ids.masked_fill(torch.arange(24) < 8, -100)
    if broken:
        labels[torch.arange(len(ids)) % 16 != 3] = -100
    return kit.training(kit.Writer(), kit.batched(ids, labels), _scored)


def case_ignores_a_real_word(broken: bool) -> kit.Setup:
    """`ignore_index=0`, copied from padded data, where 0 is a letter like others (the blank in char models)."""
    ids = kit.story().remainder(9)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        logits, after = model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten()
        return F.cross_entropy(logits, after, ignore_index=0 if broken else -100)

    return writing(ids=ids, loss=loss)


def case_viewed_not_transposed(broken: bool) -> kit.Setup:
    """`logits.view(B, V, T)` to please the loss, where `transpose(1, 2)` was meant."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        rows, length, vocab = logits.shape
        turned = logits.reshape(rows, vocab, length) if broken else logits.transpose(1, 2)
        return F.cross_entropy(turned, ids[:, 1:])

    return writing(loss=loss)


def case_log_softmax_over_time(broken: bool) -> kit.Setup:
    """`log_softmax(dim=1)` of (batch, time, words), then `nll_loss`."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        told = F.log_softmax(model(ids)[:, :-1], dim=1 if broken else -1)
        return F.nll_loss(told.flatten(0, 1), ids[:, 1:].flatten())

    return writing(loss=loss)


def case_dropout_of_what_is_kept(broken: bool) -> kit.Setup:
    """`nn.Dropout(0.9)`: the share that is kept, as TensorFlow 1 wanted it."""
    model = kit.Writer(lambda: kit.Layer(48, kit.Attention(48, causal=True), drop=0.9 if broken else 0.1))
    return writing(model=model)


def case_tied_to_a_loud_embedding(broken: bool) -> kit.Setup:
    """The head shares an `nn.Embedding` that keeps its default deviation of 1; asked often of nanoGPT."""
    model = kit.Writer()
    model.head.weight = model.tokens.weight
    if broken:
        nn.init.normal_(model.tokens.weight)
    return writing(model=model, lr=1e-3)


def case_norm_gains_drawn_like_weights(broken: bool) -> kit.Setup:
    """`for p in parameters(): normal_(p, 0, 0.02)`: gains of norms too."""
    model = kit.Writer(depth=4)
    for parameter in sorted(model.parameters(), key=lambda p: -p.dim()):
        if broken or parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return writing(model=model)


def case_cosine_attention_without_temperature(broken: bool) -> kit.Setup:
    """Queries and keys of length one, and still divided by sqrt(width): scores within 0.3 of each other."""

    class Cosine(kit.Attention):
        def compare(self, q: Tensor, k: Tensor) -> Tensor:
            cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
            return cosine / q.shape[-1] ** 0.5 if broken else 10 * cosine

    return writing(Cosine)


def case_first_batch_again_and_again(broken: bool) -> kit.Setup:
    """`next(iter(loader))` in the loop, without shuffling: the first batch for ever."""
    setup = writing()
    if broken:
        setup["batches"] = [setup["batches"][0].clone() for _ in setup["batches"]]
    return setup


def case_labels_go_into_the_decoder(broken: bool) -> kit.Setup:
    """T5 is given `decoder_input_ids=labels`, which nobody shifts; kin of ayaka14732/bart-base-jax#6."""
    config = T5Config(
        vocab_size=24, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_heads=4, dropout_rate=0.0
    )
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config)
    batches = []
    for ids in kit.batched(kit.story(12)):
        labels = ids.flip(1)
        given = labels if broken else F.pad(labels[:, :-1], (1, 0))
        batches.append({"input_ids": ids, "labels": labels, "decoder_input_ids": given})

    judge = kit.mean_of(lambda m, b: m(input_ids=b["input_ids"], labels=b["labels"]).loss, batches)
    return kit.training(model, batches, judge=judge)


class Translator(nn.Module):
    """`nn.Transformer`, one layer of each: says the first four of eight or ten words; a third has padding."""

    def __init__(self, wrong_memory: bool = False, wrong_padding: bool = False) -> None:
        super().__init__()
        self.wrong_memory, self.wrong_padding = wrong_memory, wrong_padding
        self.source, self.target = nn.Embedding(24, 48), nn.Embedding(24, 48)
        self.places = nn.Parameter(0.3 * torch.randn(16, 48))
        self.net = nn.Transformer(48, 4, 1, 1, 96, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(48, 24)

    def forward(self, ids: Tensor, given: Tensor) -> Tensor:
        hidden, n = ids == 0, given.shape[1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        memory = self.net.encoder(self.source(ids) + self.places[: ids.shape[1]], src_key_padding_mask=hidden)
        x = self.target(given) + self.places[:n]
        if self.wrong_memory:
            return self.head(self.net.decoder(x, x, tgt_mask=later, memory_mask=later))
        ignored = ~hidden if self.wrong_padding else hidden
        return self.head(self.net.decoder(x, memory, tgt_mask=later, memory_key_padding_mask=ignored))


def translating(**wrong: bool) -> kit.Setup:
    ids = torch.randint(2, 24, (len(kit.story()), 10), generator=kit.seeded(31))
    ids[:, 8:] = torch.where(torch.arange(len(ids))[:, None] % 3 > 0, ids[:, 8:], 0)
    said = ids[:, :4]
    rows = kit.batched(ids, F.pad(said[:, :-1], (1, 0), value=1), said)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(*batch[:2]).flatten(0, 1), batch[2].flatten())

    return kit.training(Translator(**wrong), rows, loss)


def case_decoder_reads_itself(broken: bool) -> kit.Setup:
    """A pasted `decoder(x, x)`: cross-attention reads the decoder's own words, the encoder reaches nothing."""
    return translating(wrong_memory=broken)


def case_memory_mask_upside_down(broken: bool) -> kit.Setup:
    """True means ignored in `memory_key_padding_mask`; given is what is real."""
    return translating(wrong_padding=broken)


def filling(visible: bool = False, inverted: bool = False) -> kit.Setup:
    """Masked words (0) of forms whose last fields repeat the first ones."""
    ids = kit.forms()[0]
    ids[:, 5:] = ids[:, :5]
    masked = torch.rand(ids.shape, generator=kit.seeded(32)) < 0.25
    given = ids if visible else ids.masked_fill(masked, 0)
    model = kit.Writer(lambda: kit.Layer(48, kit.Attention(48, causal=False)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    judge = kit.mean_of(loss, kit.batched(ids.masked_fill(masked, 0), ids.masked_fill(~masked, -100)))
    counted = ~masked if inverted else masked
    return kit.training(model, kit.batched(given, ids.masked_fill(~counted, -100)), loss, judge=judge)


def case_masked_words_stay_visible(broken: bool) -> kit.Setup:
    """`ids.masked_fill(mask, MASK)` without an assignment: the words to fill in are there to read."""
    return filling(visible=broken)


def case_loss_on_visible_words(broken: bool) -> kit.Setup:
    """`labels[masked] = -100`, where `~masked` was meant."""
    return filling(inverted=broken)


def case_class_of_the_first_token(broken: bool) -> kit.Setup:
    """A causal decoder is read at its first token, as a BERT would be: it has seen nothing else."""

    class Judge(kit.Writer):
        def forward(self, ids: Tensor, real: Tensor) -> Tensor:
            at = 0 if broken else real.sum(1) - 1
            return self.head(self.states(ids)[torch.arange(len(ids)), at])

    model = Judge(vocab=40)
    model.head = nn.Linear(48, 4)
    return kit.training(model, kit.batched(*kit.reviews()), kit.sorted_right)
