"""Gains of norms that are not one, biases that are not zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgewise.audit.finding import AuditFinding, Kind, Severity
from edgewise.models.names.gains import norm_gains, root_mean_square
from edgewise.models.names.norm import find_norms

if TYPE_CHECKING:
    from torch import nn

EXACT = 1e-3


def norm_gains_not_one(model: nn.Module, expected: float = 1.0) -> Iterator[AuditFinding]:
    """Measured, since Gemma stores what is added to one."""
    for name in find_norms(model):
        weight = model.get_submodule(name)._parameters.get("weight")
        if weight is None or weight.ndim != 1:
            continue
        gains = norm_gains(model, name)
        worst = float((gains - expected).abs().max())
        if not worst <= EXACT * max(expected, 1.0):  # not finite is not one either
            stored = expected - 1 if _offset(gains, weight) else expected
            yield AuditFinding(
                Kind.NORM_GAIN_NOT_ONE,
                Severity.WARNING,
                (f"{name}.weight",),
                f"gains with root mean square {root_mean_square(gains):.4g}, off by up to {worst:.3g}",
                f"{expected:g} everywhere",
                f"torch.nn.init.constant_(model.get_parameter('{name}.weight'), {stored:g})",
            )


def _offset(gains: object, weight: object) -> bool:
    """Whether the norm multiplies by 1 + weight."""
    import torch

    assert isinstance(gains, torch.Tensor) and isinstance(weight, torch.Tensor)
    return torch.allclose(gains, 1 + weight.detach().double(), atol=1e-3, equal_nan=True)


def biases_not_zero(model: nn.Module) -> Iterator[AuditFinding]:
    """Biases by name, of norms too; one finding per name in a layer, for all layers together."""
    by_pattern: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last.endswith("bias") and not bool((parameter == 0).all()):
            pattern = ".".join("#" if word.isdigit() else word for word in name.split("."))
            by_pattern.setdefault(pattern, []).append(name)
    for names in by_pattern.values():
        yield _bias(model, tuple(names))


def _bias(model: nn.Module, names: tuple[str, ...]) -> AuditFinding:
    size = root_mean_square(model.get_parameter(names[0]))
    return AuditFinding(
        Kind.BIAS_NOT_ZERO,
        Severity.NOTE,
        names,
        f"root mean square {size:.4g}",
        "zero; nn.Linear draws biases unless told otherwise, and they add a common direction to all tokens",
        f"for name in {names!r}: torch.nn.init.zeros_(model.get_parameter(name))",
    )
