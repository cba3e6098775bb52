"""A random network of a description, measured: what `edgewise.predict` is compared with.

No formula of the theory enters; weights are drawn in double precision, so that merged tokens are still told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from edgewise.architecture import Architecture
    from edgewise.trace import Trace


def simulated(
    architecture: Architecture, *, seed: int, start_overlap: float = 0.0, readouts: Sequence[str] = ("token", "pooled")
) -> Trace:
    """The measured orbit of one random network that starts from Gaussian tokens of the given overlap."""
    import torch

    from edgewise.nets.stack import Stack, random_tokens
    from edgewise.probe.measure import measure

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokens, network = random_tokens(architecture, start_overlap), Stack(architecture).double()
        return measure(network, tokens, readouts=readouts, attention=False, pair=False)


def simulated_streams(architecture: Architecture, *, seed: int, start_overlap: float = 0.0) -> list[Tensor]:
    """The tokens of the same network at the embedding and after every block, each (tokens, width)."""
    import torch

    from edgewise.nets.stack import Stack, random_tokens

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        tokens, network = random_tokens(architecture, start_overlap), Stack(architecture).double()
        return [stream[0] for stream in network.streams(tokens)]
