"""Write what the comparison gave as a table, one row per case.

python -m tests.agreement.table    recompute the theory and rewrite agreement.csv from recorded.jsonl
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from rich.progress import track

from .comparison import Comparison, compare, predicted
from .misses import MISSES
from .recording import load

TABLE = Path(__file__).with_name("agreement.csv")


def row(record: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    """A line of the table: exponents of simulation and theory, the gap of each criterion, the outcome."""
    line: dict[str, Any] = {"case": record["name"], "seeds": record["seeds"]}
    line |= {name: record["knobs"][name] for name in ("width", "depth", "tokens")}
    line |= {"start_overlap": record["start_overlap"], "readout": record["readout"]}
    for key in ("angle", "gradient"):
        line[f"{key}_simulated"] = f"{record[key]['mean']:.4f}"
        line[f"{key}_error"] = f"{record[key]['error']:.4f}"
        line[f"{key}_of_mean"] = f"{record['exponent_of_mean'][key]:.4f}"
        line[f"{key}_theory"] = f"{comparison.predicted[key]:.4f}"
    for key, gap in comparison.gaps.items():
        line[f"{key}_gap"] = f"{gap.difference:.4f}"
        line[f"{key}_allowed"] = f"{gap.allowed:.4f}"
    line["apart"] = "explosive" if comparison.explosive else ""
    line["outcome"] = "passed" if comparison.passed else "missed"
    line["reason"] = "" if comparison.passed else MISSES.get(record["name"], "")
    return line


def main() -> None:
    """Rewrite the table."""
    records = track(load().values(), description="theory")
    lines = [row(record, compare(record, predicted(record))) for record in records]
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
