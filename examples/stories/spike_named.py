"""A spike, announced by what moved before the loss did.

python -m examples.stories.spike_named FOLDER
"""

import sys
from pathlib import Path

import numpy as np

import edgewise
from examples.watch_failing import draw, network, train


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    watched = train(
        network(), folder / "spike", rate=3e-3
    )  # from step 80 on the rate grows by e every 25 steps
    print(watched.alarms[0])
    loss = np.asarray(edgewise.read(folder / "spike")["loss"])
    smooth = np.convolve(loss, np.full(10, 0.1), "valid")
    turns = next(k for k in range(100, len(smooth)) if smooth[k] > 1.5 * smooth[60:k].min()) + 9
    print(f"The first alarm comes at step {watched.alarms[0].step}, the loss turns at step {turns}.")
    draw(folder / "spike", watched, folder / "spike_named.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
