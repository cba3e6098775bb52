"""Stream one preset, keep what was measured, put theory beside it.

python -m benchmarks.giants llama-3-70b                  measure (half an hour of a quiet core) and compare
python -m benchmarks.giants llama-3-70b --theory-only    compare again with what is recorded
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import edgewise
from benchmarks.machine import Machine
from edgewise.nouns.trace import Trace
from tests.support.memory import peak_megabytes

RESULTS = Path(__file__).parent
WANTED = {"readouts": ("token",), "pair": False}  # what theory predicts too


@click.command()
@click.argument("preset")
@click.option("--tokens", default=32, show_default=True)
@click.option(
    "--blocks", type=int, help="Fewer blocks than the preset has, to estimate the time; nothing is written."
)
@click.option("--theory-only", is_flag=True, help="Do not measure again.")
def main(preset: str, tokens: int, blocks: int | None, theory_only: bool) -> None:
    """Measure the initialization of a preset block by block, one seed, and write it beside theory."""
    path = RESULTS / f"{preset}.json"
    record = json.loads(path.read_text()) if theory_only else measured(preset, tokens, blocks)
    if blocks is None:
        path.write_text(
            json.dumps(record, indent=1) + "\n"
        )  # before theory: an error there must not cost an hour
        record["theory"] = theory(preset, tokens, record["measured"])
        path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["run"], indent=1))


def measured(preset: str, tokens: int, blocks: int | None) -> dict[str, Any]:
    """What the probe reads, with the time and memory that it took."""
    from edgewise.models.source import preset_config

    config = dict(preset_config(preset))
    if blocks is not None:
        config["num_hidden_layers"] = blocks
    before, wall, cpu = Machine.now(), time.perf_counter(), time.process_time()
    trace = edgewise.measure(config, stream=True, tokens=tokens, **WANTED)
    run = {
        "command": f"python -m benchmarks.giants {preset} --tokens {tokens}",
        "peak_megabytes": round(peak_megabytes()),
        "wall_seconds": round(time.perf_counter() - wall),
        "cpu_seconds": round(time.process_time() - cpu),
        "machine": before.sentence(Machine.now()),
        "source": trace.source,
    }
    return {"preset": preset, "config": config, "run": run, "measured": numbers(trace)}


def theory(preset: str, tokens: int, found: dict[str, Any]) -> dict[str, Any]:
    """Theory from the description, started at the measured norm and overlap of the embedding."""
    network = edgewise.describe(preset, tokens=tokens)
    network = network.replace(embedding_norm=found["norm"][0])  # type: ignore[union-attr]
    return numbers(edgewise.predict(network, start_overlap=max(found["overlap"][0], 0.0)))


def numbers(trace: Trace) -> dict[str, Any]:
    """Per block, the embedding first; six digits."""
    rows = {name: rounded(trace.blocks(name)) for name in ("norm", "overlap", "separation")}
    for readout in trace.readouts:
        rows[f"log_gradient.{readout}"] = rounded(trace.blocks("log_gradient", readout))
    if trace.attention_entropy is not None:
        with_attention = ~np.isnan(trace.attention_entropy).all((0, 2))
        rows["attention_entropy"] = rounded(np.nanmean(trace.attention_entropy[:, with_attention], (0, 2)))
    return rows


def rounded(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in np.asarray(values)]


if __name__ == "__main__":
    main()
