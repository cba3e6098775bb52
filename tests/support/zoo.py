"""Small transformers with every habit that can go wrong when a tool touches a model: ids in, logits out.

ZOO["module twice"]()     a model in training mode; every call draws the same weights
batch()                   ids for it
loss(model, ids)          of the next token, whatever the model returns
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.support.handwritten import attend

DEPTH, WIDTH, HEADS, HIDDEN, VOCABULARY, CONTEXT = 3, 16, 2, 24, 32, 32


class Attention(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = HEADS
        if tied:
            self.k_proj.weight = self.q_proj.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), HEADS))


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x); `habit` says what is unusual in it."""

    def __init__(self, habit: str = "") -> None:
        super().__init__()
        self.habit = habit
        self.norm1, self.attn, self.norm2 = (
            nn.LayerNorm(WIDTH),
            Attention(habit == "tied q and k"),
            nn.LayerNorm(WIDTH),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, WIDTH)
        )
        if habit in ("module twice", "module twice, run whole"):
            self.feed_forward = self.mlp
        elif habit == "batch norm":
            self.batch_norm = nn.BatchNorm1d(WIDTH)
        elif habit == "parametrized":
            parametrizations.weight_norm(self.mlp[0])
            parametrizations.spectral_norm(self.attn.v_proj)
            parametrize.register_parametrization(self.mlp[3], "weight", Doubled())
        elif habit == "old weight norm":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nn.utils.weight_norm(self.mlp[0])
        elif habit == "buffers":
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("kept", torch.zeros(WIDTH), persistent=False)
            self.history: list[Tensor] = []
        elif habit == "parameter containers":
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])
            self.shifts = nn.ParameterDict({"mlp": nn.Parameter(torch.zeros(WIDTH))})

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        if "run whole" in self.habit and len(rest) != 2:
            raise TypeError("this block takes a stream and two masks")
        x = x + self.attn(self.norm1(x))
        return x + self._after(self.mlp(self._before(self.norm2(x))))

    def _before(self, x: Tensor) -> Tensor:
        if self.habit == "batch norm":
            return self.batch_norm(x.flatten(0, 1)).view_as(x)
        return x * self.scales[0] if self.habit == "parameter containers" else x

    def _after(self, x: Tensor) -> Tensor:
        if self.habit == "buffers":
            self.calls += 1
            self.kept.copy_(x.detach().mean((0, 1)))
            self.history = [x.detach().mean()]
        return x * self.scales[1] + self.shifts["mlp"] if self.habit == "parameter containers" else x


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Model(nn.Module):
    def __init__(self, habit: str = "") -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block(habit) for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.run_whole = "run whole" in habit
        if habit == "block twice":
            self.blocks[2] = self.blocks[0]
        if habit in ("block twice", "list twice, run whole"):
            self.layers = self.blocks
        if habit == "tied readout":
            self.head.weight = self.embedding.weight
        if habit == "frozen":
            self.embedding.requires_grad_(False)
            self.blocks[0].requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, None, None) if self.run_whole else block(x)
        return self.head(self.norm(x))


class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(ids)))


def _hugging_face(name: str) -> nn.Module:
    import transformers

    small = {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": DEPTH,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": CONTEXT,
    }
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_layer=DEPTH,
            n_embd=WIDTH,
            n_head=HEADS,
            n_positions=CONTEXT,
            bos_token_id=0,
            eos_token_id=0,
        )
        return transformers.GPT2LMHeadModel(config)
    if name == "llama":
        config = transformers.LlamaConfig(**small, num_key_value_heads=1, bos_token_id=0, eos_token_id=0)
        return transformers.LlamaForCausalLM(config)
    return transformers.BertForMaskedLM(transformers.BertConfig(**small))


def _seeded(make: Callable[..., nn.Module], *arguments: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make(*arguments).train()

    return build


HABITS = (
    "plain",
    "module twice",
    "block twice",
    "module twice, run whole",
    "list twice, run whole",
    "tied readout",
    "tied q and k",
    "parametrized",
    "old weight norm",
    "batch norm",
    "buffers",
    "parameter containers",
    "frozen",
)
ZOO: dict[str, Callable[[], nn.Module]] = {habit: _seeded(Model, habit) for habit in HABITS}
ZOO |= {name: _seeded(_hugging_face, name) for name in ("gpt2", "llama", "bert")}
ZOO["torch encoder"] = _seeded(TorchEncoder)


def batch(seed: int = 0, tokens: int = 8) -> Tensor:
    return torch.randint(VOCABULARY, (4, tokens), generator=torch.Generator().manual_seed(seed))


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    output = model(ids)
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
