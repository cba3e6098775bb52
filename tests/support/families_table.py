"""Writes the tables of research/families.md from what `sites`, `describe` and `audit` find. Not a test.

python -m tests.support.families_table      needs transformers; some ten seconds
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from torch import nn

from edgewise.audit.finding import AuditKind
from edgewise.audit.inspect import audit_initialization
from edgewise.models.describe import describe
from edgewise.models.model_map import sites
from edgewise.models.names.model_sites import BlockSite, ModelSites, Projection
from tests.support.handwritten import HANDWRITTEN
from tests.support.models import FAMILIES

PAGE = Path(__file__).parents[2] / "research" / "families.md"
HEAD = (
    "| family | blocks found | attention: q, k, v, o | MLP: gate, in, out | norms | notes |",
    "|---|---|---|---|---|---|",
)


def table(models: dict[str, nn.Module]) -> list[str]:
    return [*HEAD, *(row(name, model) for name, model in models.items())]


def row(name: str, model: nn.Module) -> str:
    found = sites(model)
    block = found.blocks[-1]
    stacks = ", ".join(f"{len(stack.blocks)} in `{stack.name}`" for stack in found.stacks)
    cells = (
        name,
        stacks,
        matrices(block.attention.projections, block),
        mlp(block),
        norms(found, block),
        "; ".join(notes(model, found)),
    )
    return f"| {' | '.join(cells)} |"


def matrices(projections: tuple[Projection, ...], block: BlockSite) -> str:
    names = dict.fromkeys(short(p, block) for p in projections)
    return ", ".join(f"`{name}`" for name in names)


def short(matrix: Projection, block: BlockSite) -> str:
    words = matrix.parameter.removeprefix(f"{block.name}.").removesuffix(".weight").split(".")
    return ".".join(words[-2:] if words[-1] in ("dense", "0", "2") else words[-1:])


def mlp(block: BlockSite) -> str:
    listed = matrices(tuple(p for p in block.mlp.projections if p.role != "router"), block)
    return listed + (f", router `{short(block.mlp.router, block)}`" if block.mlp.router else "")


def norms(found: ModelSites, block: BlockSite) -> str:
    stack = found.stacks[0]
    inner = [n.name.rpartition(".")[2] for n in block.norms if n.role.endswith("norm")]
    kind = "RMS" if "rms" in {n.kind for n in block.norms if not n.role.endswith("norm")} else "Layer"
    parallel = ", parallel" if stack.parallel else ""
    return f"{stack.norm}{parallel}, {kind}" + (
        f", and {', '.join(f'`{name}`' for name in inner)}" if inner else ""
    )


def notes(model: nn.Module, found: ModelSites) -> list[str]:
    """Layouts, what has no role, and what the audit says about the weights as they come."""
    block, said = found.blocks[-1], []
    query, inward = block.attention.query, block.mlp.gate or block.mlp.input
    if query.rows is not None:
        said.append(
            "q, k, v fused" + (f", in {query.rows.groups} groups of rows" if query.rows.groups > 1 else "")
        )
    if block.attention.extra:
        said.append("q, k, v from latents")
    if len(query.parameters) > 1:
        said.append("a matrix per head")
    if inward.rows is not None:
        said.append("gate and in fused" + (", alternating" if inward.rows.groups > 1 else ""))
    if query.transposed or inward.transposed:
        said.append("stored (in, out)")
    if inward.experts:
        said.append("experts in three dimensions")
    if block.scales:
        said.append("LayerScale")
    if found.unrecognized:
        names = dict.fromkeys(name.removesuffix(".weight").rpartition(".")[2] for name in found.unrecognized)
        said.append("no role: " + ", ".join(f"`{name}`" for name in names))
    return said + audited(model)


def audited(model: nn.Module) -> list[str]:
    """One entry per kind of finding, with the first parameter it names."""
    first: dict[AuditKind, list[str]] = {}
    for finding in audit_initialization(model):
        if finding.kind is not AuditKind.TIED:
            first.setdefault(finding.kind, []).append(finding.parameter)
    more = {kind: f" and {len(names) - 1} more" if len(names) > 1 else "" for kind, names in first.items()}
    return [f"audit: {kind.value} (`{names[0]}`{more[kind]})" for kind, names in first.items()]


def sizes(models: dict[str, nn.Module]) -> list[str]:
    """Depth, width, heads as described from the module and from its config."""
    lines = ["| family | depth | width | heads | key heads | head width | MLP | norm |", "|---" * 8 + "|"]
    for name, model in models.items():
        seen, said = describe(model), describe(model.config)
        knobs = ("depth", "width", "heads", "kv_heads", "head_width", "mlp_width", "norm")
        values = [
            str(getattr(seen, k))
            if getattr(seen, k) == getattr(said, k)
            else f"{getattr(seen, k)} (config: {getattr(said, k)})"
            for k in knobs
        ]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return lines


def lines_of(names: Collection[str]) -> list[str]:
    """The lines of some families in all three tables, as they are today."""
    families, unseen = (_built(models, names) for models in (FAMILIES, HANDWRITTEN))
    return [*table(families)[len(HEAD) :], *sizes(families)[2:], *table(unseen)[len(HEAD) :]]


def _built(
    models: Mapping[str, Callable[[], nn.Module]], names: Collection[str] | None = None
) -> dict[str, nn.Module]:
    return {name: make() for name, make in models.items() if names is None or name in names}


def page() -> str:
    """The page with all three tables written anew between their marks."""
    text = PAGE.read_text()
    families, unseen = _built(FAMILIES), _built(HANDWRITTEN)
    for mark, lines in (("families", table(families)), ("sizes", sizes(families)), ("unseen", table(unseen))):
        start, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        before, _, rest = text.partition(start)
        text = before + start + "\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
