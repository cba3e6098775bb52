"""Layers that are copies: nn.TransformerEncoder copies one layer, so that all start with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgewise.audit.finding import AuditFinding, Kind, Severity
from edgewise.audit.weights import MatrixSummary, siblings

if TYPE_CHECKING:
    from torch import nn


def identical_layers(model: nn.Module, summaries: Sequence[MatrixSummary]) -> Iterator[AuditFinding]:
    """One finding per stack: the random matrices that are equal to those of an earlier block."""
    copies: dict[str, list[tuple[MatrixSummary, MatrixSummary]]] = {}
    for group in siblings([s for s in summaries if s.random]):
        for first, copy in _copies(model, group):
            copies.setdefault(copy.stack, []).append((first, copy))
    for pairs in copies.values():
        yield _finding(pairs)


def _copies(
    model: nn.Module, group: Sequence[MatrixSummary]
) -> Iterator[tuple[MatrixSummary, MatrixSummary]]:
    """(original, copy), by value and not by name: a parameter shared on purpose is not a copy."""
    import torch

    originals: list[MatrixSummary] = []
    for summary in group:
        weight = summary.matrix.weight(model)
        for first in originals:
            if first.rms != summary.rms:  # cheap: equal weights have equal sums
                continue
            if torch.equal(first.matrix.weight(model), weight) and not _shared(model, first, summary):
                yield first, summary
                break
        else:
            originals.append(summary)


def _shared(model: nn.Module, first: MatrixSummary, second: MatrixSummary) -> bool:
    return model.get_parameter(first.parameter) is model.get_parameter(second.parameter)


def _finding(pairs: Sequence[tuple[MatrixSummary, MatrixSummary]]) -> AuditFinding:
    names = tuple(dict.fromkeys(name for _, copy in pairs for name in copy.matrix.parameters))
    blocks = sorted({copy.block for _, copy in pairs})
    originals = sorted({first.block for first, _ in pairs})
    repair = (
        f"for name in {names!r}: torch.nn.init.normal_(model.get_parameter(name), "
        "std=float(model.get_parameter(name).detach().std()))"
    )
    return AuditFinding(
        Kind.IDENTICAL_LAYERS,
        Severity.WARNING,  # such networks train; torch's own encoder is one
        names,
        f"blocks {_spell(blocks)} hold the same values as block {_spell(originals)}",
        "values of its own in every block; copies stay correlated, which no theory of random networks covers",
        repair,
    )


def _spell(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
