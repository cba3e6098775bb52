"""`edgewise explore`, `doctor`, `completion`: the page, the versions on this machine, completion in the shell."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata, resources
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from edgewise.cli import exit_codes
from edgewise.cli.exit_codes import printing
from edgewise.cli.options import json_option
from edgewise.errors import BadInput
from edgewise.files import Document

CORE = ("torch", "numpy", "scipy", "click", "rich", "matplotlib", "PyYAML")
OPTIONAL = ("transformers", "timm")
NEEDED = 'the page needs FastAPI and uvicorn, which are not installed: pip install "edgewise[explore]"'
MOMENT_TABLE = "softmax/moments.npz"
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_EDGEWISE_COMPLETE"  # set by the script that the shell has loaded


@click.command()
@click.option(
    "--selftest",
    "tested",
    is_flag=True,
    help="Also run every verb on a small model on this machine's device.",
)
@click.option("--device", help="With --selftest: cpu, cuda or mps; default: what torch sees.")
@json_option
def doctor(as_json: bool, tested: bool, device: str | None) -> int:
    """Print versions and what is available; the exit code is 70 when something needed is missing or does not work."""
    if device is not None and not tested:
        raise BadInput(
            "--device is of --selftest, which is not given. Add --selftest, or leave --device out."
        )
    facts = examine()
    if tested and not facts["problems"]:
        facts["selftest"] = _self_tested(device)
        rows = facts["selftest"]["rows"]
        facts["problems"] = [f"{r['verb']} {r['result']}: {r['note']}" for r in rows if r["result"] != "ok"]
    click.echo(json.dumps(facts) if as_json else _text(facts))
    return exit_codes.INTERNAL_ERROR if facts["problems"] else exit_codes.FINE


def _self_tested(name: str | None) -> Document:
    from edgewise.cli import selftest
    from edgewise.progress import ProgressBar

    device = selftest.chosen_device(name)
    with ProgressBar() as bar:
        return selftest.document(device, list(selftest.self_test(device, bar.say)))


def examine() -> Document:
    """Return everything doctor knows, as plain values; optional packages are noticed and not imported."""
    from edgewise import __version__

    core = {name: _version(name) for name in CORE}
    optional = {name: _version(name) for name in OPTIONAL}
    table, cuda = moment_table(), _cuda()
    # those that this process may use, which in a container are fewer than the machine has
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    problems = [
        f"{name} is not installed: pip install {name}" for name, version in core.items() if not version
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
        "cpus": cpus,
        "cuda": cuda,
        "moment_table": table,
        "problems": problems,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cuda() -> Document:
    try:
        import torch
    except (ImportError, OSError) as error:  # a torch whose libraries do not load raises OSError
        return {"available": False, "devices": 0, "error": " ".join(str(error).split())}
    return {"available": torch.cuda.is_available(), "devices": torch.cuda.device_count(), "error": None}


def moment_table() -> Document:
    """Return whether the shipped table is there, and which one it is (the first digits of its SHA-256)."""
    file = resources.files("edgewise.theory").joinpath(MOMENT_TABLE)
    if not file.is_file():
        return {"present": False, "version": None, "bytes": 0}
    content = file.read_bytes()
    return {"present": True, "version": hashlib.sha256(content).hexdigest()[:12], "bytes": len(content)}


def _text(facts: Document) -> str:
    cuda, table = facts["cuda"], facts["moment_table"]
    size = f"{table['version']}, {table['bytes'] / 1e6:.2f} MB"
    rows = {
        "edgewise": facts["edgewise"],
        "python": f"{facts['python']} on {facts['platform']}",
        **{name: version or "MISSING" for name, version in facts["packages"].items()},
        "processors": str(facts["cpus"]),
        "cuda": f"{cuda['devices']} devices" if cuda["available"] else "not available (not needed)",
        "theory table": size if table["present"] else "MISSING",
        "optional": ", ".join(f"{n} {v}" for n, v in facts["optional"].items() if v) or "none installed",
    }
    lines = [f"{name:<13} {value}" for name, value in rows.items()]
    if "selftest" in facts:
        lines += [
            f"selftest      every verb on {facts['selftest']['device']}, beside the processor in float64"
        ]
        lines += [
            f"  {r['verb']:<12} {r['result']:<8} {r['seconds']:>5.1f} s  {r['note']}"
            for r in facts["selftest"]["rows"]
        ]
    return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in facts["problems"])])


@click.command(
    epilog='bash: add `eval "$(edgewise completion bash)"` to ~/.bashrc. zsh: the same to ~/.zshrc. '
    "fish: edgewise completion fish > ~/.config/fish/completions/edgewise.fish"
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Print the script that completes edgewise in a shell."""
    complete = get_completion_class(shell)
    assert complete is not None
    with printing():
        click.echo(complete.source_template % _names())
    return exit_codes.FINE


def _names() -> dict[str, str]:
    return {"complete_func": "_edgewise_completion", "complete_var": VARIABLE, "prog_name": "edgewise"}


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, metavar="N", help="The port; 0 takes a free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="The address to listen at; other machines can reach all but the default.",
)
@click.option("--share", is_flag=True, help="Allow other machines to ask; prints a token that they need.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def explore(folder: Path | None, port: int, host: str, share: bool, open_page: bool) -> int:
    """Open a local page: put a model on the map, move it to where it trains, take the code home.

    FOLDER holds runs and planes to show; nothing else is read. Nothing leaves this machine, and nothing is loaded
    from elsewhere.
    """
    try:
        from edgewise.explorer.server import serve
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("edgewise"):
            raise
        raise BadInput(f"{NEEDED} ({error})") from error

    def tell(address: str) -> None:
        click.echo(f"edgewise explore: {address}  (Ctrl-C stops it)")
        if open_page:
            import webbrowser

            webbrowser.open(address)

    try:
        serve(host, port, share, tell, folder)
    except KeyboardInterrupt:
        click.echo()
    return exit_codes.FINE
