"""`edgewise doctor --selftest`: every verb on a small model on this machine's device, beside its processor."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.errors import BadInput

SYMBOLS, TOKENS, LONGEST, WIDTH, DEPTH, BATCH = 16, 12, 128, 32, 4, 8
DEEP = 32  # layers with norms after the sums, which `initialize_` changes
WATCHED_STEPS = 40
CLOSE = 2e-3  # relative difference of a number in float32 from float64 through four blocks and back
RATE_APART = 2.0  # factor between two rates; a rehearsal in other last digits may prefer a neighbor
Numbers = dict[str, list[float]]


@dataclass(frozen=True)
class SelfTestRow:
    """What one verb did on the device: `ok`, `differs` or `failed`, and why."""

    verb: str
    result: str
    seconds: float
    note: str


class _Network(nn.Module):
    """A small causal language model; its own loss if labels are given."""

    def __init__(self, depth: int, norm_first: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.position = nn.Parameter(torch.randn(LONGEST, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        logits: Tensor = self.head(self.norm(x))
        return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _small_model(
    device: torch.device, dtype: torch.dtype = torch.float32, depth: int = DEPTH, norm_first: bool = True
) -> nn.Module:
    """Return the same weights on every device, drawn on the processor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _Network(depth, norm_first)
    return model.to(device=device, dtype=dtype)


def _small_batches(device: torch.device, count: int) -> list[dict[str, Tensor]]:
    """Sequences in which every symbol has one successor; the label is the next symbol."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        ids = torch.randint(0, SYMBOLS, (BATCH, 1), generator=generator)
        for _ in range(TOKENS):
            ids = torch.cat([ids, (5 * ids[:, -1:] + 3) % SYMBOLS], 1)
        batches.append({"ids": ids[:, :-1].to(device), "labels": ids[:, 1:].to(device)})
    return batches


def _small_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch)
    return loss


def chosen_device(name: str | None) -> torch.device:
    """Return the named device, or the accelerator that torch sees, or the processor."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise BadInput(
            f"--device {name}: torch cannot use it here ({reason}). Expected cpu, cuda or mps."
        ) from error
    return device


def self_test(device: torch.device, tell: Callable[[str], None] = lambda verb: None) -> Iterator[SelfTestRow]:
    """Yield one row for each verb; `tell` hears the name of the one that begins."""
    for verb, work in VERBS.items():
        tell(verb)
        began = time.perf_counter()
        try:
            fine, note = work(device)
            result = "ok" if fine else "differs"
        except Exception as error:  # noqa: BLE001  a report of what fails is what this is for
            result, note = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        yield SelfTestRow(verb, result, round(time.perf_counter() - began, 2), note)


def document(device: torch.device, rows: list[SelfTestRow]) -> dict[str, Any]:
    """Return the rows as plain values, to paste into a report."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads(), "rows": [asdict(row) for row in rows]}


Answer = tuple[bool, str]  # whether the device does as it should, and a note
Result = TypeVar("Result")


def _both(device: torch.device, work: Callable[[torch.device], Result]) -> tuple[Result, Result]:
    """Return the answers of the device and of the processor."""
    return work(device), work(torch.device("cpu"))


def _compared(numbers: Callable[[torch.device, torch.dtype], Numbers], device: torch.device) -> Answer:
    """Return the largest relative difference between the device in float32 and the processor in float64."""
    own, reference = numbers(device, torch.float32), numbers(torch.device("cpu"), torch.float64)
    worst, place = 0.0, ""
    for name, values in reference.items():
        scale = max(max(map(abs, values)), 1e-6)
        if len(own.get(name, ())) != len(values):
            return False, f"{name} has {len(own.get(name, ()))} numbers; on the processor {len(values)}"
        for a, b in zip(own[name], values, strict=True):
            apart = abs(a - b) / scale if math.isfinite(a) else math.inf
            if apart > worst:
                worst, place = apart, name
    fine = worst <= CLOSE
    return fine, f"largest relative difference {worst:.1e}" + ("" if fine else f" ({place})")


def _small_measured(device: torch.device, dtype: torch.dtype) -> Numbers:
    batch = _small_batches(device, 1)[0]
    trace = edgewise.measure(_small_model(device, dtype), batch, readouts=("own",), pair=False)
    return {name: trace.blocks(name).tolist() for name in ("norm", "separation", "log_gradient")}


def _small_described(device: torch.device, dtype: torch.dtype) -> Numbers:
    description = edgewise.describe(_small_model(device, dtype)).to_dict()
    flat = {k: v if isinstance(v, list) else [v] for k, v in description.items()}
    numeric = {k: v for k, v in flat.items() if v and all(isinstance(x, int | float) for x in v)}
    return {k: [float(x) for x in v] for k, v in numeric.items()}


def _audited(device: torch.device) -> Answer:
    def found(place: torch.device) -> list[tuple[str, Sequence[str]]]:
        return [(f.kind.name, f.parameters) for f in edgewise.audit_initialization(_small_model(place))]

    own, reference = _both(device, found)
    return own == reference, f"{len(own)} findings, on the processor {len(reference)}"


def _same(parameters: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(map(torch.equal, parameters, others))


def _copied(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _small_checked(device: torch.device) -> Answer:
    def found(place: torch.device) -> tuple[list[str], bool]:
        model = _small_model(place)
        before, optimizer = _copied(model), torch.optim.AdamW(model.parameters(), 1e-3)
        report = edgewise.check(model, _small_batches(place, 3), _small_loss, optimizer)
        return sorted(f"{f.severity}: {f.kind}" for f in report.problems), _same(model.parameters(), before)

    (own, kept), (reference, also) = _both(device, found)
    if not (kept and also):
        return False, "weights are not as before"
    return own == reference, f"{own or 'nothing wrong'}; weights as before"


def _small_initialized(device: torch.device) -> Answer:
    model = _small_model(device, depth=DEEP, norm_first=False)
    before = _copied(model)
    applied = edgewise.initialize_(model, _small_batches(device, 1)[0], generator=0)
    finite = all(bool(p.isfinite().all()) and p.device.type == device.type for p in model.parameters())
    changed = not _same(model.parameters(), before)
    applied.undo()
    undone = _same(model.parameters(), before)
    return (
        finite and changed and undone,
        f"finite: {finite}, changed: {changed}, undone bit for bit: {undone}",
    )


def _rated(device: torch.device) -> Answer:
    def best(place: torch.device) -> float | None:
        model, batches = _small_model(place), _small_batches(place, 24)
        return edgewise.learning_rate(model, batches, _small_loss, steps=20, rates=4, progress=False).best

    own, reference = _both(device, best)
    if own is None or reference is None:
        return own is reference, f"no rate named: {own} here, {reference} on the processor"
    apart = max(own / reference, reference / own)
    return apart <= RATE_APART, f"{own:.2g} here, {reference:.2g} on the processor"


def _small_trained(device: torch.device, folder: Path | None) -> tuple[list[Tensor], int, int]:
    """Weights after some steps, how often the host waited for the device, and rows; watched if there is a folder."""
    model, rows = _small_model(device), 0
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = _small_batches(device, WATCHED_STEPS)
    watch = None if folder is None else edgewise.watch(model, folder, optimizer=optimizer, quiet=True)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _count_waits(device, True)
        try:
            for batch in batches:
                optimizer.zero_grad()
                _small_loss(model, batch).backward()
                optimizer.step()
        finally:
            _count_waits(device, False)
            if watch is not None:
                watch.close()
    if folder is not None:
        rows = len(edgewise.read(folder, frame=False)["step"])
    waits = sum("synchroniz" in str(warning.message) for warning in heard)
    return [p.detach().cpu() for p in model.parameters()], waits, rows


def _count_waits(device: torch.device, on: bool) -> None:
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn" if on else "default")


def _watched(device: torch.device) -> Answer:
    alone, waits, _ = _small_trained(device, None)
    again, _, _ = _small_trained(device, None)
    with tempfile.TemporaryDirectory() as folder:
        watched, more, rows = _small_trained(device, Path(folder) / "run")
    repeats, same = _same(alone, again), _same(alone, watched)
    counted = "waits are counted on CUDA only"
    if device.type == "cuda":
        counted = f"{more - waits} waits for the device"
    weights = "weights as unwatched" if same else "weights are changed"
    if not repeats:
        weights = "this device does not repeat a training bit for bit, so weights say nothing"
    return rows > 0 and (same or not repeats), f"{rows} rows in {WATCHED_STEPS} steps, {counted}; {weights}"


def _predicted(_: torch.device) -> Answer:
    verdict = edgewise.judge(edgewise.predict("torch-encoder", depth=DEPTH, tokens=TOKENS))
    return verdict.probability is not None, f"{verdict.outcome.value}; needs no device"


VERBS: dict[str, Callable[[torch.device], Answer]] = {
    "predict": _predicted,
    "describe": lambda device: _compared(_small_described, device),
    "measure": lambda device: _compared(_small_measured, device),
    "audit": _audited,
    "check": _small_checked,
    "initialize_": _small_initialized,
    "rate": _rated,
    "watch": _watched,
}
