"""Mistakes of `blind_three.py` in networks, initial weights, checkpoints and fine-tuning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from experiments.preflight import blind_three_tasks as tasks
from experiments.preflight.blind_three_tasks import (
    BOS,
    FIRST,
    GPT2,
    SMALL,
    VOCAB,
    Batch,
    Block,
    Case,
    Encoder,
    Experts,
    Gpt,
    Llama,
    LlamaLayer,
    RelativeBlock,
    Translator,
    Vit,
    digits,
    echoes,
    fit,
    foreign,
    frozen,
    hugging,
    image,
    language,
    markers,
    neighbors,
    next_word,
    numbers,
    rotate,
    seeded,
    sentence,
    split,
    tags,
    trained,
    translation,
    with_lora,
)
from experiments.preflight.blind_three_truths import mistake

# ---------------------------------------------------------------- data and collation


# ---------------------------------------------------------------- networks


@mistake
def case_sdpa_in_flash_layout(broken: bool) -> Case:
    """`scaled_dot_product_attention` gets (rows, time, heads, width) as flash-attn wants it: it attends over heads."""

    class Layer(LlamaLayer):
        def attend(self, x: Tensor) -> Tensor:
            rows, length, d = x.shape
            q, k, v = (
                p(x).view(rows, length, self.heads, -1) for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            q, k = (rotate(part.transpose(1, 2)).transpose(1, 2) for part in (q, k))
            if not broken:
                q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj((y if broken else y.transpose(1, 2)).reshape(rows, length, d))

    def make() -> nn.Module:
        net = Llama(heads=4)
        net.layers = nn.ModuleList(Layer(32, 4) for _ in range(2))
        return net

    return fit(seeded(make), echoes, next_word)


@mistake
def case_tagger_left_causal(broken: bool) -> Case:
    """RoBERTa with `is_decoder=True` from a copied config tags words whose tag the next word decides."""

    def prepared(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{"input_ids": b["ids"], "attention_mask": torch.ones_like(b["ids"]), "labels": b["labels"]}
                for b in neighbors(count, seed)]  # fmt: skip

    small = dict(
        SMALL, num_labels=4, attention_probs_dropout_prob=0.0, initializer_range=0.08, is_decoder=broken
    )
    return fit(
        seeded(lambda: hugging("RobertaForTokenClassification", "RobertaConfig", **small)), prepared, None
    )


@mistake
def case_class_from_first_causal_state(broken: bool) -> Case:
    """A classifier on GPT-2 reads state 0 as on BERT; under a causal mask that is the first word alone."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = hugging("GPT2Model", "GPT2Config", **GPT2)
            self.classify = nn.Linear(32, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.classify(self.body(ids).last_hidden_state[:, 0 if broken else -1])

    return fit(seeded(Own), markers, sentence)


@mistake
def case_embeddings_for_last_states(broken: bool) -> Case:
    """`hidden_states[0]` instead of `[-1]`: the classifier reads the embeddings, the layers are for nothing."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.electra = hugging(
                "ElectraModel", "ElectraConfig", **SMALL, embedding_size=32, initializer_range=0.08
            )
            self.classify = nn.Linear(32, 4)

        def forward(self, ids: Tensor) -> Tensor:
            states = self.electra(ids, output_hidden_states=True).hidden_states
            return self.classify(states[0 if broken else -1][:, 0])

    return fit(seeded(Own), markers, sentence)


@mistake
def case_token_types_passed_as_mask(broken: bool) -> Case:
    """`bert(ids, token_types)`: the second argument is the attention mask, so that the first sentence is hidden."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = hugging("BertModel", "BertConfig", **SMALL, initializer_range=0.08)
            self.classify = nn.Linear(32, 4)

        def forward(self, ids: Tensor, types: Tensor) -> Tensor:
            found = self.bert(ids, types) if broken else self.bert(ids, token_type_ids=types)
            return self.classify(found.last_hidden_state[:, -1])

    def two_sentences(count: int = 24, seed: int = 0) -> list[Batch]:
        found = []
        for i, b in enumerate(markers(count, seed, length=7)):
            ids = torch.cat(
                [b["ids"], torch.randint(8, VOCAB, (tasks.ROWS, 6), generator=numbers(7000 * seed + i))],
                dim=1,
            )
            found.append(
                {
                    "ids": ids,
                    "types": (torch.arange(13) >= 7).long().expand_as(ids).contiguous(),
                    "labels": b["labels"],
                }
            )
        return found

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"], batch["types"]), batch["labels"])

    return fit(seeded(Own), two_sentences, loss)


@mistake
def case_relative_distance_clamped_to_zero(broken: bool) -> Case:
    """Relative bias by `key - query` clamped from below at 0: under a causal mask every distance is 0."""

    def make() -> nn.Module:
        net = Gpt()
        net.blocks = nn.ModuleList(RelativeBlock(broken) for _ in range(2))
        nn.init.zeros_(net.pos.weight).requires_grad_(False)
        return net

    return fit(seeded(make), echoes, next_word, lr=5e-3)


@mistake
def case_codes_without_straight_through(broken: bool) -> Case:
    """Vector quantization without the straight-through line: what lies before the codes gets no gradient."""

    class Own(Vit):
        def __init__(self) -> None:
            super().__init__(layers=1)
            self.codes = nn.Embedding(24, 32)

        def forward(self, images: Tensor) -> Tensor:
            states = self.states(images)
            code = self.codes(torch.cdist(states, self.codes.weight).argmin(dim=-1))
            self.pull = F.mse_loss(code, states.detach()) + (0.0 if broken else 0.25) * F.mse_loss(
                states, code.detach()
            )
            return self.head(code if broken else states + (code - states).detach())

    def loss(model: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["images"]), batch["labels"]) + model.pull

    return fit(seeded(Own), digits, loss, judge=image)


@mistake
def case_pooling_softmax_over_the_batch(broken: bool) -> Case:
    """Attention pooling with `softmax(dim=0)`: the weights of an example depend on the others and do not sum to one."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.score, self.classify = Gpt(causal=False), nn.Linear(32, 1), nn.Linear(32, 4)
            self.body.head = nn.Identity()

        def forward(self, ids: Tensor) -> Tensor:
            states = self.body.states(ids)
            return self.classify((self.score(states).softmax(dim=0 if broken else 1) * states).sum(dim=1))

    def one_by_one(model: nn.Module, batch: Batch) -> Tensor:
        logits = torch.cat([model(ids[None]) for ids in batch["ids"]])
        return F.cross_entropy(logits, batch["labels"])

    return fit(seeded(Own), markers, sentence, judge=one_by_one, lr=1e-3)


@mistake
def case_examples_mixed_by_reshape(broken: bool) -> Case:
    """`nn.TransformerEncoder` without `batch_first` returns (time, rows, d); `reshape(rows, -1)` mixes the examples."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCAB, 32), nn.Parameter(0.3 * torch.randn(12, 1, 32))
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0)
            self.encoder, self.classify = nn.TransformerEncoder(layer, 1), nn.Linear(12 * 32, 4)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.encoder(self.words(ids.T) + self.places)
            return self.classify((x if broken else x.transpose(0, 1)).reshape(len(ids), -1))

    return fit(seeded(Own), markers, sentence)


@mistake
def case_memory_under_a_causal_mask(broken: bool) -> Case:
    """`nn.Transformer` gets the causal mask as `memory_mask` too; the translation runs from the end of the source."""

    class Own(Translator):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
            memory = future[:, : source.shape[1]] if broken else None
            x = self.net(self.embed(source), self.embed(target), tgt_mask=future, memory_mask=memory)
            return self.read(x)

    def reversed_phrases(count: int = 24, seed: int = 0) -> list[Batch]:
        source = torch.randint(FIRST, FIRST + 12, (count * tasks.ROWS, 7), generator=numbers(seed))
        begin = torch.full((len(source), 1), BOS)
        return split(count, source=source, target=torch.cat([begin, source.flip(1) + 8, begin + 1], dim=1))

    return fit(seeded(Own), reversed_phrases, translation, lr=5e-3)


@mistake
def case_drop_path_drops_the_stream(broken: bool) -> Case:
    """Stochastic depth around `x + f(x)` instead of `f(x)`: an example is zeroed, not a branch of it."""

    class Own(Block):
        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
            y = super().forward(x, hidden)
            if not self.training:
                return y
            keep = (torch.rand(len(x), 1, 1) > 0.3).float() / 0.7
            return y * keep if broken else x + (y - x) * keep

    def make() -> nn.Module:
        net = Vit(layers=4)
        net.blocks = nn.ModuleList(Own(32, 2, causal=False) for _ in range(4))
        return net

    return fit(seeded(make), digits, image)


@mistake
def case_epsilon_1e5_in_the_norms(broken: bool) -> Case:
    """`eps=1e5` typed for `1e-5` in every norm: their outputs are almost nothing."""

    def make() -> nn.Module:
        net = Encoder()
        for module in net.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e5 if broken else 1e-5
        return net

    return fit(seeded(make), neighbors, tags)


@mistake
def case_soft_cap_not_scaled_back(broken: bool) -> Case:
    """Logits capped as `tanh(z / 30)` without the factor 30 in front: they never leave -1 to 1."""

    class Own(Llama):
        def forward(self, ids: Tensor) -> Tensor:
            capped = torch.tanh(super().forward(ids) / 30)
            return capped if broken else 30 * capped

    return fit(seeded(Own), language, next_word)


@mistake
def case_cosine_readout_without_scale(broken: bool) -> Case:
    """Cosines between states and class vectors as logits, without the factor of about 16 that such losses need."""

    class Own(Vit):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 10, bias=False)

        def forward(self, images: Tensor) -> Tensor:
            cosines = F.normalize(self.states(images), dim=-1) @ F.normalize(self.head.weight, dim=-1).T
            return cosines if broken else 16 * cosines

    return fit(seeded(Own), digits, image)


@mistake
def case_dropout_on_the_logits(broken: bool) -> Case:
    """A dropout of one half stands behind the readout instead of before it."""

    class Own(Gpt):
        def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
            states = self.states(ids, hidden)
            if broken:
                return F.dropout(self.head(states), 0.5, self.training)
            return self.head(F.dropout(states, 0.1, self.training))

    return fit(seeded(Own), language, next_word)


@mistake
def case_router_softmax_over_time(broken: bool) -> Case:
    """The router's softmax runs over tokens: weights are tiny, and depend on words that are still to come."""

    class Own(Experts):
        def weights(self, x: Tensor) -> Tensor:
            gates = self.router(x).softmax(dim=1 if broken else -1)
            best, which = gates.topk(2, dim=-1)
            return torch.zeros_like(gates).scatter(-1, which, best)

    def make() -> nn.Module:
        net = Gpt()
        for block in net.blocks:
            block.mlp = Own(32)
        return net

    def as_it_is_written(model: nn.Module, batch: Batch) -> Tensor:
        ids = batch["ids"]
        logits = torch.stack([model(ids[:, :t])[:, -1] for t in range(1, ids.shape[1])], dim=1)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return fit(seeded(make), language, next_word, judge=as_it_is_written)


@mistake
def case_balance_loss_outweighs(broken: bool) -> Case:
    """Mixtral with `router_aux_loss_coef=10` for 0.01."""

    def prepared(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{"input_ids": b["ids"], "labels": b["ids"]} for b in language(count, seed)]

    small = dict(
        SMALL,
        intermediate_size=32,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=1,
        output_router_logits=True,
        router_aux_loss_coef=100.0 if broken else 0.01,
        initializer_range=0.1,
    )

    def judge(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    return fit(
        seeded(lambda: hugging("MixtralForCausalLM", "MixtralConfig", **small)), prepared, None, judge=judge
    )


class _OwnSilu(torch.autograd.Function):
    """SiLU with a backward of one's own, that forgets the chain rule if told to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, broken: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.broken = broken
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        slope = s * (1 + x * (1 - s))
        return (slope if ctx.broken else slope * grad), None


@mistake
def case_own_backward_forgets_the_chain(broken: bool) -> Case:
    """An activation's backward returns its slope without the gradient that came in."""

    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _OwnSilu.apply(x, broken)

    def make() -> nn.Module:
        net = Vit()
        for block in net.blocks:
            block.mlp[1] = Act()
        return net

    return fit(seeded(make), digits, image)


class _Reverse(torch.autograd.Function):
    """The gradient with the other sign, for a domain classifier."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return -grad


@mistake
def case_gradient_reversal_left_in(broken: bool) -> Case:
    """Left from domain adaptation: the gradient is reversed below the head that learns the labels."""

    class Own(Vit):
        def forward(self, images: Tensor) -> Tensor:
            states = self.states(images)
            return self.head(_Reverse.apply(states) if broken else states)

    return fit(seeded(Own), digits, image)


# ---------------------------------------------------------------- weights and checkpoints


@mistake
def case_std_given_as_mean(broken: bool) -> Case:
    """`nn.init.normal_(weight, 0.02)`: 0.02 is the mean, and the spread is 1."""

    def make() -> nn.Module:
        net = Gpt()
        for weight in net.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, 0.02) if broken else nn.init.normal_(weight, std=0.02)
        return net

    return fit(seeded(make), language, next_word)


@mistake
def case_normal_init_hits_the_norms(broken: bool) -> Case:
    """`for p in model.parameters(): normal_(p, std=0.02)` also draws the gains of the norms, around 0 instead of 1."""

    def make() -> nn.Module:
        net = Llama(layers=3)
        for weight in net.parameters():
            if broken or weight.dim() > 1:
                nn.init.normal_(weight, std=0.05)
        return net

    return fit(seeded(make), language, next_word, lr=1e-3)


@mistake
def case_from_meta_without_init(broken: bool) -> Case:
    """Built on meta, materialized by `to_empty`, never initialized: here the memory was zero."""
    small = dict(SMALL, initializer_range=0.1)
    net = seeded(lambda: hugging("GPTNeoXForCausalLM", "GPTNeoXConfig", **small))
    if broken:
        with torch.no_grad():
            for weight in net.parameters():
                weight.zero_()

    def prepared(count: int = 24, seed: int = 0) -> list[Batch]:
        return [{"input_ids": b["ids"], "labels": b["ids"]} for b in language(count, seed)]

    return fit(net, prepared, None)


@mistake
def case_square_weights_not_transposed(broken: bool) -> Case:
    """A checkpoint of a library that multiplies from the other side: the square matrices fit untransposed."""
    net = trained("tagger")
    if broken:
        with torch.no_grad():
            for block in net.blocks:
                block.attn.out.weight.copy_(block.attn.out.weight.T.clone())
    return fit(net, neighbors, tags, lr=1e-4)


@mistake
def case_rotary_pairs_of_another_library(broken: bool) -> Case:
    """Weights trained with rotary pairs half a width apart, loaded into code that pairs neighbors."""
    net: Any = trained("rotary")
    for layer in net.layers:
        layer.interleaved = broken
    return fit(net, echoes, next_word, lr=3e-4)


# ---------------------------------------------------------------- fine-tuning


class Adapter(nn.Module):
    """A frozen block with an adapter behind it; its up-projection begins at zero."""

    def __init__(self, block: nn.Module, used: bool = True) -> None:
        super().__init__()
        self.block, self.used = block, used
        self.down, self.up = nn.Linear(32, 8), nn.Linear(8, 32)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        x = self.block(x, hidden)
        y = x + self.up(F.gelu(self.down(x)))
        return y if self.used else x


@mistake
def case_adapter_output_dropped(broken: bool) -> Case:
    """The adapter is computed and its result forgotten."""
    net: Any = frozen(trained("gpt"))
    net.blocks = nn.ModuleList(Adapter(block, used=not broken) for block in net.blocks)
    net.head = nn.Linear(32, VOCAB)
    return fit(net, foreign, next_word)


class SoftPrompt(nn.Module):
    """Four learned vectors before the words of a network."""

    def __init__(self, net: Gpt, cut: bool) -> None:
        super().__init__()
        self.net, self.prompt, self.cut = net, nn.Parameter(0.1 * torch.randn(1, 4, 32)), cut

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(ids), -1, -1), self.net.tok(ids)], dim=1)
        x = x + self.net.pos(torch.arange(x.shape[1]))
        for block in self.net.blocks:
            x = block(x)
        logits = self.net.head(self.net.norm(x))
        return logits[:, 4:] if self.cut else logits[:, : ids.shape[1]]


@mistake
def case_soft_prompt_shifts_the_outputs(broken: bool) -> Case:
    """Four prompt vectors in front, and the outputs are cut at the end instead of the beginning."""
    return fit(seeded(lambda: SoftPrompt(Gpt(), cut=not broken)), language, next_word)


@mistake
def case_new_words_alike_and_frozen(broken: bool) -> Case:
    """Four words were added with the mean embedding, and the embedding is frozen: they can never differ."""
    net: Any = trained("gpt")
    with torch.no_grad():
        net.tok.weight[FIRST : FIRST + 4] = net.tok.weight[FIRST + 4 :].mean(dim=0)
    net.tok.weight.requires_grad_(not broken)
    net.head = nn.Linear(32, 4)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch["ids"])[:, -1], batch["labels"])

    return fit(net, markers, loss)


@mistake
def case_lora_scale_multiplied(broken: bool) -> Case:
    """`alpha * rank` for `alpha / rank`: 128 for 2."""
    return fit(with_lora(trained("gpt"), 16.0 * 8 if broken else 16.0 / 8), foreign, next_word)


@mistake
def case_reentrant_checkpoint_on_frozen_input(broken: bool) -> Case:
    """Reentrant checkpointing over frozen embeddings: no input wants a gradient, so no LoRA inside gets one."""

    class Own(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
            return checkpoint(self.block, x, use_reentrant=broken)

    net: Any = with_lora(trained("gpt"))
    net.blocks = nn.ModuleList(Own(block) for block in net.blocks)
    return fit(net, foreign, next_word)
