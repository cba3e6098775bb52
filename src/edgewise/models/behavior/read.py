"""read(model, batch): what a model is, from what it does. Nothing of the model is changed.

One traced pass finds the residual sums; about a dozen edited passes on a small cut of the batch tell what their
branches do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.interrupts import check
from edgewise.models.behavior.assemble import (
    look_at_tokens,
    look_inside,
    stack_again,
    stack_of,
    windows_again,
)
from edgewise.models.behavior.batch import Feed, feeds, sequence_first, without_padding_mask
from edgewise.models.behavior.block_ends import stack_of_blocks, with_attention
from edgewise.models.behavior.branch_matrices import read_fused_rows
from edgewise.models.behavior.compare import TRAINED, copies, spectral_edge, wide
from edgewise.models.behavior.dependence import SHORTEST
from edgewise.models.behavior.experiment import TRACE_ENTRIES, EditedPassError, Experiment, run
from edgewise.models.behavior.gains import joined_gains, read_gains
from edgewise.models.behavior.graph import DOT_PRODUCT, MULTIHEAD, SOFTMAX, Graph
from edgewise.models.behavior.record import Block, Reading, Stack
from edgewise.models.behavior.residuals import residual_sums
from edgewise.models.behavior.stacks import (
    INNER,
    PARTIAL,
    Chain,
    attends,
    chains,
    covered_blocks,
    idle_containers,
    judge_cover,
    judge_single_blocks,
    reads_ids,
    repeated_containers,
)
from edgewise.models.behavior.token_order import absolute_positions, read_long_windows
from edgewise.models.behavior.weight_calls import Edits, Precision
from edgewise.models.inputs import change, default_batches, tensors
from edgewise.models.readable import bare, did_not_run, refuse_unreadable, words
from edgewise.models.state import RandomStreams, collector_paused, preserved

Result = TypeVar("Result")
RANDOM = (
    "its forward pass is random also in evaluation mode: two passes on the same input differ (a dropout that is always "
    "on, or noise)"
)


def read(model: nn.Module, batch: Any = None, stack: str | None = None, *, rows: bool = False) -> Reading:
    """Read what the model is from its behavior on (a cut of) the batch.

    batch  whatever the model accepts: keyword arguments, a tuple, a tensor; random ids or pixels unless given
    stack  the name of one stack, which then is the default one; `stacks(model, batch)` lists the names
    rows   for the roles of matrices: tell apart the rows of those that make queries, keys and values together (one more
           pass), and stop after the first pass if nothing in it can be attention

    Parameters, buffers, gradients, modes, hooks and random streams are as before afterwards, also after an interrupt.
    """
    whole = bare(model)
    refuse_unreadable(whole)
    with _quietly(whole):
        reading = _refusing(whole, _Reader(whole, batch, rows=rows).read)
    return choose_stack(reading, stack)


def read_closely(model: nn.Module, batch: Any = None, stack: str | None = None) -> Reading:
    """As `read`; the asked stack is also inspected where its residual sums are not all that its blocks do."""
    whole = bare(model)
    refuse_unreadable(whole)
    with _quietly(whole):
        reading = _refusing(whole, _Reader(whole, batch, stack, closely=True).read)
    return choose_stack(reading, stack)


def reread(model: nn.Module, stack: Stack, blocks: Sequence[Block], batch: Any = None) -> Stack:
    """A stack that was read in a model of other sizes, with the numbers of this one.

    blocks  what its blocks are here, each like one of the blocks that were read
    """
    whole = bare(model)
    refuse_unreadable(whole)
    with _quietly(whole):
        return stack_again(_Reader(whole, batch).trace(), stack, blocks)


def reread_windows(model: nn.Module, stack: Stack, batch: Any = None) -> Stack:
    """A stack that was read in a model of other windows, with the windows of this one."""
    whole = bare(model)
    refuse_unreadable(whole)
    with _quietly(whole):
        return windows_again(_Reader(whole, batch).trace(), stack)


def stack_names(model: nn.Module, batch: Any = None) -> tuple[str, ...]:
    """The names of the model's stacks, the default one first: one traced pass."""
    whole = bare(model)
    refuse_unreadable(whole)
    with _quietly(whole):
        return _refusing(whole, _Reader(whole, batch).names)


@contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, in which tensors count versions: by these writes in place are noticed."""
    with torch.inference_mode(False), collector_paused(), preserved(model, gradients=False):
        yield


def _refusing(model: nn.Module, work: Callable[[], Result]) -> Result:
    """Turn any exception of the model into a `BadInput`; its own exception is the cause."""
    try:
        return work()
    except BadInput:
        raise
    except Exception as error:
        check()
        raise BadInput(
            f"{type(model).__name__} runs and cannot be read: {words(error)}. It does something that a reading does "
            "not expect; the exception that caused this one shows where."
        ) from error


def choose_stack(reading: Reading, name: str | None) -> Reading:
    """The reading with this stack as the default one."""
    if name is None:
        return reading
    names = [stack.name for stack in reading.stacks]
    if name not in names:
        listed = ", ".join(names) or "none"
        raise BadInput(
            f"stack = {name!r} is not a stack of {reading.model}: it has {listed}. Give one of these."
        )
    chosen = tuple(replace(stack, default=stack.name == name) for stack in reading.stacks)
    return replace(reading, stacks=chosen)


class _Reader:
    """One reading: finds an input that the model takes, traces it, and runs the tests."""

    def __init__(
        self, model: nn.Module, batch: Any, name: str | None = None, closely: bool = False, rows: bool = False
    ) -> None:
        self.model, self.batch, self.name, self.closely, self.rows = model, batch, name, closely, rows
        self.precision = Precision.of(model)
        self.partial: Experiment
        self._given: Any = None
        self.passes = 0
        self.notes: list[str] = []
        own = [value for module in model.modules() for value in vars(module).values()]
        self._draws = any(isinstance(value, torch.Generator) for value in own)  # or a pass has drawn

    def read(self) -> Reading:
        experiment = self.trace()
        if self.rows and not {node.function for node in experiment.graph.nodes} & {*SOFTMAX, "exp"}:
            raise BadInput(f"{_without_attention(experiment.graph)[0]}.")
        try:
            experiment = self._tested(experiment)
            listed = self._stacks(experiment)
        except EditedPassError as error:
            experiment = self._given_up(
                experiment, f"the model runs, but not with its stream edited: {error}"
            )
            listed = self._stacks(experiment)
        if self._is_random(experiment.feed):
            listed = [_of_random(stack) for stack in listed]
            self.notes.append(RANDOM)
        edge = spectral_edge(self.model)
        return Reading(
            model=type(self.model).__name__,
            batch=experiment.feed.text,
            passes=self.passes + experiment.passes,
            stacks=tuple(listed),
            trained=None if edge is None else edge > TRAINED,
            spectral_edge=edge,
            notes=(*self.notes, *([] if _attends(listed) else _without_attention(experiment.graph))),
            not_read=tuple(self._uncovered(experiment)),
        )

    def _is_random(self, feed: Feed) -> bool:
        """Whether two passes on the same input that begin with other random streams differ; not asked if none draws."""
        if not self._draws:
            return False
        outputs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            self.passes += 1
            try:
                with torch.no_grad():
                    args, kwargs = change(*feed.entries(1), lambda _, value: value.detach().clone())
                    outputs.append([t for t in tensors(self.model(*args, **kwargs)) if t.is_floating_point()])
            except Exception:  # noqa: BLE001 - one entry may be too few for it
                check()
                return False
        pairs = list(zip(*outputs, strict=False))
        return any(
            one.shape != other.shape or not bool(torch.isclose(wide(one), wide(other), equal_nan=True).all())
            for one, other in pairs
        )

    def names(self) -> tuple[str, ...]:
        experiment = self.trace()
        listed = sorted([*experiment.chains, *self.partial.chains], key=lambda chain: chain.sums[0].node)
        default = _default(listed, self._unread_text(experiment))
        first = [stack.name for stack in self._by_block_ends(experiment)] if default is None else []
        return (*first, *(c.name for c in sorted(listed, key=lambda chain: chain is not default)))

    def _given_up(self, experiment: Experiment, reason: str) -> Experiment:
        """Every stack is only listed, for this reason."""
        for chain in experiment.chains:
            chain.reasons.append(reason)
        self.partial = self._of(experiment.feed, experiment.graph, [*experiment.chains, *self.partial.chains])
        return self._of(experiment.feed, experiment.graph, [])

    def _tested(self, experiment: Experiment) -> Experiment:
        """The tests done, with a feed on which entries of a batch are independent of each other."""
        look_at_tokens(experiment)
        unfit = any(s.traits.coupled or 0 < s.traits.length < SHORTEST for s in experiment.sites)
        other = sequence_first(self._given, self.model) if unfit else None
        if other is not None:
            second = self._traced(other)
            look_at_tokens(second)
            if any(site.traits.sight is not None for site in second.sites):
                self.passes += experiment.passes
                experiment = second
        experiment = self._told_apart(experiment)
        look_inside(experiment)
        return experiment

    def _told_apart(self, experiment: Experiment) -> Experiment:
        """Read with fewer tokens if there are as many as a head is wide: then scores of either kind look alike."""
        graph = experiment.graph
        pairs = [(s.traits.length, score.product) for s in experiment.sites for score in s.part.scores]
        lengths = {
            length
            for length, product in pairs
            for one in graph.score_operands.get(product, graph[graph.by_operation[product]].parents)[:1]
            if graph[one].shape[-1:] == (length,) and length > SHORTEST
        }
        if not lengths or experiment.feed.axis:
            return experiment
        partial = self.partial
        try:
            second = self._traced(experiment.feed.shorter(max(lengths) - 1))
            look_at_tokens(second)
        except Exception:  # noqa: BLE001 - the model takes this length only
            check()
            self.partial = partial
            return experiment
        if len(second.sites) != len(experiment.sites):
            self.partial = partial
            return experiment
        self.passes += experiment.passes
        return second

    def trace(self) -> Experiment:
        """A traced pass on the smallest input that the model takes."""
        failures: list[tuple[str, Exception]] = []
        errors: list[BadInput] = []
        for given, feed in self._feeds():
            self._given = given
            try:
                graph = self._pass(feed)
            except BadInput as error:  # of this input by a model of ours, or of the model by the tracer
                errors.append(error)
            except Exception as error:  # noqa: BLE001 - the model's own; the last one becomes the cause
                check()
                if not feed.axis:  # else a guess of ours; the batch as it was given tells what is wrong
                    failures.append((feed.text, error))
            else:
                return self._analyzed(feed, graph)
        if errors:
            raise errors[0]
        cause = failures[0 if self.batch is None else -1][1] if failures else None
        raise self._refusal(failures) from cause

    def _feeds(self) -> Iterator[tuple[Any, Feed]]:
        batches = default_batches(self.model) if self.batch is None else [self.batch]
        for given in batches:
            batch = without_padding_mask(self.model, given)
            for feed in feeds(batch, model=self.model):
                yield batch, self._without_cache(feed)
            other = None if self.batch is None else sequence_first(batch, self.model)
            if other is not None:
                yield batch, self._without_cache(other)

    def _without_cache(self, feed: Feed) -> Feed:
        """Some decoders leave out their mask when they expect to be called token by token."""
        parameters = inspect.signature(self.model.forward).parameters
        if "use_cache" not in parameters or "use_cache" in feed.kwargs:
            return feed
        return replace(feed, kwargs=feed.kwargs | {"use_cache": False})

    def _traced(self, feed: Feed) -> Experiment:
        return self._analyzed(feed, self._pass(feed))

    def _pass(self, feed: Feed) -> Graph:
        torch.manual_seed(0)
        streams = RandomStreams(all_devices=torch.cuda.is_initialized())
        self.passes += 1
        try:
            graph = run(self.model, feed.entries(TRACE_ENTRIES), Edits(), self.precision)
        except (TypeError, ValueError, RuntimeError):
            check()
            if not self.precision.wide:
                raise
            self.precision = Precision(False, frozenset({"cpu"}))
            self.notes.append("read in half precision: the model does not run in single precision")
            graph = run(self.model, feed.entries(TRACE_ENTRIES), Edits(), self.precision)
        check()
        self._draws |= streams.moved()
        return graph

    def _analyzed(self, feed: Feed, graph: Graph) -> Experiment:
        listed = chains(graph, residual_sums(graph))
        listed = [chain for chain in listed if judge_cover(self.model, graph, chain, listed)]
        judge_single_blocks(self.model, graph, listed)
        self.partial = self._of(feed, graph, [chain for chain in listed if chain.reasons])
        return self._of(feed, graph, [chain for chain in listed if not chain.reasons])

    def _of(self, feed: Feed, graph: Graph, listed: list[Chain]) -> Experiment:
        return Experiment(self.model, feed, graph, listed, self.precision)

    def _stacks(self, experiment: Experiment) -> list[Stack]:
        """Every chain as a stack, also those that are only listed."""
        self._fill_silent(experiment)
        absolute = absolute_positions(experiment) if experiment.sites else {}
        horizon = read_long_windows(experiment, self._given) if experiment.sites else None
        if self.rows:
            read_fused_rows(experiment)
        sound = [stack_of(experiment, i, absolute.get(i), horizon) for i in range(len(experiment.chains))]
        order = [*experiment.chains, *self.partial.chains]
        default = _default(order, self._unread_text(experiment))
        asked = default if self.name is None else next((c for c in order if c.name == self.name), None)
        listed = sound + [
            (self._looked_at(chain) if self.closely and chain is asked else None)
            or self._listed(i, chain is asked)
            for i, chain in enumerate(self.partial.chains)
        ]
        followed = [
            replace(stack, copies=copies(self.model, stack.blocks), default=chain is default)
            for stack, chain in sorted(zip(listed, order, strict=True), key=lambda pair: pair[1].sums[0].node)
        ]
        if default is None:
            return [*followed, *self._by_block_ends(experiment)]
        whole = self._by_block_ends(experiment, default) if self.name is None else []
        return [stack for stack in followed if not whole or stack.name != default.name] + whole

    def _looked_at(self, chain: Chain) -> Stack | None:
        """A chain that is only listed, with what its branches do; None if the model does not run edited, or where
        streams inside the branches, or between those that were followed, would be taken for what the branches do."""
        if INNER in chain.reasons or any(reason.startswith(PARTIAL[0]) for reason in chain.reasons):
            return None
        alone = self._of(self.partial.feed, self.partial.graph, [chain])
        try:
            look_at_tokens(alone)
            look_inside(alone)
            self._fill_silent(alone)
        except EditedPassError:
            return None
        finally:
            self.passes += alone.passes
        return stack_of(alone, 0, None, None)

    def _listed(self, number: int, asked: bool) -> Stack:
        """A chain whose branches are not read; of the one that is asked for, the attention that can be seen."""
        stack = stack_of(self.partial, number, None, None)
        return with_attention(self._of(self.partial.feed, self.partial.graph, []), stack) if asked else stack

    def _by_block_ends(self, experiment: Experiment, instead: Chain | None = None) -> list[Stack]:
        """The longest container of blocks that no residual sums join, as a stack that can be measured.

        instead  of a chain that was followed through some of its blocks only, all blocks of its container
        """
        graph, tokens = experiment.graph, experiment.feed.tokens
        listed = self._unfollowed(experiment) if instead is None else []
        if instead is not None and any(reason.startswith(PARTIAL[0]) for reason in instead.reasons):
            every = repeated_containers(self.model, graph)
            listed = [(path, ran) for path, ran in every if path == instead.name]
        attending = [(path, ran) for path, ran in listed if attends(graph, path)]
        for path, ran in sorted(attending or listed, key=lambda pair: -len(pair[1])):
            reasons = [_unjoined(len(ran)), *_without_attention(graph)]
            stack = stack_of_blocks(graph, path, ran, reasons, entries=TRACE_ENTRIES, tokens=tokens)
            if stack is not None:
                return [with_attention(self._of(experiment.feed, graph, []), stack)]
        return []

    def _fill_silent(self, experiment: Experiment) -> None:
        """Branches that give nothing are read a second time, with zero parameters filled."""
        if not any(site.traits.silent for site in experiment.sites):
            return
        if all(site.traits.gains is None for site in experiment.sites):
            read_gains(experiment)
        second = self._of(experiment.feed, experiment.graph, experiment.chains)
        second.fill_zeros = True
        look_at_tokens(second)
        look_inside(second)
        experiment.passes += second.passes
        for operation, stream in second.streams.items():
            if operation in experiment.streams:
                experiment.streams[operation].layout = stream.layout  # silent branches show none
        for site, filled in zip(experiment.sites, second.sites, strict=True):
            if site.traits.silent:  # its strength stays what it is
                filled.traits.share, filled.traits.skip = site.traits.share, site.traits.skip
                filled.traits.silent = True
                filled.traits.gate_size = site.traits.gate_size
                filled.traits.gains = joined_gains(site.traits.gains, filled.traits.gains)
                site.traits = filled.traits

    def _unread_text(self, experiment: Experiment) -> bool:
        """Token ids went in, and there are blocks that no stack covers: these may be the ones that read them."""
        graph = experiment.graph
        ids = experiment.feed.tokens is not None
        return ids and any(reads_ids(graph, path) for path, _ in self._unfollowed(experiment))

    def _unfollowed(self, experiment: Experiment) -> list[tuple[str, list[str]]]:
        everything = [*experiment.chains, *self.partial.chains]
        return [
            (path, ran)
            for path, ran in repeated_containers(self.model, experiment.graph)
            if not any(covered_blocks(experiment.graph, chain, ran) for chain in everything)
        ]

    def _uncovered(self, experiment: Experiment) -> list[str]:
        idle = [] if experiment.graph.mapped else idle_containers(self.model, experiment.graph)
        reasons = [f"{path}: did not run on this batch" for path in idle]
        reasons += [f"{path}: {_unjoined(len(ran))}" for path, ran in self._unfollowed(experiment)]
        if not experiment.sites and not self.partial.sites:
            if not reasons and not experiment.graph.mapped:
                reasons = [
                    "no chain of residual sums: nothing in this model adds what a block gives to what it reads"
                ]
            reasons += _without_attention(experiment.graph)
        return reasons

    def _refusal(self, failures: list[tuple[str, Exception]]) -> BadInput:
        name = type(self.model).__name__
        if not failures:
            return BadInput(
                f"no input for {name} could be made up. Give a batch: the arguments of its forward pass."
            )
        text, error = failures[0 if self.batch is None else -1]  # made-up ones come likeliest first
        more = f", nor on {len(failures) - 1} others" if len(failures) > 1 else ""
        tried = f"the batch ({text})" if self.batch is not None else f"a made-up batch ({text}){more}"
        return did_not_run(self.model, tried, error)


def _of_random(stack: Stack) -> Stack:
    """A stack whose tests saw a new draw in every pass: the reason for what is open, and no word on positions."""
    branches = {
        id(branch): replace(branch, not_read=(RANDOM,) if branch.not_read else ())
        for branch in stack.branches
    }
    blocks = tuple(
        replace(block, branches=tuple(branches[id(branch)] for branch in block.branches))
        for block in stack.blocks
    )
    unread = tuple(reason for reason in stack.not_read if not reason.startswith("block "))
    spoiled = len(unread) < len(stack.not_read) or any(branch.kind is None for branch in stack.branches)
    reasons = (RANDOM,) if spoiled else unread
    return replace(stack, blocks=blocks, absolute=None, not_read=reasons, notes=(*stack.notes, RANDOM))


def _unjoined(number: int) -> str:
    return (
        f"its {number} blocks are not joined by residual sums that could be followed (several streams, "
        "hyper-connections or gates on the stream look like this)"
    )


def _attends(listed: list[Stack]) -> bool:
    return any(
        branch.kind in ("attention", "cross-attention") for stack in listed for branch in stack.branches
    )


def _without_attention(graph: Graph) -> list[str]:
    """Said of a model in which no softmax ran: a state space, a convolutional net, an MLP."""
    functions = {node.function for node in graph.nodes}
    if functions & {*SOFTMAX, DOT_PRODUCT, MULTIHEAD}:
        return []
    if graph.mapped:
        return [
            "its blocks run under torch.vmap, inside which no operation can be followed: give the model without it"
        ]
    convolutions = sorted(name for name in functions if "conv" in name or "pool" in name)
    means = f"; it has {', '.join(convolutions)}" if convolutions else ""
    return [f"no attention found: no softmax ran in this model{means}"]


def _default(listed: list[Chain], unread_text: bool = False) -> Chain | None:
    """The longest stack that starts from token ids; without one, and unless text went somewhere unread, the first
    with attention (or, if none has any, of all) that is not much shorter than the longest of these."""
    language = [chain for chain in listed if chain.language]
    if language or unread_text or not listed:
        return max(language, key=lambda chain: len(chain.blocks), default=None)
    attend = [chain for chain in listed if any(part.softmax for total in chain.sums for part in total.parts)]
    choice = attend or listed
    longest = max(len(chain.blocks) for chain in choice)
    return next(chain for chain in choice if 3 * len(chain.blocks) >= longest)
