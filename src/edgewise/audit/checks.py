"""What fresh weights can show to be wrong: one generator of findings for each kind of fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from edgewise.arrays import in_double
from edgewise.audit.finding import (
    AuditFinding,
    AuditKind,
    AuditSeverity,
    MatrixSummary,
    group_by,
    redraw,
    siblings,
)
from edgewise.errors import BadInput
from edgewise.models.config.reader import truncated
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import ModelSites
from edgewise.models.names.norm import find_norms, gain_name
from edgewise.models.names.weight_gains import is_structured, norm_gains, root_mean_square
from edgewise.nouns.architecture import Architecture

if TYPE_CHECKING:
    from torch import nn

HUGE = 1e3  # no recipe draws entries like this; memory that was never written often holds them
OUTPUTS = ("attention.output", "mlp.output")
BACK = (*OUTPUTS, "cross.output", "shared.output")  # all that lead back to the stream
CLOSE = 0.1  # in log: within a tenth of the factor looked for
LEAST_DEPTH = 3  # below, 1/sqrt(2 depth) cannot be told from other factors
CUTS_NOTHING = 4.0  # a normal number lies beyond it once in 16,000 draws
KEYS = ("initializer_cutoff_factor",)
EXACT = 1e-3


def identical_layers(model: nn.Module, summaries: Sequence[MatrixSummary]) -> Iterator[AuditFinding]:
    """One finding per stack: the random matrices that are equal to those of an earlier block."""
    copies: dict[str, list[tuple[MatrixSummary, MatrixSummary]]] = {}
    drawn = [
        s for s in summaries if s.random and (s.matrix.role or not is_structured(s.matrix.weight(model)))
    ]
    for group in siblings(drawn):
        for first, copy in _copies(model, group):
            copies.setdefault(copy.stack, []).append((first, copy))
    for pairs in copies.values():
        names = tuple(dict.fromkeys(name for _, copy in pairs for name in copy.matrix.parameters))
        blocks = _spell(sorted({copy.block for _, copy in pairs}))
        originals = _spell(sorted({first.block for first, _ in pairs}))
        yield AuditFinding(
            AuditKind.IDENTICAL_LAYERS,
            AuditSeverity.WARNING,  # such networks train; torch's own encoder is one
            names,
            f"blocks {blocks} hold the same values as block {originals}",
            "values of its own in every block; copies stay correlated, which no theory of random networks covers",
            f"for name in {names!r}: torch.nn.init.normal_(model.get_parameter(name), "
            "std=float(model.get_parameter(name).detach().std()))",
        )


def _copies(
    model: nn.Module, group: Sequence[MatrixSummary]
) -> Iterator[tuple[MatrixSummary, MatrixSummary]]:
    """(original, copy), by value and not by name: a parameter shared on purpose is not a copy."""
    originals: list[MatrixSummary] = []
    for summary in group:
        weight = summary.matrix.weight(model)
        for first in originals:
            if first.rms != summary.rms:  # cheap: equal weights have equal sums
                continue
            shared = model.get_parameter(first.parameter) is model.get_parameter(summary.parameter)
            shared &= first.matrix.index == summary.matrix.index
            if torch.equal(first.matrix.weight(model), weight) and not shared:
                yield first, summary
                break
        else:
            originals.append(summary)


def _spell(numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def never_initialized(
    model: nn.Module, embeddings: Sequence[str], summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """One finding per role with bad matrices, and per bad embedding."""
    usable = [s.rms for s in summaries if s.random and s.largest < HUGE]
    usual = median(usable) if usable else 0.02
    for group in siblings(summaries):
        yield from _of_role(group, usual)
    modules, own = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    for name in embeddings:
        parameter = f"{name}.weight" if name in modules else name
        if parameter not in own:  # computed from others, as by weight_norm
            continue
        tensor = own[parameter].detach()
        low, high = (float(x) for x in tensor.aminmax())
        finite = math.isfinite(low) and math.isfinite(high)
        # Constant or not finite. One row alone is a token, which may well start at zero.
        if tensor.numel() == tensor.shape[-1] or (finite and high > low):
            continue
        added = (
            low == high == 0 and tensor.ndim > 2 and len(tensor) == 1
        )  # to every entry of a batch: positions
        usual_severity = AuditSeverity.NOTE if added else AuditSeverity.WARNING
        yield AuditFinding(
            AuditKind.NEVER_INITIALIZED,
            usual_severity if finite else AuditSeverity.ERROR,
            (parameter,),
            f"all entries are {float(tensor.flatten()[0]):.3g}" if finite else "entries not finite",
            "random entries, so that rows (tokens, positions) differ",
            f"torch.nn.init.normal_(model.get_parameter({parameter!r}), std={usual:.6g})",
        )


def _of_role(group: Sequence[MatrixSummary], usual: float) -> Iterator[AuditFinding]:
    bad = [summary for summary in group if not summary.random or summary.largest >= HUGE]
    if not bad:
        return
    others = [summary.rms for summary in group if summary not in bad]
    std = median(others) if others else usual
    # A whole role of zero output matrices is a known design: the branches start silent.
    if bad[0].matrix.role:
        silent = bad[0].role.endswith(".output") and not any(summary.rms for summary in bad)
    else:  # of a role that is not known constants may be meant: gates, time steps
        silent = all(summary.finite and summary.largest < HUGE for summary in bad)
    silent &= len(bad) == len(group)
    severity = AuditSeverity.NOTE if silent else AuditSeverity.ERROR
    expected = (
        "random entries, unless the branches start silent on purpose"
        if silent
        else (
            f"random entries of standard deviation near {std:.3g}, like its siblings"
            if others
            else "random entries"
        )
    )
    names = tuple(name for summary in bad for name in summary.matrix.parameters)
    yield AuditFinding(
        AuditKind.NEVER_INITIALIZED,
        severity,
        names,
        _observation(bad[0]),
        expected,
        redraw([b.matrix for b in bad], std),
    )


def _observation(summary: MatrixSummary) -> str:
    if not summary.finite:
        return f"{summary.role}: entries that are not finite"
    if summary.largest >= HUGE:
        return f"{summary.role}: an entry as large as {summary.largest:.3g}"
    return f"{summary.role}: all entries are {'zero' if not summary.rms else f'equal or vanishing, {summary.rms:.3g}'}"


def residual_scaling(
    recipe: dict[tuple[str, int], float] | None, depth: int, summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """With a family's recipe: what it scales and is not. Without: scaling that does not belong."""
    factor = 1 / math.sqrt(2 * depth)
    drawn = [s for s in summaries if s.random and s.stack == summaries[0].stack]
    groups = {group[0].role: group for group in group_by(drawn, lambda s: s.role) if len(group) == depth}
    if depth < LEAST_DEPTH or not groups:
        return
    stds = {role: median(summary.rms for summary in group) for role, group in groups.items()}
    base = _common(stds)
    if base is None:
        return
    scaled = {role for role, std in stds.items() if _near(std, base * factor)}
    targets = _scaled_by(recipe, factor) if recipe else ({*OUTPUTS} if scaled else set())
    yield from _misscaled_roles(groups, scaled, targets & set(stds), base, base * factor)


def _common(stds: dict[str, float]) -> float | None:
    """The standard deviation of most matrices that read the stream; None where a recipe goes by fan-in."""
    inward = [std for role, std in stds.items() if role not in BACK]
    middle = median(inward)
    agree = sum(_near(std, middle) for std in inward)
    return middle if 2 * agree > len(inward) else None


def _near(value: float, target: float) -> bool:
    return abs(math.log(value / target)) < CLOSE


def _scaled_by(recipe: dict[tuple[str, int], float], factor: float) -> set[str]:
    """The output roles that the recipe scales."""
    plain = median(std for (role, _), std in recipe.items() if role not in BACK)
    return {role for role in OUTPUTS if (role, 0) in recipe and _near(recipe[role, 0], plain * factor)}


def _misscaled_roles(
    groups: dict[str, list[MatrixSummary]], scaled: set[str], targets: set[str], base: float, small: float
) -> Iterator[AuditFinding]:
    misplaced, missing = sorted(scaled - {*BACK}), sorted(targets - scaled)
    for role in misplaced:
        yield _misscaled(
            AuditKind.RESIDUAL_SCALING_MISPLACED,
            groups[role],
            base,
            f"{role} is smaller by 1/sqrt(2 depth): {small:.4g}",
            f"{base:.4g} here; the factor belongs to the output matrices of both branches",
        )
    for role in missing:
        near = [summary for summary in groups[role] if _near(summary.rms, base)]
        if len(near) == len(groups[role]):
            yield _misscaled(
                AuditKind.RESIDUAL_SCALING_MISSING,
                near,
                small,
                f"{role} has standard deviation {near[0].rms:.4g}",
                f"{small:.4g}: 1/sqrt(2 depth) of the other matrices, on the output matrices of both branches",
            )


def _misscaled(
    kind: AuditKind, group: Sequence[MatrixSummary], std: float, observation: str, expected: str
) -> AuditFinding:
    names = tuple(name for summary in group for name in summary.matrix.parameters)
    return AuditFinding(
        kind, AuditSeverity.WARNING, names, observation, expected, redraw([g.matrix for g in group], std)
    )


def recipe_of(
    config: dict[str, Any], architecture: Architecture, sites: ModelSites
) -> dict[tuple[str, int], float]:
    """Standard deviation by (role, block) of the primary stack, from the gains its config translates to.

    Queries, keys and values are drawn alike in every family (T5: queries smaller by sqrt(d_kv)); the gains of
    a description include the norms' gains, which T5 starts at its factor f.
    """
    f = float(config.get("initializer_factor", 1.0)) if config["model_type"] == "t5" else 1.0
    t5_query = 1 / math.sqrt(architecture.head_width) if config["model_type"] == "t5" else 1.0
    recipe: dict[tuple[str, int], float] = {}
    for index, block in enumerate(sites.blocks):
        value, output, inward, out = (
            _gain_at(architecture, name, index)
            for name in ("value_gain", "output_gain", "mlp_in_gain", "mlp_out_gain")
        )
        if not output or not inward:
            continue
        s = value / output / f / math.sqrt(block.attention.value.fan_in)
        t, back = (
            inward / f / math.sqrt(block.feed_forward.input.fan_in),
            out / math.sqrt(block.feed_forward.output.fan_in),
        )
        o = output / math.sqrt(block.attention.output.fan_in)
        attention = {
            "query": s * t5_query,
            "key": s,
            "value": s,
            "output": o,
            "query_down": s,
            "key_value_down": s,
            "key_rotated": s,
        }
        recipe |= {(f"attention.{role}", index): std for role, std in attention.items()}
        for owner in ("mlp", "shared"):
            mlp = {"gate": t, "input": t, "router": t, "output": back}
            recipe |= {(f"{owner}.{role}", index): std for role, std in mlp.items()}
    return recipe


def _gain_at(architecture: Architecture, name: str, index: int) -> float:
    value = getattr(architecture, name)
    return float(value[index] if isinstance(value, tuple) else value)


def unlike_recipe(
    recipe: dict[tuple[str, int], float], summaries: Sequence[MatrixSummary]
) -> Iterator[AuditFinding]:
    """One finding per role and expected value: all the layers that depart from it."""
    listed = [s for s in summaries if s.random and (s.role, s.block) in recipe]
    wrong = [s for s in listed if s.departs_from(recipe[s.role, s.block])]
    for group in group_by(wrong, lambda s: (s.role, recipe[s.role, s.block], s.matrix.rows)):
        first = group[0]
        expected = recipe[first.role, first.block]
        yield AuditFinding(
            AuditKind.DEPARTS_FROM_RECIPE,
            AuditSeverity.WARNING,
            tuple(n for s in group for n in s.matrix.parameters),
            f"{first.role} has standard deviation {first.rms:.4g}",
            f"{expected:.4g}, which the family publishes",
            redraw([summary.matrix for summary in group], expected),
        )


def unlike_siblings(summaries: Sequence[MatrixSummary]) -> Iterator[AuditFinding]:
    """Robust z of log rms against the median of the layers, whose own error is small beside one layer's.

    Where more than a third of the layers depart, the depth has a schedule (some recipes shrink with the layer)
    and no layer is the odd one.
    """
    for group in siblings([s for s in summaries if s.random]):
        if len(group) < 3:
            continue
        middle = median(summary.rms for summary in group)
        odd = [summary for summary in group if summary.departs_from(middle)]
        for summary in odd if len(odd) <= len(group) / 3 else ():
            errors = abs(math.log(summary.rms / middle)) / summary.error
            yield AuditFinding(
                AuditKind.DEPARTS_FROM_SIBLINGS,
                AuditSeverity.WARNING,
                summary.matrix.parameters,
                f"{summary.role} of block {summary.block} has standard deviation {summary.rms:.4g} "
                f"({errors:.0f} sampling errors away)",
                f"{middle:.4g}, as in the other blocks",
                redraw([summary.matrix], middle),
            )


def useless_truncation(
    config: dict[str, Any], summaries: Sequence[MatrixSummary], truncated_at: float | None
) -> Iterator[AuditFinding]:
    """Find matrices whose entries reach beyond the cut at c sigma that the config (or the caller) states.

    A normal cut at c has standard deviation f(c) s, so no entry exceeds c/f(c) standard deviations.
    """
    key = next((key for key in KEYS if config.get(key) is not None), None)
    cutoff = truncated_at if truncated_at is not None else (float(config[key]) if key else None)
    if cutoff is None:
        return
    if not cutoff > 0:
        raise BadInput(f"truncated_at must be a number of sigmas above 0, got {cutoff!r}.")
    source = f"the config's {key}" if truncated_at is None else "truncated_at"
    if cutoff >= CUTS_NOTHING:
        yield AuditFinding(
            AuditKind.TRUNCATION_CUTS_NOTHING,
            AuditSeverity.WARNING,
            tuple(summary.parameter for summary in summaries[:1]),
            f"{source} cuts at {cutoff:g} sigma",
            "a cut near 2 or 3 sigma; beyond 4 it changes nothing",
            f"model.config.{KEYS[0]} = 2.0; model.init_weights()",
        )
        return
    limit = cutoff / truncated(1.0, cutoff)
    for group in group_by([s for s in summaries if s.random], lambda s: (s.stack, s.role)):
        beyond = [s for s in group if s.largest / s.rms > limit * (1 + 4 * s.error)]
        if not beyond:
            continue
        names, std = tuple(name for s in beyond for name in s.matrix.parameters), beyond[0].rms
        yield AuditFinding(
            AuditKind.TRUNCATION_CUTS_NOTHING,
            AuditSeverity.WARNING,
            names,
            f"{beyond[0].role} reaches {max(s.largest / s.rms for s in beyond):.2f} standard deviations",
            f"at most {limit:.2f}, as {source} cuts at {cutoff:g} sigma; a and b of trunc_normal_ are "
            "numbers, not multiples of std",
            f"for name in {names!r}: torch.nn.init.trunc_normal_(model.get_parameter(name), std={std:.6g}, "
            f"a={-cutoff * std:.6g}, b={cutoff * std:.6g})",
        )


def norm_gains_not_one(model: nn.Module, expected: float = 1.0) -> Iterator[AuditFinding]:
    """Measured, since Gemma stores what is added to one."""
    for name in find_norms(model):
        gain = gain_name(model.get_submodule(name))
        if gain is None:
            continue
        weight = model.get_parameter(f"{name}.{gain}")
        gains = norm_gains(model, name)
        worst = float((gains - expected).abs().max())
        if not worst <= EXACT * max(expected, 1.0):  # not finite is not one either
            added = torch.allclose(gains, 1 + in_double(weight.detach()), atol=1e-3, equal_nan=True)
            stored = expected - 1 if added else expected
            yield AuditFinding(
                AuditKind.NORM_GAIN_NOT_ONE,
                AuditSeverity.WARNING,
                (f"{name}.{gain}",),
                f"gains with root mean square {root_mean_square(gains):.4g}, off by up to {worst:.3g}",
                f"{expected:g} everywhere",
                f"torch.nn.init.constant_(model.get_parameter('{name}.{gain}'), {stored:g})",
            )


def biases_not_zero(model: nn.Module) -> Iterator[AuditFinding]:
    """Biases by name, of norms too; one finding per name in a layer, for all layers together."""
    by_pattern: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last.endswith("bias") and not bool((parameter == 0).all()):
            pattern = ".".join("#" if word.isdigit() else word for word in name.split("."))
            by_pattern.setdefault(pattern, []).append(name)
    for listed in by_pattern.values():
        names = tuple(listed)
        yield AuditFinding(
            AuditKind.BIAS_NOT_ZERO,
            AuditSeverity.NOTE,
            names,
            f"root mean square {root_mean_square(model.get_parameter(names[0])):.4g}",
            "zero; nn.Linear draws biases unless told otherwise, and they add a common direction to all tokens",
            f"for name in {names!r}: torch.nn.init.zeros_(model.get_parameter(name))",
        )


def tied_weights(where: ModelMap, sites: ModelSites | None) -> Iterator[AuditFinding]:
    """A tie of embedding and readout is a note; a tie that reaches into the blocks is a warning."""
    stacks = () if sites is None else sites.stacks
    inside = tuple(f"{block.name}." for stack in stacks for block in stack.blocks if block.whole)
    for names in where.ties:
        blocks = any(name.startswith(inside) for name in names)
        yield AuditFinding(
            AuditKind.TIED,
            AuditSeverity.WARNING if blocks else AuditSeverity.NOTE,
            names,
            f"{' and '.join(names[:3])} are one parameter",
            "a parameter for each block"
            if blocks
            else "often intended; the readout then has the embedding's standard deviation",
            _untied(where.model, names),
        )


def _untied(model: nn.Module, names: tuple[str, ...]) -> str:
    """Its own copy for the last name: of the parameter, or of the module if the whole module is shared."""
    (first, _, _), (owner, _, last) = names[0].rpartition("."), names[-1].rpartition(".")
    if first != owner and model.get_submodule(first) is model.get_submodule(owner):
        return f"model.set_submodule({owner!r}, __import__('copy').deepcopy(model.get_submodule({first!r})))"
    copy = f"torch.nn.Parameter(model.get_parameter({names[0]!r}).detach().clone())"
    return f"model.get_submodule({owner!r}).{last} = {copy}"
