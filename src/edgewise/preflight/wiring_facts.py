"""Facts about the wiring of a network: skips, blocks, layers, dropout, modes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from edgewise.preflight.catalog import CheckFinding, NotAsked, fact, finding, note, warning
from edgewise.preflight.evidence import TrainingEvidence, is_norm, is_readable, median, rms, role
from edgewise.preflight.observer import ModuleCall


def _block_calls(evidence: TrainingEvidence) -> list[ModuleCall]:
    calls = [c for c in evidence.seen().calls if "cosine" in c.kept and c.kept["x"].any()]
    if len(calls) < 2:
        raise NotAsked("no stack of blocks was seen")
    return calls


@fact("skip", needs="pass")
def skip(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the cosine of a block's input and output with that of its siblings, and the factor of the stream.

    Threshold: below 0.4 of the siblings' median (from the second block on); a median factor above 1.5: added twice.
    Cannot decide: the first block may turn small embeddings; trained weights are not judged.
    """
    calls = _block_calls(evidence)
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    groups: dict[str, list[ModuleCall]] = defaultdict(list)
    for call in calls:
        groups[role(call.name)].append(call)
    for items in groups.values():
        if len(items) < 3:
            continue
        middle = median([c.kept["cosine"] for c in items])
        odd = [c for c in items[1:] if middle > 0.5 and c.kept["cosine"] < 0.4 * middle]
        odd = [
            c for c in odd if abs(c.kept["factor"]) < 0.5 and c.kept["doubt"] < 0.2
        ]  # else its branch is loud
        if odd and len(odd) <= max(1, len(items) // 3):
            yield warning(
                [c.name for c in odd],
                "A block keeps little of its input, unlike its siblings: the residual connection is missing.",
                f"cosine of input and output {odd[0].kept['cosine']:.2f}, the siblings have {middle:.2f}",
                "x = x + branch(x)",
            )
        factor = median([c.kept["factor"] for c in items[1:]])
        if factor > 1.5:
            yield warning(
                [c.name for c in items],
                "Every block multiplies the stream: the residual connection is added twice.",
                f"output along input is {factor:.2f} times the input, a skip connection keeps it (1.0)",
                "x = x + branch(x), once",
                factor=factor,
            )
        elif (
            abs(middle) < 0.25
            and len(items) >= 4
            and max(c.kept["cosine"] for c in items[1:]) < 0.4
            and not _post_norm(items)
        ):
            attends = any(s.place.startswith(items[0].name + ".") for s in evidence.seen().softmaxes)
            yield finding(
                "warning" if attends else "note",
                [c.name for c in items],
                "The blocks keep nothing of their input: residual connections are missing.",
                f"cosine of input and output {middle:.2f} (median)",
                "x = x + branch(x), if a residual network is meant",
            )


def _post_norm(items: list[ModuleCall]) -> bool:
    return any(c.kept.get("size", 0) and 0.9 < c.kept["size"] < 1.1 for c in items)


@fact("norm on the skip", needs="pass")
def norm_on_the_skip(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the output of the first block with its input and with its first norm's output.

    Threshold: it follows the norm's output and not the input, though the norm is the first thing inside.
    """
    blocks = _block_calls(evidence)
    first = blocks[0]
    inside = [c for c in evidence.seen().calls if c.kept.get("norm") and c.name.startswith(first.name + ".")]
    if (
        not evidence.fresh
        or len(blocks) < 3
        or not inside
        or inside[0].kept["pointer"] != first.kept["pointer"]
    ):
        raise NotAsked("the blocks are not pre-norm")
    z, x, y = inside[0].kept["out"], first.kept["x"], first.kept["y"]
    if (
        z.shape == y.shape
        and rms(y - x) >= 1.5 * rms(x)
        and rms(y - z) <= 0.7 * rms(z)
        and rms(x) < 0.5 * rms(z)
    ):
        yield warning(
            [c.name for c in blocks],
            "The residual connection starts after the norm: blocks add to the normalized stream.",
            f"the output of {first.name} follows its norm's output, not its input",
            "pre-norm is x + f(norm(x)); post-norm is norm(x + f(x))",
        )


@fact("no final norm", needs="pass")
def no_final_norm(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare norms called after the last block of a pre-norm stack.

    Threshold: none before the readout; fresh weights, at least 3 blocks.
    Cannot decide: designs without a final norm: a note below 8 blocks.
    """
    blocks = _block_calls(evidence)
    first, last = blocks[0], blocks[-1]
    calls = evidence.seen().calls
    inside = [c for c in calls if c.kept.get("norm") and c.name.startswith(first.name + ".")]
    if len(blocks) < 3 or not inside or inside[0].kept["pointer"] != first.kept["pointer"]:
        raise NotAsked("the blocks are not pre-norm")
    x, y = first.kept["x"], first.kept["y"]
    if not (rms(y - x) < 1.5 * rms(x) or rms(y - inside[0].kept["out"]) > 0.7):
        raise NotAsked("the blocks are not pre-norm")
    end = max(i for i, c in enumerate(calls) if c.name == last.name)
    if not any(is_norm(c.module) for c in calls[end + 1 :]):
        unused = [
            n for n, m in evidence.model.named_modules() if is_norm(m) and n not in {c.name for c in calls}
        ]
        yield finding(
            "warning" if unused else "note",
            unused or [last.name],
            "The stream of a pre-norm stack reaches the readout without a final norm.",
            "no norm is called after the last block"
            + (f"; {unused[0]} exists and is never called" if unused else ""),
            "normalize before the readout",
        )


@fact("collapse", needs="pass")
def collapse(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the mean cosine of the tokens before and after the blocks.

    Threshold: above 0.99 after the last block and below 0.95 before the first, and above 0.9 without what all
    samples share; fresh weights.
    """
    blocks = [c for c in _block_calls(evidence) if "overlap" in c.kept]
    if not blocks or not evidence.fresh:
        raise NotAsked("no fresh blocks of tokens")
    alike = blocks[-1].kept["overlap"] > 0.99 and blocks[-1].kept.get("overlap apart", 1.0) > 0.9
    if alike and blocks[0].kept["overlap before"] < 0.95:
        at = next(c for c in blocks if c.kept["overlap"] > 0.95)
        yield warning(
            at.name,
            "All tokens look alike after the last block.",
            f"their mean cosine is {blocks[-1].kept['overlap']:.3f}, before the first block "
            f"{blocks[0].kept['overlap before']:.2f}",
            "see `edgewise measure` and `edgewise fix`",
        )


@fact("router", needs="pass")
def router(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the share of tokens whose largest router output is one expert.

    Threshold: above 98 % of at least 128 tokens; fresh weights.
    Cannot decide: collapse that grows in training; small batches.
    """
    routers = [c for c in evidence.seen().calls if "load" in c.kept]
    if not routers:
        raise NotAsked("no router")
    full = [c for c in routers if c.kept["load"] > 0.98 and c.kept["tokens"] >= 128]
    if full:
        yield finding(
            "warning" if evidence.fresh else "note",
            [c.name for c in full],
            "The router sends almost all tokens to one expert.",
            f"{full[0].kept['load']:.0%} of {full[0].kept['tokens']} tokens",
            "draw the router small and without bias; add a balancing loss",
        )


@fact("linear pair", needs="pass")
def linear_pair(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare outputs of Linear layers with inputs of others: the very same tensor.

    Threshold: the middle is wider than both ends: an MLP without its activation.
    Cannot decide: low-rank pairs (LoRA, latent attention), which are narrower and meant.
    """
    found = []
    for one, other in evidence.seen().pairs:
        a, b = evidence.module(one), evidence.module(other)
        linear = isinstance(a, nn.Linear) and isinstance(b, nn.Linear)
        if linear and a.out_features > a.in_features and b.in_features > b.out_features:  # type: ignore[union-attr,operator]
            found.append((one, other))
    if found:
        yield warning(
            [name for pair in found for name in pair],
            "Two Linear layers follow each other without an activation between them: together they are one.",
            f"the output of {found[0][0]} is the input of {found[0][1]}",
            "put the activation between them",
        )


@fact("layers not run", needs="pass")
def layers_not_run(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the modules of every list with those that were called, in train and eval mode.

    Threshold: a member that never ran while siblings did; another order than the list's; one that ran more often.
    Cannot decide: experts, layer drop (a note), early exits.
    """
    seen = evidence.seen()
    if seen.error is not None:
        raise NotAsked("the pass failed")
    order: dict[str, int] = {}
    counts: dict[str, int] = defaultdict(int)
    for i, call in enumerate(seen.calls):
        order.setdefault(call.name, i)
        counts[call.name] += 1
    later = set() if evidence.evaluated is None else {c.name for c in evidence.evaluated.calls}
    stacks: dict[str, list[str]] = defaultdict(list)
    for name, module in evidence.blocks.items():
        stacks[f"{name.rpartition('.')[0]} {type(module).__name__}"].append(name)
    for names in stacks.values():
        if len(names) < 2 or any("expert" in n for n in names):
            continue
        ran = [n for n in names if n in order]
        living = {id(evidence.blocks[n]) for n in names if n in order or n in later}
        missed = [n for n in names if id(evidence.blocks[n]) not in living]
        if ran and missed:
            yield finding(
                "warning" if len(missed) <= len(names) // 2 else "note",
                missed,
                "Layers of a stack are never called.",
                f"{len(missed)} of {len(names)} did not run, neither in train nor in eval mode",
                "does the loop leave out the first or the last layer?",
            )
        elif len(ran) == len(names) and [order[n] for n in names] != sorted(order[n] for n in names):
            yield note(names, "Layers run in another order than they stand in their list.")
        elif len(living) == len(names) and ran and max(counts[n] for n in ran) > min(counts[n] for n in ran):
            often = [n for n in ran if counts[n] > min(counts[m] for m in ran)]
            if len(often) <= len(ran) // 2:
                yield warning(
                    often,
                    "A layer of a stack runs more often than its siblings.",
                    f"{counts[often[0]]} times, the others {min(counts[n] for n in ran)}",
                    "is one layer called twice in the loop?",
                )


@fact("rows of tables", needs="pass", cost="0")
def rows_of_tables(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the rows of every table that the batch asks for: with one another, and by their gradient.

    Threshold: frozen rows that are equal: their tokens cannot be told apart; of at least 8 rows one has a gradient,
    in a table that every token asks.
    """
    found = {}
    for lookup in evidence.seen().lookups:
        name = (evidence.names.get(id(lookup.table)) or [""])[0]
        asked = lookup.ids.reshape(-1)[: 1 << 16].unique()
        asked = asked[asked != (-1 if lookup.padding is None else lookup.padding)]
        if not name or name in found or asked.numel() < 4 or not is_readable(lookup.table):
            continue
        found[name] = True
        values = lookup.table.detach()[asked]
        alike = values.shape[0] - values.unique(dim=0).shape[0]
        if alike and not lookup.table.requires_grad and bool(values.any()):
            yield warning(
                [name, "data"],
                "Tokens have identical embeddings that are frozen: the network cannot tell them apart.",
                f"{alike} of {asked.numel()} rows of {name} that the batch asks for are copies of another one, and "
                f"requires_grad is False",
                "train the rows of new tokens, or give them different values",
                rows=alike,
            )
        slope = next((g.get(name) for g in evidence.gradients if g.get(name) is not None), None)
        if slope is None or slope.entries.numel() != lookup.table.numel() or asked.numel() < 8:
            continue
        living = slope.entries.view(lookup.table.shape)[asked].ne(0).any(1)
        asleep = asked[~living]
        hooked = lookup.table._backward_hooks or lookup.table._post_accumulate_grad_hooks
        if hooked and asleep.numel() >= 2 and living.any() and int(asleep.min()) > int(asked[living].max()):
            yield warning(
                [name, lookup.place or "model", "data"],
                "A hook takes the gradient of the last rows of a table, those of new tokens.",
                f"rows from {int(asleep.min())} on are asked for and get no gradient, rows up to "
                f"{int(asked[living].max())} get one: new tokens are never trained",
                "is the mask of the hook the wrong way round?",
            )
        if int(living.sum()) == 1:
            yield warning(
                [name, lookup.place or "model", "model"],
                "One row of a table gets all of its gradient: every distance or position that counts is the same.",
                f"{asked.numel()} rows of {name} are asked for, and only row {int(asked[living][0])} reaches the "
                "loss: the others are masked (relative positions of the wrong sign, clamped?)",
                "under a causal mask distances are query minus key",
            )


@fact("dropout", needs="pass", cost="+1")
def dropout(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare the share of every dropout; random numbers drawn in eval mode.

    Threshold: more than half dropped in training; any draw in eval mode that comes from dropout.
    Cannot decide: masks of a masked-word loss drawn in eval mode: a note.
    """
    seen = evidence.seen()
    heavy = [(place, p) for place, p, active in seen.dropouts if active and p > 0.5]
    if heavy:
        yield warning(
            [place or "model" for place, _ in heavy],
            "Dropout takes most of the activations away.",
            f"p = {max(p for _, p in heavy)}",
            "p is the share that is dropped, not the share that is kept",
        )
    call, later = seen.main_loss, None if evidence.evaluated is None else evidence.evaluated.main_loss
    if call is not None and later is not None and call.outputs.numel() >= 64 and later.outputs.numel():
        zero, usual = (float((c.outputs == 0).float().mean()) for c in (call, later))
        if zero > 0.04 and usual < 0.1 * zero and any(active and p > 0 for _, p, active in seen.dropouts):
            yield warning(
                ["loss", "model", seen.calls[-1].name or "model"],
                "Dropout stands after the readout: outputs that the loss scores are set to zero at random.",
                f"{zero:.0%} of the logits are exactly zero in training, {usual:.0%} in eval mode",
                "dropout before the last layer, not after it",
                share=zero,
            )
    if evidence.evaluated is not None and evidence.evaluated.error is None:
        still = [place or "model" for place, p, active in evidence.evaluated.dropouts if active and p > 0]
        if still:
            yield warning(
                still,
                "Dropout is active in eval mode.",
                f"{len(still)} calls of dropout draw random numbers though model.eval() was called",
                "pass training=self.training to F.dropout",
            )
        elif evidence.evaluated.drew and not seen.dropouts:
            yield note("model", "Random numbers are drawn in eval mode.")


@fact("mode", needs="pass", cost="0")
def mode(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare `training` of every module, in the passes of the user's step if there is one.

    Threshold: all in eval mode with dropout or batch norm inside: a warning.
    """
    quiet = evidence.seen().quiet
    if evidence.optimizer is None:
        raise NotAsked("nothing is trained")
    if quiet:
        yield warning(
            ["model", "loss", "step"],
            "A network that is only asked (a teacher, reference or target) is in train mode: its dropout is active.",
            f"{quiet} dropouts were active outside of the model and without gradients: targets are noisy",
            "teacher.eval()",
        )
    mattering = {
        n: m
        for n, m in evidence.model.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
        or (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0)
    }
    trained = [r for r in evidence.steps if r.modes]
    inside = [r for r in trained if not any(r.modes)]
    if inside or (not trained and not evidence.model.training):
        yield finding(
            "warning" if mattering else "note",
            [*(["step"] if inside else []), *list(mattering)[:8]] or ["model"],
            "The model is trained in eval mode.",
            (f"in step {inside[0].index + 1}, " if inside else "")
            + f"{len(mattering)} dropout and batch norm layers do not do what they do in training",
            "model.train() before the loop, and after every evaluation",
        )
