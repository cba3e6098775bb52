"""A phase diagram and the flow of one block, for the documentation: python examples/phases.py [folder]"""

import math
import sys
from pathlib import Path

import edgewise


def network(gain: float) -> edgewise.Architecture:
    """The family of Cowsik et al.: tanh, pre-norm, skips sqrt(1 - branch^2); with a bias both edges exist."""
    skips = {"attention_skip": math.sqrt(0.96), "mlp_skip": math.sqrt(0.75)}
    branches = {"attention_branch": 0.2, "mlp_branch": 0.5}
    return edgewise.transformer(
        depth=32, tokens=64, activation="tanh", mlp_bias=0.3, mlp_in_gain=gain, **skips, **branches
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    axes = {"mlp_in_gain": (0.3, 4.0, 120), "attention_branch": (0.02, 1.0, 100)}
    diagram = edgewise.phase_diagram(network(1.5), axes)
    edgewise.present.phase_diagram(diagram).save(folder / "phase_diagram.png")
    field = edgewise.critical.vector_field(network(3.0), norms=(0.1, 4.0, 18), overlaps=(0.0, 0.98, 15))
    edgewise.present.vector_field(field).save(folder / "vector_field.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
