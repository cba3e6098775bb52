"""One random network of a description, simulated, to compare with `edgewise.predict`.

No formula of the theory enters, and no probe: a forward pass, two backward passes, sums of squares. Double precision
throughout, so that tokens which have merged to ten digits are still told apart.
Shapes: n tokens, d width, L blocks; a stream is (n, d), a row is (L + 1,), embedding first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.files import Document
from edgewise.nouns.architecture import Architecture, transformer
from edgewise.study.recipe import rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class RandomOrbit:
    """Mean square, 1 - mean cosine, and log |g|^2 over its last for a loss per token and for a pooled one."""

    norm: Array
    separation: Array
    token_gradient: Array
    pooled_gradient: Array


def simulated(architecture: Architecture, *, seed: int, start_overlap: float = 0.0) -> RandomOrbit:
    """Return the orbit of one random network that starts from Gaussian tokens of the given overlap."""
    import numpy as np
    import torch

    with torch.random.fork_rng():
        streams = _streams(architecture, seed, start_overlap)
        directions = torch.randn_like(streams[-1])  # of the last block, one row per token
        gradients = [_log_squares(streams, g) for g in (directions, directions[:, :1].expand_as(directions))]
    with torch.no_grad():
        norm = np.array([stream.square().mean().item() for stream in streams])
        return RandomOrbit(norm, np.array([_separation(stream[0]) for stream in streams]), *gradients)


def simulated_orbit(case: Document) -> Document:
    """Return `simulated` for a recipe: a case with knobs, seed and start_overlap to rows of few digits, by name."""
    network = transformer(**case["knobs"])
    orbit = simulated(network, seed=case["seed"], start_overlap=case["start_overlap"])
    return {name: rounded(row) for name, row in vars(orbit).items()}


def simulated_streams(architecture: Architecture, *, seed: int, start_overlap: float = 0.0) -> list[Tensor]:
    """Return the tokens of the same network at the embedding and after every block, each (n, d)."""
    import torch

    with torch.random.fork_rng(), torch.no_grad():
        return [stream[0] for stream in _streams(architecture, seed, start_overlap)]


def _streams(architecture: Architecture, seed: int, start_overlap: float) -> list[Tensor]:
    import torch

    from edgewise.nets.build import BlockStack, random_tokens

    torch.manual_seed(seed)
    tokens, network = random_tokens(architecture, start_overlap), BlockStack(architecture).double()
    return network.requires_grad_(False).streams(tokens.requires_grad_(torch.is_grad_enabled()))


def _separation(tokens: Tensor) -> float:
    """Mean of 1 - cosine over pairs, as sum_a |u_a - mean u|^2 / (n - 1) of unit tokens: nothing cancels."""
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    return float((unit - unit.mean(0)).square().sum() / (len(unit) - 1))


def _log_squares(streams: list[Tensor], output_gradient: Tensor) -> Array:
    """log of |g|^2 at every stream over that at the last one."""
    import numpy as np
    import torch

    gradients = torch.autograd.grad(streams[-1], streams[:-1], output_gradient, retain_graph=True)
    squares = np.array([float(g.square().sum()) for g in (*gradients, output_gradient)])
    return np.asarray(np.log(squares / squares[-1]))
