"""The audit of the weights in words: errors lead the screen, by group of parameters; repairs go to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgewise.audit.finding import AuditFinding, Severity
from edgewise.files import whole_file
from edgewise.present.wording import group

HEADER = '''"""Repairs of the initialization, written by edgewise: call repair(model) before training."""

import torch


@torch.no_grad()
def repair(model):
    """Every repair in turn; the model is changed in place."""
'''


def write_repair(path: Path, audit: Sequence[AuditFinding]) -> int:
    """A module with `repair(model)` that mends what was found, errors and warnings; how many there are."""
    repairs = [finding for finding in audit if finding.severity is not Severity.NOTE and finding.repair]
    body = [
        f"    # {finding.kind.value}: {group(finding.parameters)}\n    {finding.repair}\n"
        for finding in repairs
    ]
    source = HEADER + ("".join(body) or "    # nothing to repair\n") + "    return model\n"
    with whole_file(path) as file:
        file.write(source.encode())
    return len(repairs)
