"""The main job in one page: three models that the world has trained, and one that nobody could.

Run it with `make demo`, or `python examples/demo.py [folder]`. It prints four verdicts and writes
four_models.png and four_models.json into the folder (demo/ unless given).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import edgewise

TOKENS = 64  # short sequences keep the demo short; the theory holds at every length


def stacked_encoder() -> edgewise.Architecture:
    """`torch.nn.TransformerEncoder` as it comes (post-norm, width 512), 48 layers deep.

    Its matrices start uniform: gain² is 1/2 for queries, keys and values (Xavier on the stacked matrix) and
    1/3 for every other one; the hidden bias has variance 1/(3 width).
    """
    third = math.sqrt(1 / 3)
    return edgewise.transformer(
        depth=48, width=512, heads=8, mlp_width=2048, activation="relu", norm="post",
        score_gain=0.5, value_gain=math.sqrt(0.5) * third, mlp_in_gain=third, mlp_out_gain=third,
        mlp_bias=math.sqrt(1 / (3 * 512)), tokens=TOKENS,
    ).replace(name="nn.TransformerEncoder")  # fmt: skip


def main(folder: Path) -> None:
    models = [edgewise.describe(name, tokens=TOKENS) for name in ("gpt2", "llama-2-7b", "bert-base")]
    traces = [edgewise.predict(model) for model in (*models, stacked_encoder())]
    verdicts = [edgewise.judge(trace) for trace in traces]
    for verdict in verdicts:
        print(f"{verdict}\n")
    folder.mkdir(parents=True, exist_ok=True)
    figure = edgewise.view.depth_profile(traces, verdicts).save(folder / "four_models.png")
    answers = {verdict.name: verdict.json() for verdict in verdicts}
    (folder / "four_models.json").write_text(json.dumps(answers, indent=2))
    print(f"Figure: {figure}   numbers: {folder / 'four_models.json'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
