"""By hand: names that lie, parts that are never run, and networks that are no transformers."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layouts import Step, Text
from .residuals import Deep, feed
from .truth import HEADS, TOKENS, WIDTH, WORDS, Truth, ids, image, stranger

HEAD = WIDTH // HEADS


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, HEAD)).transpose(1, 2)


@stranger("queries called value, values called query", Truth(3, query="tower.0.value.weight"), batch=ids)
class SwappedRoles(Deep):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (
                nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
            )
            self.n1, self.n2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), feed()

        def forward(self, x: Tensor) -> Tensor:
            y = self.n1(x)
            q, k, v = heads_of(self.value(y)), heads_of(self.key(y)), heads_of(self.query(y))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.mlp(self.n2(x))

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger(
    "feed-forward called attention, attention called mlp", Truth(3, sees="full", activation="relu"), batch=ids
)
class SwappedBranches(Deep):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 3 * WIDTH), "fc2": nn.Linear(WIDTH, WIDTH)})
            self.self_attn = nn.ModuleDict({"q_proj": nn.Linear(WIDTH, 64), "o_proj": nn.Linear(64, WIDTH)})
            self.attn_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = map(heads_of, self.mlp["fc1"](self.mlp_norm(x)).chunk(3, -1))
            y = (q @ k.mT / HEAD**0.5).softmax(-1) @ v
            x = x + self.mlp["fc2"](y.transpose(1, 2).flatten(2))
            return x + self.self_attn["o_proj"](F.relu(self.self_attn["q_proj"](self.attn_norm(x))))

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger("norms called linear, linear maps called norm", Truth(3, query="tower.0.norm_a.weight"), batch=ids)
class SwappedNorms(Deep):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear1, self.linear2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.norm_a, self.norm_b, self.norm_c, self.norm_d = (
                nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
            )
            self.dropout = feed()

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear1(x)
            q, k, v = heads_of(self.norm_a(y)), heads_of(self.norm_b(y)), heads_of(self.norm_c(y))
            x = x + self.norm_d(
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            )
            return x + self.dropout(self.linear2(x))

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger("a list of decoy layers that are never run", Truth(3, keep=("layers*",)), batch=ids)
class Decoys(Text):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 8, 64) for _ in range(6))
        self.misc = nn.ModuleList(Step() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        for part in self.misc:
            x = part(x)
        return x


@stranger("unused matrices in every block", Truth(3), batch=ids)
class Unused(Deep):
    class Layer(Step):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.old_norm, self.old_mlp = nn.LayerNorm(WIDTH), feed(256)

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger("six layers registered, four run", Truth(4), batch=ids)
class SomeRun(Deep):
    def __init__(self) -> None:
        super().__init__(Step, 6)

    def body(self, x: Tensor) -> Tensor:
        for i in (0, 1, 3, 4):
            x = self.tower[i](x)
        return x


@stranger("a config that lies", Truth(3, sees="full"), batch=ids)
class LyingConfig(Deep):
    def __init__(self) -> None:
        super().__init__(lambda: Step(causal=False), 3)
        for layer in self.tower:
            layer.mixing.num_heads, layer.mixing.is_causal, layer.mixing.rope = 8, True, True
        self.settings = SimpleNamespace(num_hidden_layers=12, num_attention_heads=8, is_decoder=True)


@stranger("a class called LSTM with layers called conv", Truth(3), batch=ids)
class LSTM(Text):
    class Conv2d(Step):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(*(self.Conv2d() for _ in range(3)))

    def body(self, x: Tensor) -> Tensor:
        return self.conv(x)


@stranger("layers run in another order than registered", Truth(4), batch=ids)
class Reordered(Deep):
    def __init__(self) -> None:
        super().__init__(Step, 4)

    def body(self, x: Tensor) -> Tensor:
        for layer in reversed(self.tower):
            x = layer(x)
        return x


@stranger("each list entry holds two blocks", Truth(4), batch=ids)
class Doubled(Deep):
    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(Step(), Step()), 2)


NONE = ("no attention", "without softmax", "no softmax", "not a transformer")


@stranger(
    "a long short-term memory",
    Truth(
        None, softmax=False, reason=(*NONE, "recurren", "LSTM", "no repeated", "residual", "list of blocks")
    ),
    batch=ids,
)
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 3, batch_first=True)
        self.attention = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(self.rnn(self.embed(tokens))[0])


@stranger("residual gated recurrences", Truth(3, softmax=False, reason=(*NONE, "recurren")), batch=ids)
class ResidualGRU(Text):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        for cell, norm in zip(self.cells, self.norms, strict=True):
            x = x + cell(norm(x))[0]
        return x


@stranger(
    "a residual convolutional net",
    Truth(4, softmax=False, norm_kind="batch", reason=(*NONE, "convol")),
    batch=image,
)
class ResNet(nn.Module):
    class Block(nn.Module):
        def __init__(self, c: int = 16) -> None:
            super().__init__()
            self.conv1, self.conv2 = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2))
            self.bn1, self.bn2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers, self.fc = (
            nn.Conv2d(3, 16, 4, 4),
            nn.Sequential(*(self.Block() for _ in range(4))),
            nn.Linear(16, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


@stranger(
    "a plain convolutional net",
    Truth(None, softmax=False, reason=(*NONE, "convol", "residual", "no repeated", "list of blocks")),
    batch=image,
)
class PlainCNN(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )


@stranger(
    "a mixer of tokens by matrices", Truth(3, softmax=False, sees="full", reason=(*NONE, "mixer")), batch=ids
)
class MLPMixer(Text):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.chan = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), feed()
            self.tok = nn.Sequential(nn.Linear(TOKENS, 24), nn.GELU(), nn.Linear(24, TOKENS))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.tok(self.n1(x).mT).mT
            return x + self.chan(self.n2(x))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@stranger(
    "diagonal state spaces",
    Truth(4, softmax=False, sees="causal", reason=(*NONE, "state"), keep=("*log_a", "*step")),
    batch=ids,
)
class StateSpace(Deep):
    class Layer(nn.Module):
        def __init__(self, states: int = 4) -> None:
            super().__init__()
            self.norm, self.into, self.out = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 2 * WIDTH),
                nn.Linear(WIDTH, WIDTH),
            )
            self.log_a = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(WIDTH, 1))
            self.b, self.c = (
                nn.Parameter(torch.randn(WIDTH, states)),
                nn.Parameter(torch.randn(WIDTH, states)),
            )
            self.step = nn.Parameter(torch.linspace(-3, -1, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            u, z = self.into(self.norm(x)).chunk(2, -1)
            dt = F.softplus(self.step)[:, None]
            decay, h, ys = torch.exp(-dt * self.log_a.exp()), torch.zeros(x.shape[0], *self.b.shape), []
            for t in range(x.shape[1]):
                h = h * decay + dt * self.b * u[:, t, :, None]
                ys.append((h * self.c).sum(-1))
            return x + self.out(torch.stack(ys, 1) * F.silu(z))

    def __init__(self) -> None:
        super().__init__(self.Layer, 4)


@stranger(
    "fourier transforms for mixing",
    Truth(3, softmax=False, sees="full", norm="post", reason=(*NONE, "mixer", "fourier")),
    batch=ids,
)
class Fourier(Deep):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.ff = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), feed()

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x + torch.fft.fft2(x).real)
            return self.b(x + self.ff(x))

    def __init__(self) -> None:
        super().__init__(self.Layer, 3)


@stranger(
    "a perceptron for vectors",
    Truth(None, softmax=False, reason=(*NONE, "residual", "token")),
    batch=lambda: torch.randn(8, WIDTH),
)
class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(part for _ in range(5) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())), nn.Linear(WIDTH, 3)
        )


@stranger(
    "messages on a graph",
    Truth(3, softmax=False, reason=(*NONE, "mixer"), sees="other"),
    batch=lambda: (torch.randn(2, TOKENS, WIDTH), torch.eye(TOKENS).roll(1, 0) + torch.eye(TOKENS)),
)
class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(
            nn.ModuleDict({"message": nn.Linear(WIDTH, WIDTH), "change": feed()}) for _ in range(3)
        )

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for part in self.rounds:
            nodes = nodes + part["change"](edges @ part["message"](nodes))
        return nodes.mean(1)


@stranger(
    "a single attention layer",
    Truth(
        1,
        sees="full",
        gated=None,
        activation=None,
        mlp_branch=None,
        norm="none",
        norm_kind=None,
        skip=0.0,
        reason=("one block", "no repeated", "residual", "single", "1 block", "repeat", "list of blocks"),
    ),
    batch=ids,
)
class SingleAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.attend, self.out = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.pos
        return self.out(self.attend(x, x, x, need_weights=False)[0].mean(1))


@stranger(
    "weights that are not numbers",
    Truth(3, reason=("nan", "not finite", "not a number", "non-finite"), faults=("NEVER_INITIALIZED",)),
    batch=ids,
)
class NaNs(Deep):
    def __init__(self) -> None:
        super().__init__(Step, 3)
        with torch.no_grad():
            self.tower[1].mixing.d.weight[3, 5] = float("nan")


@stranger(
    "plain convolutions and one attention at the end",
    Truth(
        None,
        sees="full",
        norm=None,
        norm_kind=None,
        gated=None,
        activation=None,
        skip=None,
        attention_branch=None,
        mlp_branch=None,
        reason=("convol", "mixer", "repeat", "residual", "list of blocks"),
    ),
    batch=image,
)
class ConvThenAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, WIDTH, 3, 4, 1), nn.ReLU()
        )
        self.pool, self.out = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        return self.out(self.pool(x.mean(1, keepdim=True), x, x)[0][:, 0])
