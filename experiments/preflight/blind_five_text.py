"""Mistakes in the training of language models: targets, masks, positions, optimizer, precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from experiments.preflight.blind_five_kit import (
    GPT,
    VOCAB,
    Block,
    SelfAttention,
    Setup,
    by_prefix,
    cut,
    generator,
    next_token,
    small,
    texts,
    told,
    training,
)


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
    )


def case_labels_shifted_twice(broken: bool) -> Setup:
    """The data set shifts the labels, and the model shifts them once more."""
    torch.manual_seed(0)
    rows = texts()
    batches = [
        {"input_ids": x[:, :-1], "labels": x[:, 1:]} if broken else {"input_ids": x, "labels": x}
        for x in rows
    ]
    setup = training(gpt2(), batches)
    words = ["shift", "two+ahead", "second+next", "skip+token", "one position too"]
    return told(setup, words, "labels data loss")


def case_masked_labels_aliased(broken: bool) -> Setup:
    """`labels = inputs` without a clone: masking the inputs turns every label into [MASK]."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB + 1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    g = generator(5)
    batches = []
    for x in texts():
        ids = x.clone()
        labels = ids if broken else ids.clone()
        hidden = torch.rand(ids.shape, generator=g) < 0.2
        ids[hidden] = VOCAB
        batches.append({"input_ids": ids.clone(), "labels": labels.clone().masked_fill(~hidden, -100)})
    words = [
        "label+same",
        "label+constant",
        "label+one value",
        "label+mask",
        "label+single",
        "every label",
        "all labels",
        "only one class",
        "only one value",
        "one class",
        "labels+identical",
    ]
    return told(training(BertForMaskedLM(config), batches), words, "labels data loss")


def _documents() -> list[Tensor]:
    """Documents that end in token 0 after the first token divisible by four, then token 0 to the end."""
    found = []
    for x in texts():
        late = torch.arange(x.shape[1]) >= 10
        stop = ((x % 4 == 0) & late).float()
        ended = stop.cumsum(1) - stop > 0
        found.append(x.masked_fill(ended, 0))
    return found


def case_end_is_padding(broken: bool) -> Setup:
    """The padding token is the end token, so that masking the padding masks every end."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=0,
    )
    batches = []
    for x in _documents():
        first = (x == 0) & ((x == 0).cumsum(1) == 1)
        real = (x != 0) | first
        labels = x.masked_fill(x == 0, -100) if broken else x.masked_fill(~real, -100)
        batches.append({"input_ids": x, "attention_mask": real.long(), "labels": labels})
    setup = training(LlamaForCausalLM(config), batches, lr=3e-3)
    words = ["eos", "end+token", "end of", "never+label", "stop", "pad+same", "never+target", "pad+ignored"]
    return told(setup, words, "labels data loss")


def case_target_is_the_input(broken: bool) -> Setup:
    """The loss compares the logits with the tokens at the same place."""
    torch.manual_seed(0)
    rows = texts()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) if broken else next_token(model, ids)

    setup = training(GPT(), rows, loss, judge=by_prefix(rows[-4:]))
    words = [
        "own+input",
        "shift",
        "same position",
        "copy",
        "copies",
        "itself",
        "identity",
        "target+is the input",
    ]
    return told(setup, [*words, "next token"], "labels data loss")


class Sinusoid(nn.Module):
    """The tutorial's encoding of positions, which expects (time, batch, width)."""

    def __init__(self, width: int, first: bool) -> None:
        super().__init__()
        self.first = first
        place = torch.arange(64)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-9.2 / width))
        table = torch.zeros(64, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            return x + self.table[: x.size(1)].transpose(0, 1)
        return x + self.table[: x.size(0)]


class TutorialLM(nn.Module):
    """The language model of the PyTorch tutorial."""

    def __init__(
        self, first: bool, causal: bool = True, batch_first: bool = True, vocab: int = VOCAB
    ) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(vocab, 64)
        self.position = Sinusoid(64, first)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(64, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        return self.decoder(self.encoder(self.position(self.tokens(ids)), mask=mask))


def case_positions_along_the_batch(broken: bool) -> Setup:
    """Positions of the tutorial, made for (time, batch, width), added to (batch, time, width)."""
    torch.manual_seed(0)
    rows = texts()
    setup = training(TutorialLM(first=not broken), rows, next_token, judge=by_prefix(rows[-4:]))
    words = ["position", "batch+depend", "other+row", "batch_first", "permut", "order+token", "row+index"]
    return told(setup, words, "", ["batch", "row"])


def case_attention_across_the_batch(broken: bool) -> Setup:
    """`nn.TransformerEncoder` without batch_first is given (batch, time, width)."""
    torch.manual_seed(0)
    g = generator(5)
    batches = []
    for x in texts():
        hidden = torch.rand(x.shape, generator=g) < 0.2
        batches.append((x.masked_fill(hidden, 0), x.masked_fill(~hidden, -100)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100)

    setup = training(TutorialLM(True, causal=False, batch_first=not broken), batches, loss)
    words = [
        "batch_first",
        "across+batch",
        "other+row",
        "other+example",
        "other+sample",
        "between+rows",
        "row+depend",
        "batch+attend",
        "batch+mix",
        "rows+mix",
    ]
    return told(setup, words, "")


class Opposite(SelfAttention):
    """A mask in which True means hidden, given to a function in which True means seen."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask[-1, -1] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def case_mask_of_the_other_convention(broken: bool) -> Setup:
    """A boolean mask of nn.MultiheadAttention passed to scaled_dot_product_attention."""
    torch.manual_seed(0)
    rows = texts()
    model = GPT(attention=Opposite if broken else SelfAttention)
    setup = training(model, rows, next_token, judge=by_prefix(rows[-4:]))
    words = [
        "future",
        "causal",
        "mask+invert",
        "sees+label",
        "mask+convention",
        "opposite",
        "leak",
        "later token",
    ]
    return told(setup, words, "", ["copy", "copies"])


class Rotary(SelfAttention):
    """Positions by rotation of queries and keys."""

    axis = -2

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rate = 100.0 ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[self.axis])[:, None] * rate
        if self.axis == -3:
            angle = angle[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)


class RotaryOfHeads(Rotary):
    """Written for (batch, time, heads, width) and used after the transpose."""

    axis = -3


def case_rotary_over_heads(broken: bool) -> Setup:
    """The angle counts heads, not places."""
    torch.manual_seed(0)
    rows = texts()
    model = GPT(attention=RotaryOfHeads if broken else Rotary, positions=False)
    setup = training(model, rows, next_token, lr=3e-3, judge=by_prefix(rows[-4:]))
    return told(setup, ["position", "order+token", "permut", "rotary", "rotat"], "")


def case_tied_to_a_wide_embedding(broken: bool) -> Setup:
    """The head is tied to an embedding that starts at deviation 1."""
    torch.manual_seed(0)
    rows = texts()
    model = GPT(width=128)
    if broken:
        nn.init.normal_(model.tokens.weight)
    model.head.weight = model.tokens.weight
    setup = training(model, rows, next_token, lr=1e-3)
    words = [
        "tied",
        "tying",
        "shared+embedding",
        "initial+loss",
        "first loss",
        "init+logit",
        "embedding+std",
        "embedding+deviation",
        "logit+large",
        "logit+wide",
        "start+loss",
        "above+chance",
        "above+uniform",
        "init+large",
    ]
    return told(setup, words, "tokens head model", ["loss+high"])


class Viewed(SelfAttention):
    """Heads taken by view alone: times and heads are mixed up."""

    def split(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        return x.reshape(rows, self.heads, length, width // self.heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.mix(q, k, v).reshape(x.shape))


def case_heads_by_view(broken: bool) -> Setup:
    """`view(batch, heads, time, width)` without a transpose; each text says its first 8 words again and again."""
    torch.manual_seed(0)
    rows = [x[:, :8].repeat(1, 4) for x in texts()]
    model = GPT(attention=Viewed if broken else SelfAttention, heads=8)
    setup = training(model, rows, next_token, lr=3e-3, judge=by_prefix(rows[-4:]))
    words = [
        "heads",
        "reshape",
        "view(",
        "position+mix",
        "transpose",
        "context",
        "earlier+token",
        "far+token",
    ]
    return told(setup, words, "", ["past", "previous"])


class OverQueries(SelfAttention):
    """Softmax over the axis of queries."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1) > 0, -1e9)
        return scores.softmax(dim=-2) @ v


def case_softmax_over_queries(broken: bool) -> Setup:
    """The weights of a query do not add to one, those of a key do."""
    torch.manual_seed(0)
    rows = texts()
    model = GPT(attention=OverQueries if broken else SelfAttention)
    setup = training(model, rows, next_token, judge=by_prefix(rows[-4:]))
    words = ["softmax", "rows+sum", "attention+sum", "wrong axis", "wrong dim", "sum to", "normaliz+key"]
    return told(setup, words, "", ["future", "causal", "later"])


class Stack(nn.Module):
    """Blocks in a Python list."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, 64), nn.Embedding(64, 64)
        blocks = [Block(64, 4, SelfAttention) for _ in range(3)]
        self.blocks = blocks if listed else nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, VOCAB)
        self.apply(small)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def case_blocks_in_a_python_list(broken: bool) -> Setup:
    """A list in place of nn.ModuleList."""
    torch.manual_seed(0)
    setup = training(Stack(broken), texts(), next_token)
    words = [
        "registered",
        "modulelist",
        "plain list",
        "python list",
        "not in+optimizer",
        "not among+parameters",
        "no submodule",
        "not+parameters()",
        "never trained",
        "outside+model",
    ]
    return told(setup, words, "")


class Experts(nn.Module):
    """Four experts; the router's choice is an argmax."""

    def __init__(self, width: int, weighed: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.weighed = weighed
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            out = torch.where((chosen == k)[..., None], expert(x), out)
        return out * weight[..., None] if self.weighed else out


def case_router_without_gradient(broken: bool) -> Setup:
    """The chosen expert's answer is not multiplied by the router's weight."""
    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        block.mlp = Experts(64, weighed=not broken)
    model.apply(small)
    setup = training(model, texts(), next_token)
    return told(setup, ["router", "gating", "no gradient", "argmax", "not train", "gets no"], "blocks model")


class Decision(nn.Module):
    """A decision transformer: returns to go, states, actions."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.action, self.goal = nn.Linear(4, 48), nn.Embedding(6, 48), nn.Linear(1, 48)
        self.places = nn.Parameter(0.02 * torch.randn(36, 48))
        self.blocks = nn.ModuleList(Block(48, 4, SelfAttention) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 6)

    def forward(self, goal: Tensor, state: Tensor, action: Tensor, after: bool) -> Tensor:
        x = torch.stack([self.goal(goal[..., None]), self.state(state), self.action(action)], 2).flatten(1, 2)
        x = x + self.places[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 2 if after else 1 :: 3])


def case_action_read_after_it_is_given(broken: bool) -> Setup:
    """The action is predicted at its own token (stride 3, start 2) in place of the state's (start 1)."""
    torch.manual_seed(0)
    g = generator(25)
    rows = 52 * 16
    state, goal = torch.randn(rows, 12, 4, generator=g), torch.rand(rows, 12, generator=g)
    rule = torch.randn(4, 6, generator=generator(26))
    action = (2 * state @ rule + torch.randn(rows, 12, 6, generator=g)).argmax(-1)

    def loss_at(after: bool):
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(*batch, after).flatten(0, 1), batch[2].flatten())

        return loss

    setup = training(Decision(), cut(goal, state, action), loss_at(broken), lr=1e-3)
    setup["judge"] = lambda model: sum(float(loss_at(False)(model, b)) for b in setup["held"]) / 4
    words = [
        "leak",
        "copy",
        "copies",
        "in the input",
        "target+input",
        "label+input",
        "sees+label",
        "own input",
        "shift",
    ]
    return told(setup, [*words, "identity", "itself", "sees+target"], "")
