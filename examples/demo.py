"""The main job in one page: three models that the world has trained, and one that nobody could.

Run it with `make demo`, or `python examples/demo.py [folder]`. It prints four verdicts and writes
four_models.png and four_models.json into the folder (demo/ unless given).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import edgewise

TOKENS = 64  # short sequences keep the demo short; the theory holds at every length
MODELS = {
    "gpt2": None,
    "llama-2-7b": None,
    "bert-base": None,
    "torch-encoder": 48,
}  # name: depth, if not its own


def main(folder: Path) -> None:
    models = [edgewise.describe(name, depth=depth, tokens=TOKENS) for name, depth in MODELS.items()]
    traces = [edgewise.predict(model) for model in models]
    verdicts = [edgewise.judge(trace) for trace in traces]
    for verdict in verdicts:
        print(f"{verdict}\n")
    folder.mkdir(parents=True, exist_ok=True)
    figure = edgewise.present.depth_profile(traces, verdicts).save(folder / "four_models.png")
    answers = {verdict.name: verdict.json() for verdict in verdicts}
    (folder / "four_models.json").write_text(json.dumps(answers, indent=2))
    print(f"Figure: {figure}   numbers: {folder / 'four_models.json'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
