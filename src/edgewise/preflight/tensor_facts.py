"""Facts about tensors alone: who wrote them, who shares them, whether they look as drawn."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.preflight.catalog import CheckFinding, NotAsked, error, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, is_norm, is_readable, local, median, rms, role

DRIFT = 0.25  # radians by which the angle of a rotary position may be off
HARMLESS_ZERO = re.compile(
    "mean|bias|cache|ids|mask|count|ema|state|pad|grad|usage|load|step|num|shift|tok|pos|embed"
)


@fact("not finite", needs="tensors")
def not_finite(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare every parameter and buffer.

    Threshold: any NaN or infinity; infinities in buffers are masks.
    """
    buffers = {id(b) for b in evidence.model.buffers()}
    for tensor in [*evidence.model.parameters(), *evidence.model.buffers()]:
        if not is_readable(tensor):
            continue
        values = local(tensor.detach())
        if all(math.isfinite(float(end)) for end in values.aminmax()):
            continue
        bad = values.isnan() if id(tensor) in buffers else ~values.isfinite()
        if bad.any():
            rows = bad.flatten(1).any(1).nonzero().flatten().tolist() if values.dim() > 1 else []
            span = f", in rows {rows[0]} to {rows[-1]}" if rows else ""
            yield error(
                evidence.names[id(tensor)][0],
                "A tensor holds NaN or infinity.",
                f"{int(bad.sum())} of {values.numel()} entries are not finite{span}",
                "it was never initialized, or was loaded broken: write it",
                entries=int(bad.sum()),
            )


@fact("never written", needs="tensors")
def never_written(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the largest entry of every parameter.

    Threshold: above 1e4 or below 1e-30: numbers that memory holds and no recipe draws, in more than 4 entries; all
    matrices exactly zero.
    Cannot decide: single tensors of zeros: see *dead*.
    """
    matrices = [n for n, p in evidence.readable.items() if p.dim() >= 2]
    if len(matrices) >= 3 and not any(evidence.largest[n] for n in matrices):
        yield error(
            matrices,
            "All weights are zero: they were never initialized.",
            f"{len(matrices)} matrices are exactly zero",
            "initialize the model (after to_empty, every parameter must be written)",
        )
    for name, top in evidence.largest.items():
        if math.isfinite(top) and (top > 1e4 or 0 < top < 1e-30) and evidence.readable[name].numel() > 4:
            yield error(
                name,
                "A parameter holds memory that was never initialized.",
                f"its largest entry is {top:.2g}",
                "initialize it (after to_empty, every parameter must be written)",
                largest=top,
            )


@fact("no numbers", needs="tensors")
def no_numbers(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the device of every parameter and buffer.

    Threshold: any on the meta device: it cannot be trained or inspected.
    """
    meta = [names[0] for names in _on_meta(evidence)]
    if meta:
        yield error(
            meta,
            "Parts of the model are on the meta device and have no numbers.",
            f"{len(meta)} tensors",
            "load them, or call to_empty and initialize them",
        )


def _on_meta(evidence: TrainingEvidence) -> Iterator[list[str]]:
    for tensor in [*evidence.model.parameters(), *evidence.model.buffers()]:
        if tensor.is_meta:
            yield evidence.names[id(tensor)]


@fact("outliers", needs="tensors")
def outliers(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the largest entry of a matrix with its spread (from the median).

    Threshold: 20 spreads and at least 4 entries at exactly that value: the bound of a truncated draw in low
    precision.
    Cannot decide: single large entries of trained weights.
    """
    for name, values in evidence.matrices.items():
        flat = values.flatten()
        sample = flat[:: flat.numel() // 65536 + 1].float().abs()
        spread = float(sample.median()) / 0.6745
        top = evidence.largest[name]
        if values.numel() >= 1024 and spread > 0 and top > 20 * spread:
            same = int((flat.abs() == top).sum())
            if same >= 4 and same < 0.02 * flat.numel():
                yield warning(
                    name,
                    "Several entries of a matrix are far outside its distribution, at exactly one value.",
                    f"{same} entries are exactly ±{top:.3g}, {top / spread:.0f} times the spread of the others",
                    "a truncated draw in low precision leaves its bound behind: draw in float32",
                    entries=same,
                    ratio=top / spread,
                )


@fact("rows", needs="tensors")
def rows(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare row norms of a table on both sides of the best change point.

    Threshold: 2.5 times longer and 3 times the spread within: new tokens drawn on another scale.
    Cannot decide: rows that are too short (the mean of the old rows is a right choice).
    """
    for module in evidence.model.modules():
        if (
            not isinstance(module, nn.Embedding)
            or module.weight.shape[0] < 16
            or not is_readable(module.weight)
        ):
            continue
        norms = local(module.weight.detach()).float().norm(dim=1)
        norms = norms[(norms > 0) & norms.isfinite()]
        if norms.numel() < 16:
            continue
        logs = in_double(norms.log())
        count, sums = logs.numel(), logs.cumsum(0)
        cuts = torch.arange(2, count - 1)
        left, right = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (count - cuts)
        score = (right - left).abs() * in_double(cuts * (count - cuts)).sqrt()
        at = int(score.argmax())
        jump, cut = float(right[at] - left[at]), int(cuts[at])
        spread = float(torch.cat([logs[:cut] - left[at], logs[cut:] - right[at]]).std())
        if jump > math.log(2.5) and jump > 3 * spread:
            yield warning(
                evidence.names[id(module.weight)],
                "The last rows of an embedding table are drawn on a larger scale than the others.",
                f"rows {cut} to {count - 1} are {math.exp(jump):.1f} times longer than rows 0 to {cut - 1}",
                "draw new tokens like the old ones: their mean plus noise of their spread",
                first_row=cut,
                ratio=math.exp(jump),
            )


@fact("tie", needs="tensors")
def tie(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare `tie_word_embeddings` of the config with the tensors.

    Threshold: the config says tied, and they are two tensors.
    Cannot decide: ties that no config declares.
    """
    model: Any = evidence.model
    config = evidence.config
    if (
        config is None
        or not getattr(config, "tie_word_embeddings", False)
        or not hasattr(model, "get_output_embeddings")
    ):
        raise NotAsked("no config says that weights are tied")
    try:
        table, head = model.get_input_embeddings(), model.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        raise NotAsked("the model does not say which weights are tied") from None
    a, b = getattr(table, "weight", None), getattr(head, "weight", None)
    if torch.is_tensor(a) and torch.is_tensor(b) and a is not b and a.shape == b.shape:
        equal = not a.is_meta and torch.equal(a, b)
        keys = getattr(model, "_tied_weights_keys", ("",))  # a class may leave them apart by design
        names = (*evidence.names[id(a)], *evidence.names[id(b)])
        declared = any(re.search(key, name) for key in keys or () for name in names)
        yield finding(
            "error" if declared else "note",
            [evidence.names[id(b)][0], evidence.names[id(a)][0]],
            "Readout and embedding should be tied, and are two tensors.",
            "equal now, they part at the first step" if equal else "their numbers differ already",
            "call model.tie_weights() after to_empty, wrapping or loading",
        )


@fact("shared", needs="tensors")
def shared(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the objects in every ModuleList and Sequential.

    Threshold: one object twice.
    Cannot decide: sharing that is meant (ALBERT): it uses one layer, not a list of it.
    """
    for name, module in evidence.model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1:
            with_weights = [c for c in module if next(c.parameters(), None) is not None]
            different = {id(c) for c in with_weights}
            if len(different) < len(with_weights):
                yield finding(
                    "warning" if len(different) == 1 else "note",  # several that take turns are meant
                    name or "model",
                    "One layer object is repeated: its places share all weights.",
                    f"{len(with_weights)} places hold {len(different)} different layers",
                    "[Block() for _ in range(n)] instead of [Block()] * n",
                    used=len(with_weights),
                    layers=len(different),
                )


@fact("copies", needs="tensors")
def copies(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare trainable random matrices of different layers, bit by bit.

    Threshold: equal: independent draws never are.
    Cannot decide: torch's own encoder copies its layers by habit: a note.
    """
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, values in evidence.matrices.items():
        parameter = evidence.parameters[name]
        flat = values.flatten()
        if parameter.requires_grad and float(flat[:256].float().std()) > 0 and "lora" not in name.lower():
            groups[(tuple(values.shape), float(in_double(flat[:64]).sum()), float(flat[-1]))].append(name)
    twins = [
        names
        for names in groups.values()
        if len(names) > 1 and torch.equal(evidence.matrices[names[0]], evidence.matrices[names[1]])
    ]
    linear = [id(m.weight) for m in evidence.model.modules() if isinstance(m, nn.Linear)]
    heads = {name for own in linear for name in evidence.names.get(own, ())}
    parted = [t for t in twins if set(t) & evidence.tables and set(t) & heads]
    if parted:
        yield warning(
            parted[0],
            "Embedding and readout have equal numbers and are two tensors: their tie is lost.",
            f"{parted[0][0]} and {parted[0][1]} are equal now, and part at the first step",
            "head.weight = embedding.weight, after the last change of either; or draw the readout on its own",
        )
    twins = [t for t in twins if t not in parted]
    if twins:
        habit = any(
            isinstance(m, (nn.TransformerEncoder, nn.TransformerDecoder)) for m in evidence.model.modules()
        )
        yield finding(
            "note" if habit or not evidence.fresh else "warning",
            [name for names in twins[:8] for name in names],
            "Layers start with identical weights.",
            f"{len(twins)} matrices have exact copies in other layers",
            "draw each layer on its own (deepcopy makes copies)",
            matrices=len(twins),
        )


@fact("buffer", needs="tensors")
def buffer(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare frequencies of rotary positions: zeros, precision, a geometric series; other buffers: all zero.

    Threshold: low precision, or every float32 entry is a bfloat16 number; a note if angles drift by less than
    0.25 radians at the last position of the config.
    Cannot decide: buffers whose formula is not known.
    """
    for name, values in evidence.model.named_buffers():
        if not is_readable(values) or values.numel() < 2:
            continue
        last = name.rpartition(".")[2]
        top = float(values.abs().max())
        if top == 0:
            if "freq" in last or not HARMLESS_ZERO.search(last):
                yield finding(
                    "error" if "freq" in last else "note",
                    name,
                    "All entries of a buffer are zero.",
                    "it was never written" if "freq" in last else "often meant",
                    "recompute it after loading (meta device, to_empty)",
                )
        elif "freq" in last and values.dim() == 1 and values.numel() >= 4 and float(values.min()) > 0:
            yield from _rounded_frequencies(evidence, name, values)


def _rounded_frequencies(evidence: TrainingEvidence, name: str, values: Tensor) -> Iterator[CheckFinding]:
    """Frequencies in low precision, or that were: a warning if angles at the last position drift visibly."""
    if values.dtype == torch.float32:
        share = float((values.view(torch.int32) & 0xFFFF == 0).float().mean())
        if share <= 0.95:
            return
        unit, how = 2.0**-8, f"{share:.0%} of the entries are bfloat16 numbers"
    elif values.dtype == torch.float64:
        return
    else:
        unit, how = torch.finfo(values.dtype).eps / 2, str(values.dtype).removeprefix("torch.")
    inexact = values[torch.frexp(values.float()).mantissa != 0.5].float()  # powers of two are exact
    drift = unit * float(inexact.max()) if inexact.numel() else 0.0
    positions = getattr(evidence.config, "max_position_embeddings", None)
    last = positions if isinstance(positions, int) else None
    short = last is not None and last * drift < DRIFT
    until = f"at position {last}" if last is not None else "per position"
    yield finding(
        "note" if short else "warning",
        name,
        "The frequencies of the rotary positions are in low precision, or were rounded to it (bfloat16).",
        f"{how}: angles drift by up to {drift * (last or 1):.2g} radians {until}",
        "recompute them in float32 after .to(bfloat16)",
    )


@fact("recipe", needs="tensors")
def recipe(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare Linear weights with torch's default draw (flat, bound 1/√fan-in), if the config names a std.

    Threshold: 90 % of the matrices are torch's default: the model's own initialization did not run.
    Cannot decide: families that never had a recipe.
    """
    std = getattr(evidence.config, "initializer_range", None)
    weights = _linear_weights(evidence)
    if not std or not weights:
        raise NotAsked("no config names a standard deviation")
    default = [name for name, w in weights.items() if is_default_draw(w)]
    if len(default) > 0.9 * len(weights) and not math.isclose(
        float(std), 1 / math.sqrt(3 * 64), rel_tol=0.05
    ):
        yield warning(
            default,
            "The model's own initialization did not run.",
            f"all {len(default)} Linear weights are torch's default draw, the config says normal with std {std}",
            "call model.apply(model._init_weights); ZeRO-3 and the meta device skip it",
        )


def _linear_weights(evidence: TrainingEvidence) -> dict[str, Tensor]:
    names = {id(p): n for n, p in evidence.parameters.items()}
    return {
        names[id(m.weight)]: evidence.matrices[names[id(m.weight)]]
        for m in evidence.model.modules()
        if isinstance(m, nn.Linear)
        and names.get(id(m.weight)) in evidence.matrices
        and m.weight.numel() >= 1024
    }


def is_default_draw(weight: Tensor) -> bool:
    """Tell if a matrix is uniform up to 1/√fan-in, as torch draws a Linear layer."""
    flat = weight.flatten(1)
    bound = 1 / math.sqrt(flat.shape[1])
    sample = flat.flatten()[:: flat.numel() // 65536 + 1].float()
    if not 0.97 * bound < float(sample.abs().max()) <= bound * 1.0001:
        return False
    return float(sample.pow(4).mean() / sample.pow(2).mean() ** 2) < 2.1


@fact("unlike siblings", needs="tensors")
def unlike_siblings(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare spread of a matrix with that of the same matrix in the other layers, among fresh weights.

    Threshold: 4 times (0.25 times) the median of at least 4 siblings, whose own spread is within 2.
    Cannot decide: recipes that change with depth are smooth; trained weights are not judged.
    """
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    default: dict[str, bool] = {}
    for name, values in evidence.matrices.items():
        if name not in evidence.tables and "lora" not in name.lower():
            groups[role(name)][name] = rms(values.flatten()[:: values.numel() // 65536 + 1])
            default[name] = is_default_draw(values)
    for sizes in groups.values():
        middle = median(list(sizes.values()))
        odd = [n for n, s in sizes.items() if not 0.25 < s / middle < 4]
        some = [n for n in sizes if default[n]]
        if len(sizes) >= 4 and odd and len(odd) <= len(sizes) // 3 and _tight(sizes, odd):
            yield warning(
                odd,
                "A layer's weights are on another scale than those of its siblings.",
                f"spread {sizes[odd[0]]:.2g}, the other layers have {middle:.2g}",
                "initialize it like the others",
                ratio=sizes[odd[0]] / middle,
            )
        elif some and len(some) <= len(sizes) // 2 and len(sizes) >= 3:
            yield warning(
                some,
                "A layer has torch's default weights where its siblings follow another recipe.",
                f"{len(sizes) - len(some)} siblings are drawn otherwise",
                "initialize it like the others",
            )


def _tight(sizes: dict[str, float], odd: list[str]) -> bool:
    rest = [s for n, s in sizes.items() if n not in odd]
    return max(rest) < 2 * min(rest)


@fact("symmetric", needs="tensors")
def symmetric(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare rows of a trainable matrix with one another.

    Threshold: all rows equal and not zero: units that start alike stay alike.
    Cannot decide: constant matrices that are meant (averaging, rates of state spaces): frozen ones and those that
    are not called weight are not judged, nor the gains of norms over several axes.
    """
    alike = []
    gains = {id(m.weight) for m in evidence.model.modules() if is_norm(m) and hasattr(m, "weight")}
    for name, values in evidence.matrices.items():
        parameter = evidence.parameters[name]
        flat = values.flatten(1)
        drawn = name.endswith("weight") and parameter.requires_grad and values.dim() == 2
        drawn = drawn and id(parameter) not in gains
        alike_so_far = drawn and torch.equal(flat[0], flat[-1])
        if alike_so_far and torch.equal(flat, flat[:1].expand_as(flat)):
            alike.append(name)
    if alike:
        yield warning(
            alike,
            "All rows of a matrix are equal: its units start alike and learn the same.",
            f"{len(alike)} matrices, constant along their rows",
            "draw random weights: a constant initialization breaks no symmetry",
        )


@fact("weight scale", needs="tensors")
def weight_scale(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare σ·√fan-in of fresh matrices, median.

    Threshold: below 0.03: a standard deviation ten times too small; above 8: ten times too large.
    Cannot decide: a factor of ten within honest recipes.
    """
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    linear = set(_linear_weights(evidence)) - evidence.tables
    gains = [
        rms(v.flatten()[:: v.numel() // 65536 + 1]) * math.sqrt(v.flatten(1).shape[1])
        for n, v in evidence.matrices.items()
        if n in linear
    ]
    if len(gains) < 3:
        raise NotAsked("fewer than three Linear layers")
    gain = evidence.facts["gain"] = median(gains)
    if gain < 0.03 or gain > 8:
        size = "small" if gain < 1 else "large"
        yield warning(
            "model",
            f"The initial weights are about ten times too {size}.",
            f"a matrix multiplies the size of its input by {gain:.3g} (standard deviation times root of "
            f"fan-in, median)",
            "check the standard deviation of the initialization",
            gain=gain,
        )
