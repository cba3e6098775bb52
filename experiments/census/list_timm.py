"""Write timm.json: of every architecture file of the installed timm its smallest model, and the side of its images.

python experiments/census/list_timm.py        a quarter of an hour: each of some 1300 models is made without memory
"""

from __future__ import annotations

import json
from pathlib import Path

from torchvision_ops import declare

FILE = Path(__file__).with_name("timm.json")


def smallest() -> dict[str, tuple[str, int]]:
    """Architecture file to (name, side of the image)."""
    declare()
    import timm
    import torch

    best: dict[str, tuple[int, str, int]] = {}
    for family in timm.list_modules():
        for name in timm.list_models(module=family):
            with torch.device("meta"):
                model = timm.create_model(name)
            size = sum(parameter.numel() for parameter in model.parameters())
            row = (size, name, model.default_cfg["input_size"][-1])
            best[family] = min(best.get(family, row), row)
    return {family: (name, side) for family, (_, name, side) in sorted(best.items())}


def main() -> None:
    lines = ",\n".join(f" {json.dumps(family)}: {json.dumps(row)}" for family, row in smallest().items())
    FILE.write_text(f"{{\n{lines}\n}}\n")
    print(f"{FILE} written")


if __name__ == "__main__":
    main()
