"""The phase diagram of your own block, over two settings of your choice.

python -m examples.stories.own_phase_diagram FOLDER
"""

import sys
from pathlib import Path

import edgewise


def main(folder: Path) -> None:
    block = edgewise.transformer(depth=24, width=512, heads=8, tokens=128, norm="post", activation="gelu")
    axes = {"mlp_in_gain": (0.2, 3.0, 60), "attention_branch": (0.0, 1.5, 50)}
    diagram = edgewise.phase_diagram(block, axes)
    print(edgewise.judge(edgewise.predict(block)))
    folder.mkdir(parents=True, exist_ok=True)
    edgewise.present.phase_diagram(diagram).save(folder / "own_phase_diagram.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
