"""The extra peak memory of one attention call in a process of its own: benchmarks.one_attention KERNEL n."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise import nets

ROOT = Path(__file__).parents[1]
HEADS, HEAD_WIDTH = 2, 32
PASSES = ("forward", "forward and backward")


def direct_gaussian(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """exp(-s |q - k|^2 / 2) v with the whole map, squares expanded so that the work is one matrix product."""
    s = query.shape[-1] ** -0.5
    squares = [x.square().sum(-1, keepdim=True) / 2 for x in (query, key)]
    return torch.exp(s * (query @ key.mT - squares[0] - squares[1].mT)) @ value


KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "null key": nets.gaussian_attention,
    "direct": direct_gaussian,
    "fused softmax": F.scaled_dot_product_attention,
}


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(1, HEADS, n, HEAD_WIDTH, generator=generator).requires_grad_() for _ in range(3)]


def call(kernel: str, tensors: list[Tensor], which: str) -> None:
    if which == "forward":
        with torch.no_grad():
            KERNELS[kernel](*tensors)
    else:
        torch.autograd.grad(KERNELS[kernel](*tensors).sum(), tensors)


def extra_megabytes(kernel: str, n: int) -> dict[str, float]:
    """Peak minus what was resident before, by pass, measured in one fresh process: the second pass needs more."""
    command = [sys.executable, "-m", "benchmarks.one_attention", kernel, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(zip(PASSES, map(float, done.stdout.split()), strict=True))


def _resident(name: str) -> float:
    with open("/proc/self/status") as status:
        return float(next(line for line in status if line.startswith(name)).split()[1]) / 1e3


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked, tokens = sys.argv[1], int(sys.argv[2])
    call(asked, inputs(128), PASSES[1])  # libraries are loaded and small pools filled
    given = inputs(tokens)
    before = _resident("VmRSS")
    for which in PASSES:
        call(asked, given, which)
        print(max(_resident("VmHWM") - before, 0.0))
