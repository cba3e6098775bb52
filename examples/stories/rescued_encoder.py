"""A 48-layer encoder that learns nothing, and learns after one line.

python -m examples.stories.rescued_encoder FOLDER
"""

import sys
from pathlib import Path

from torch import nn

import edgewise
from edgewise.study import prove


def encoder() -> nn.Module:
    """torch's encoder with its default initialization."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 48, enable_nested_tensor=False)


def main(folder: Path) -> None:
    print(edgewise.judge(edgewise.predict("torch-encoder", depth=48, tokens=16)))
    proof = prove(encoder, "critical", steps=120, seeds=3, rates=[3e-4], size=32)  # trains both, on digits
    print(proof)
    folder.mkdir(parents=True, exist_ok=True)
    edgewise.present.proof_sheet(proof).save(folder / "rescued_encoder.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
