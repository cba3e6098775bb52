"""A loss that is too good to be true, explained in a second: python -m examples.stories.leak_found FOLDER"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

LAYER = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.readout = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.blocks = nn.TransformerEncoder(LAYER, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm((23, 32))  # averages over tokens too; nn.LayerNorm(32) is right

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.readout(self.norm(self.blocks(self.embed(ids), mask, is_causal=True)))


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model, batches = Network(), [torch.randint(0, 64, (4, 24)) for _ in range(3)]
    loss = lambda model, ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())  # noqa: E731
    report = edgewise.check(model, batches, loss, torch.optim.AdamW(model.parameters(), 1e-3))
    print(report)
    folder.mkdir(parents=True, exist_ok=True)
    report.to_html(folder / "leak_found.html")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
