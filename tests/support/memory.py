"""The peak of a process's resident memory, and of a streamed model in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# One block of this Llama holds 23 MB, so that many of them stand out against what Python and torch take.
WIDTH, MLP_WIDTH = 512, 3072
BLOCK_MEGABYTES = 4 * (4 * WIDTH**2 + 3 * WIDTH * MLP_WIDTH) / 1e6


def peak_megabytes() -> float:
    """VmHWM of this process; ru_maxrss is inherited from the process that started it and hides what it should show."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return float(line.split()[1]) / 1e3


def streamed_peaks(*depths: int) -> list[float]:
    """Peak memory in MB of a fresh process after a streamed Llama of each depth, shallow first, with imports."""
    command = [sys.executable, "-m", "tests.support.memory", *map(str, sorted(depths))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [float(line) for line in done.stdout.split()[-len(depths) :]]


def main(depths: list[int]) -> None:
    import transformers

    from edgewise.probe.measure import measure

    for depth in depths:
        config = transformers.LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=MLP_WIDTH,
            num_hidden_layers=depth,
            num_attention_heads=8,
            vocab_size=64,
            max_position_embeddings=64,
        )
        measure(config, stream=True, tokens=8)
        print(peak_megabytes())


if __name__ == "__main__":
    main([int(depth) for depth in sys.argv[1:]])
