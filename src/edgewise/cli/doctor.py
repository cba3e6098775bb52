"""`edgewise doctor`: versions, and what is available on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata, resources
from typing import Any

import click

from edgewise.cli import exit_codes

CORE = ("torch", "numpy", "scipy", "click", "rich", "matplotlib", "PyYAML")
OPTIONAL = ("transformers", "timm")
MOMENT_TABLE = "softmax/moments.npz"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def doctor(as_json: bool) -> int:
    """Print versions and what is available; the exit code is 70 when something needed is missing."""
    facts = examine()
    click.echo(json.dumps(facts) if as_json else _text(facts))
    return exit_codes.INTERNAL_ERROR if facts["problems"] else exit_codes.FINE


def examine() -> dict[str, Any]:
    """Everything doctor knows, as plain values; optional packages are noticed and not imported."""
    from edgewise import __version__

    core = {name: _version(name) for name in CORE}
    optional = {name: _version(name) for name in OPTIONAL}
    table, cuda = moment_table(), _cuda()
    problems = [
        f"{name} is not installed; install edgewise again" for name, version in core.items() if not version
    ]
    if not table["present"]:
        problems.append(f"the table of softmax moments, {MOMENT_TABLE}, is not in the package")
    if cuda["error"] is not None:
        problems.append(f"torch cannot be imported: {cuda['error']}")
    return {
        "edgewise": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": core,
        "optional": optional,
        "cpus": _cpus(),
        "cuda": cuda,
        "moment_table": table,
        "problems": problems,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpus() -> int:
    """The processors this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cuda() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:  # a torch whose libraries do not load raises OSError
        return {"available": False, "devices": 0, "error": " ".join(str(error).split())}
    return {"available": torch.cuda.is_available(), "devices": torch.cuda.device_count(), "error": None}


def moment_table() -> dict[str, Any]:
    """Whether the shipped table is there, and which one it is (the first digits of its SHA-256)."""
    file = resources.files("edgewise.theory").joinpath(MOMENT_TABLE)
    if not file.is_file():
        return {"present": False, "version": None, "bytes": 0}
    content = file.read_bytes()
    return {"present": True, "version": hashlib.sha256(content).hexdigest()[:12], "bytes": len(content)}


def _text(facts: dict[str, Any]) -> str:
    cuda, table = facts["cuda"], facts["moment_table"]
    size = f"{table['version']}, {table['bytes'] / 1e6:.2f} MB"
    rows = {
        "edgewise": facts["edgewise"],
        "python": f"{facts['python']} on {facts['platform']}",
        **{name: version or "MISSING" for name, version in facts["packages"].items()},
        "processors": str(facts["cpus"]),
        "cuda": f"{cuda['devices']} devices" if cuda["available"] else "not available (not needed)",
        "moment table": size if table["present"] else "MISSING",
        "optional": ", ".join(f"{n} {v}" for n, v in facts["optional"].items() if v) or "none installed",
    }
    lines = [f"{name:<13} {value}" for name, value in rows.items()]
    return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in facts["problems"])])
