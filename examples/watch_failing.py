"""A training run that fails, watched: the learning rate is ramped until the network breaks.

python -m examples.watch_failing FOLDER      writes FOLDER/failing, and FOLDER/failing.png
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.watch import Watch


class CausalEncoder(nn.TransformerEncoder):
    """torch's encoder, in which no token sees those behind it."""

    def forward(self, src: Tensor) -> Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(src.shape[1], src.device)
        return super().forward(src, mask, is_causal=True)


def network() -> nn.Module:
    """A small causal pre-norm transformer that predicts the next token."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 128, 0.0, batch_first=True, norm_first=True)
    stack = CausalEncoder(layer, 3, enable_nested_tensor=False)
    for parameter in stack.parameters():  # torch copies one layer; here each is drawn
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return nn.Sequential(nn.Embedding(32, 32), stack, nn.LayerNorm(32), nn.Linear(32, 32))


def sequences(count: int, generator: torch.Generator) -> Tensor:
    """Tokens that follow each other by a rule, with one in five drawn at random."""
    x = torch.randint(0, 32, (count, 17), generator=generator)
    for place in range(1, 17):
        follows = torch.rand(count, generator=generator) < 0.8
        x[:, place] = torch.where(follows, (5 * x[:, place - 1] + 3) % 32, x[:, place])
    return x


def train(
    model: nn.Module, folder: Path, rate: float, steps: int = 220, e_fold: float | None = 25.0
) -> Watch:
    """A loop as people write it; from step 80 on the rate grows by e every `e_fold` steps."""
    optimizer, criterion = torch.optim.Adam(model.parameters(), rate), nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(1)
    with edgewise.watch(model, folder, everything=True, criterion=criterion, quiet=True) as handle:
        for step in range(steps):
            if e_fold is not None:
                optimizer.param_groups[0]["lr"] = rate * math.exp(max(0, step - 80) / e_fold)
            x = sequences(8, generator)
            optimizer.zero_grad()
            criterion(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimizer.step()
    return handle


def draw(folder: Path, handle: Watch, path: Path) -> None:
    """Loss, stream and logits against the step, with the first alarm."""
    from matplotlib.figure import Figure

    frame = edgewise.read(folder, frame=False)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    rows = (
        ("loss", ["loss"]),
        ("mean square of the stream", [f"block.{i}.norm" for i in range(3)]),
        ("largest logit", [f"block.{i}.largest_logit" for i in range(3)]),
    )
    for axes, (title, columns) in zip(figure.subplots(3, 1, sharex=True), rows, strict=True):
        for column in columns:
            axes.plot(frame["step"], frame[column], label=column.rpartition(".")[0] or None)
        axes.set_yscale("log")
        axes.set_ylabel(title)
        for alarm in handle.alarms:
            axes.axvline(alarm.step, color="0.6", linewidth=0.8)
        if len(columns) > 1:
            axes.legend(loc="upper left", frameon=False)
    axes.set_xlabel("step")
    figure.axes[0].set_title(
        "grey: alarms (" + ", ".join(f"{a.kind.value} {a.step}" for a in handle.alarms) + ")", fontsize=9
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    home = Path(sys.argv[1])
    watched = train(network(), home / "failing", 3e-3)
    for each in watched.alarms:
        print(each, end="\n\n")
    draw(home / "failing", watched, home / "failing.png")
