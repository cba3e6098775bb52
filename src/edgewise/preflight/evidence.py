"""All that the facts may check: the training that was given, and what the passes and steps showed."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.models.model_map import ModelMap
from edgewise.models.state import random_streams
from edgewise.preflight.catalog import NotAsked, Undecided
from edgewise.preflight.fingerprint import clean
from edgewise.preflight.observer import LossCall, Observation

SAMPLE = 65_536  # entries of a tensor that facts about steps check
LIGHT = 1.15  # a largest singular value beyond this many times that of an independent draw: trained


class Sample:
    """At most 65,536 entries of a tensor, evenly spaced, and whether any entry of the whole is not zero."""

    def __init__(self, tensor: Tensor) -> None:
        flat = local(tensor.detach())
        flat = (flat.to_dense() if flat.is_sparse else flat).reshape(-1)
        self.entries = flat[:: flat.numel() // SAMPLE + 1].clone()
        self.alive = bool(self.entries.any()) or bool(flat.any())
        self.finite = bool(self.entries.isfinite().all())


@dataclass
class StepRecord:
    """One real step: gradients when the optimizer stepped, and weights on both sides of it."""

    index: int
    loss: float
    gradients: dict[str, Sample | None]
    before: dict[str, Sample]
    after: dict[str, Sample]
    rates: list[float]
    first: bool  # the optimizer had no state before
    fresh: dict[str, Sample | None] | None = None  # gradients of the loss on this batch alone
    left: dict[str, Sample | None] | None = None  # gradients before the step was called
    optimizer_steps: int = 1
    backwards: int = 1
    at_step: dict[str, Sample] = field(default_factory=dict)  # weights right before the optimizer's step
    stepped: dict[str, Sample] = field(default_factory=dict)  # weights right after the optimizer's step
    modes: list[bool] = field(default_factory=list)  # of the model in passes with gradients


@dataclass
class Alignment:
    """How the rows of the outputs that reach the loss stand to the token ids (samples, tokens)."""

    ids: Tensor
    rows: int
    labels: Tensor  # (samples, rows)
    kept: Tensor  # rows that are scored
    offset: int | None  # label i is token i + offset
    place: str
    start: int | None = None  # output i is that of token i + start: causal networks tell


@dataclass
class TrainingEvidence:
    """What was given, and what was seen; a field is None if its part was not run."""

    model: nn.Module
    optimizer: Any = None
    batches: list[Any] = field(default_factory=list)
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    step: Callable[..., Any] | None = None
    own_loss: bool = True  # False: no loss was given or returned, only the flow is inspected
    data: dict[str, Any] = field(default_factory=dict)
    first: Observation | None = None
    gradients: list[dict[str, Sample | None]] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    base: Observation | None = None  # on the weights after the steps, as are the following
    changed: Observation | None = None
    again: Observation | None = None  # as `base`, if it came out otherwise
    evaluated: Observation | None = None
    loud: Observation | None = None
    opposite: Observation | None = None  # as `loud`, with the other sign, where that may tell more
    replays: Any = None  # Relations: what changes of batch and outputs did to the loss
    reach: Tensor | None = None  # (samples, tokens): gradient of one output row per sample at each token
    reach_rows: list[int] = field(default_factory=list)
    reaches: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # ids of every input, and as `reach`
    change: dict[str, Any] = field(default_factory=dict)  # which tokens were changed in `changed`
    events: list[list[str]] = field(default_factory=list)  # of each call of the user's step, in order
    rates_ahead: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    map: ModelMap | None = None  # what is where in the model
    known: set[int] = field(default_factory=set)  # parameters of optimizers and further modules

    # --- tensors -----------------------------------------------------------------------------------------------------
    @cached_property
    def names(self) -> dict[int, list[str]]:
        """All names of every parameter and buffer, by identity."""
        names: dict[int, list[str]] = {}
        for listing in (self.model.named_parameters, self.model.named_buffers):
            for name, tensor in listing(remove_duplicate=False):
                names.setdefault(id(tensor), []).append(clean(name))
        return names

    @property
    def named(self) -> list[str]:
        """Names of all parameters and buffers."""
        return [name for names in self.names.values() for name in names]

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {clean(name): p for name, p in self.model.named_parameters()}

    @cached_property
    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    @cached_property
    def readable(self) -> dict[str, nn.Parameter]:
        """Floating parameters with numbers that torch can compute with."""
        return {n: p for n, p in self.parameters.items() if is_readable(p)}

    @cached_property
    def tables(self) -> set[str]:
        """Names of embedding tables."""
        kinds = (nn.Embedding, nn.EmbeddingBag)
        return {
            n for m in self.model.modules() if isinstance(m, kinds) for n in self.names.get(id(m.weight), ())
        }

    @cached_property
    def largest(self) -> dict[str, float]:
        """The largest absolute entry of every readable parameter: NaN if one is NaN. One pass over each tensor."""
        found = {}
        for name, p in self.readable.items():
            low, high = local(p.detach()).aminmax()
            found[name] = float(torch.maximum(-low, high))
        return found

    @cached_property
    def matrices(self) -> dict[str, Tensor]:
        """Floating matrices of at least 16 by 16 with finite numbers that are not all zero."""
        found = {}
        for name, p in self.readable.items():
            values = local(p.detach())
            living = math.isfinite(self.largest[name]) and self.largest[name] > 0
            if living and values.dim() >= 2 and min(values.flatten(1).shape) >= 16:
                found[name] = values
        return found

    @cached_property
    def edges(self) -> dict[str, float]:
        """Of up to 96 matrices, the largest singular value over that of an independent draw of the same spread."""
        chosen = list(self.matrices.items())
        chosen = chosen if len(chosen) <= 96 else chosen[:: len(chosen) // 96 + 1]
        values = {name: spectral_edge(matrix) for name, matrix in chosen}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def trained_share(self) -> float:
        values = [e for n, e in self.edges.items() if n not in self.tables and "lora" not in n.lower()]
        return sum(e > LIGHT for e in values) / max(1, len(values))

    @property
    def state(self) -> str:
        """fresh: as drawn; trained: something has been learned, or may have been."""
        return "trained" if self._trained else "fresh"

    @cached_property
    def _trained(self) -> bool:
        """Spectra of lightly trained weights look fresh; gains of norms that differ from one another do not."""
        if self.optimizer is not None and self.had_state:
            return True
        if self.trained_share > 0.15 or self._learned_gains:
            return True
        entropy, chance = self.facts.get("cross-entropy"), self.facts.get("chance")
        return entropy is not None and chance is not None and entropy < 0.8 * chance

    had_state: bool = False

    @cached_property
    def _learned_gains(self) -> bool:
        """Return whether gains within one norm differ: no initialization draws them."""
        varied = []
        for module in self.model.modules():
            gain = getattr(module, "weight", None)
            if (
                is_norm(module)
                and torch.is_tensor(gain)
                and gain.dim() == 1
                and gain.numel() > 1
                and is_readable(gain)
            ):
                values = local(gain.detach()).float()
                spread, size = float(values.std()), float(values.abs().mean())
                varied.append(1e-7 < spread < size + 0.5)
        return bool(varied) and sum(varied) > 0.5 * len(varied)

    @property
    def fresh(self) -> bool:
        return self.state == "fresh"

    @cached_property
    def all_trainable(self) -> bool:
        """Tell if at least nine tenths of the parameters are trained: no adapter, prefix or frozen body."""
        total = sum(p.numel() for p in self.parameters.values())
        return sum(p.numel() for p in self.trainable.values()) >= 0.9 * total

    def judged(self, severity: str) -> str:
        """The severity of a fact about values: a note unless the weights are as drawn."""
        return severity if self.fresh else "note"

    # --- modules -----------------------------------------------------------------------------------------------------
    @cached_property
    def blocks(self) -> dict[str, nn.Module]:
        """Members of lists of at least two modules of one class that have children: layers."""
        found: dict[str, nn.Module] = {}
        for name, module in self.model.named_modules():
            if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= 2:
                for i, child in enumerate(module):
                    if len(list(child.children())) > 1:
                        found[clean(f"{name}.{i}" if name else str(i))] = child
        return found

    @cached_property
    def config(self) -> Any:
        return next((c for m in self.model.modules() if (c := getattr(m, "config", None)) is not None), None)

    def module(self, name: str) -> nn.Module | None:
        """The module of this name, or None."""
        modules = {clean(n): m for n, m in self.model.named_modules()}
        return modules.get(name)

    # --- passes ------------------------------------------------------------------------------------------------------
    def seen(self) -> Observation:
        """The observed pass; NotAsked without batches, Undecided if it failed."""
        if self.first is None:
            raise NotAsked("no batches were given")
        return self.first

    def loss_call(self, *names: str) -> LossCall:
        """The main call of a loss function, of these names if any are given."""
        call = self.seen().main_loss
        if not self.own_loss:
            raise NotAsked("no loss was given")
        if call is None:
            raise Undecided(
                "the loss calls no loss function that is known: chance and labels are not checked"
            )
        if names and call.name not in names:
            raise NotAsked(f"the loss is {call.name}")
        return call

    def after_base(self) -> Observation:
        """The pass as it is, on the weights after the steps."""
        self.seen()
        if self.base is None or self.base.error is not None:
            raise Undecided(self.problems[0] if self.problems else "the pass after the steps was not run")
        return self.base

    def after_steps(self) -> tuple[Observation, Observation]:
        """The pass as it is and the pass with changed tokens."""
        self.seen()
        if self.base is None or self.changed is None:
            raise Undecided(self.problems[0] if self.problems else "the changed pass was not run")
        return self.base, self.changed

    def taken(self) -> list[StepRecord]:
        """The real steps; NotAsked without an optimizer."""
        if self.optimizer is None or self.first is None:
            raise NotAsked("no optimizer was given")
        if not self.steps:
            raise Undecided("no step was made, because the pass before it failed")
        return self.steps

    @cached_property
    def class_rows(self) -> tuple[Tensor, Tensor, Tensor, int] | None:
        """Logits (rows, classes), labels, which are scored, and the number of classes, of a cross-entropy."""
        call = None if self.first is None else self.first.main_loss
        if call is None or call.name not in ("cross_entropy", "nll_loss"):
            return None
        return rows_of(call)

    @cached_property
    def alignment(self) -> Alignment | None:
        """The lookup of token ids that fits the labels best."""
        if self.first is None:
            return None
        rows = self.class_rows
        best: Alignment | None = None
        for lookup in token_lookups(self.first):
            ids = lookup.ids
            samples = ids.shape[0]
            if rows is None or rows[1].numel() % samples or rows[0].shape[0] != rows[1].numel():
                continue
            labels, kept = rows[1].view(samples, -1), rows[2].view(samples, -1)
            offset = shift_of(ids, labels, kept)
            candidate = Alignment(ids, labels.shape[1], labels, kept, offset, lookup.place)
            if best is None or (best.offset is None and offset is not None):
                best = candidate
        return best


def flat(gradients: dict[str, Sample | None]) -> Tensor:
    """All sampled entries in one vector."""
    parts = [s.entries.float() for s in gradients.values() if s is not None]
    return torch.cat(parts) if parts else torch.zeros(1)


def token_lookups(observation: Observation) -> Iterator[Any]:
    """Lookups of two-dimensional ids that are not positions."""
    for lookup in observation.lookups:
        ids = lookup.ids
        if ids.dim() != 2 or ids.shape[1] < 2 or ids.is_floating_point():
            continue
        steps = torch.arange(ids.shape[1], device=ids.device)
        positions = bool((ids - ids[:, :1] == steps).all())
        few = lookup.table.shape[0] <= 4 or ids.unique().numel() <= 1
        if not positions and not few:
            yield lookup


def rows_of(call: LossCall) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """Flatten a cross-entropy: logits by row, labels, which are scored, and the number of classes."""
    logits, labels = call.outputs, call.labels
    if labels.is_floating_point() or logits.dim() < 2:
        return None
    if logits.dim() > 2:
        logits = logits.movedim(1, -1).flatten(0, -2)
    labels = labels.reshape(-1)
    if labels.numel() != logits.shape[0]:
        return None
    kept = labels != int(call.options.get("ignore_index", -100))
    if call.scored is not None and call.scored.shape == kept.shape and bool((kept & call.scored).any()):
        kept = kept & call.scored
    return logits, labels, kept, logits.shape[-1]


def shift_of(ids: Tensor, labels: Tensor, kept: Tensor) -> int | None:
    """The one shift s for which label i is token i + s almost everywhere; outputs of a prompt may be cut away."""
    cut = range(4, ids.shape[1] - labels.shape[1] + 1)
    scores = {s: v for s in [*range(-3, 4), *cut] if (v := agreement(ids, labels, kept, s)) is not None}
    if not scores:
        return None
    best = max(scores, key=lambda s: scores[s])
    others = [v for s, v in scores.items() if s != best]
    return best if scores[best] > 0.98 and max(others, default=0.0) < 0.95 else None


def agreement(ids: Tensor, labels: Tensor, kept: Tensor, shift: int) -> float | None:
    """The share of scored labels that equal the token `shift` further on; None for fewer than 16."""
    rows, tokens = labels.shape[1], ids.shape[1]
    low, high = max(0, -shift), min(rows, tokens - shift)
    if high - low < 2:
        return None
    scored = kept[:, low:high]
    if int(scored.sum()) < 16:
        return None
    same = labels[:, low:high] == ids[:, low + shift : high + shift]
    return float(same[scored].float().mean())


def copied(batch: Any) -> Any:
    """A copy, so that a loss that writes into its batch does not change the user's."""
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError, NotImplementedError):  # tensors in a graph, open files, locks
        return batch


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that is on this process; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_readable(tensor: Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and not tensor.is_meta
        and tensor.numel() > 0
        and tensor.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    )


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not list(module.children())


def role(name: str) -> str:
    """The name with the number of its layer left out: the same for siblings."""
    return re.sub(r"(experts\.)\d+", r"\1#", re.sub(r"\d+", "#", name, count=1))


def parent(name: str) -> str:
    return name.rpartition(".")[0]


def rms(tensor: Tensor) -> float:
    return float(in_double(tensor.detach()).pow(2).mean().sqrt()) if tensor.numel() else 0.0


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def tolerance(values: Tensor) -> float:
    """Differences below this are rounding."""
    eps = 1e-5 if values.dtype in (torch.float32, torch.float64) else 4 * torch.finfo(values.dtype).eps
    return eps * max(rms(values[values.isfinite()]), 1e-12)


@torch.no_grad()
def spectral_edge(matrix: Tensor) -> float | None:
    """The largest singular value over that of an independent draw of the same size and spread: about 1 if untrained."""
    w = matrix.flatten(1)
    w = w[:: w.shape[0] // 1024 + 1, :2048].float()
    spread = float(w.std())
    if not spread > 1e-6 * float(w.abs().mean()) or not math.isfinite(spread) or min(w.shape) < 16:
        return None
    w = w - w.mean()
    v = torch.randn(w.shape[1], generator=torch.Generator().manual_seed(0)).to(w)
    for _ in range(10):
        v = w.T @ (w @ v)
        v = v / v.norm()
    return float((w @ v).norm()) / (spread * (math.sqrt(w.shape[0]) + math.sqrt(w.shape[1])))


@torch.no_grad()
def by_the_library(evidence: TrainingEvidence, name: str) -> bool:
    """Return whether the model's own `_init_weights` draws a parameter as large as it is, or writes its numbers."""
    rule, values = getattr(evidence.model, "_init_weights", None), evidence.parameters.get(name)
    if rule is None or values is None:
        return False
    parts = name.split(".")
    for at in range(len(parts) - 1, -1, -1):  # a layer's own rule, or that of a module around it
        module = evidence.module(".".join(parts[:at]))
        if module is None or sum(p.numel() for p in module.parameters()) > 1 << 22:
            continue
        twin = copy.deepcopy(module)
        written = twin.get_parameter(".".join(parts[at:])).fill_(1e3)
        with random_streams():
            rule(twin)
        if torch.equal(written, values) or 0.8 * rms(values) < rms(written) < 1.25 * rms(values):
            return True
    return False
