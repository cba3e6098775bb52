"""`edgewise fix`: plan the weights of a model, show what it leads to, write it as code, prove it by training."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli import exit_codes, options
from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from torch import nn

    from edgewise.models.model_map import ModelMap
    from edgewise.nouns.verdict import Verdict
    from edgewise.probe.subjects import Measurable
    from edgewise.repair.plan import Plan
    from edgewise.study.proof import Proof


EPILOG = (
    f"SOURCE is {ACCEPTED}. The model itself is not changed: the plan is written into a copy, which is measured. Exit "
    "codes: those of the outcome after the plan (0 fine, 1 risky or undecided, 2 will not train); with --prove 0 when "
    "the plan helps, 1 when no difference is shown, 2 when it hurts; 64 bad input, also if there is nothing to fix."
)


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=options.complete_source)
@click.option("--depth", type=int, metavar="N", help="Blocks of a network given by its settings.")
@click.option("--tokens", type=int, metavar="N", help="Length of the random input.  [default: 64]")
@click.option(
    "--goal",
    default="critical",
    metavar="NAME",
    help="critical, or a published scheme: deepnorm, depth-mup, gpt2, xavier, torch, orthogonal.",
)
@click.option(
    "--keep", multiple=True, metavar="NAME", help="A parameter or module that stays as it is; repeatable."
)
@click.option("--frozen", is_flag=True, help="Write frozen parameters (requires_grad=False) too.")
@click.option("--write", metavar="F", help="Write the plan as a Python file that needs torch only.")
@click.option("--prove", is_flag=True, help="Train the model as it is and with the plan, and compare.")
@options.batch_option("a random input; for a proof a built-in task that fits")
@click.option(
    "--steps", type=click.IntRange(min=2), default=200, metavar="N", help="Training steps of a proof."
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, metavar="K", help="Seeds of a proof.")
@options.figure_option("Draw the two loss curves of a proof")
@options.json_option
def fix(
    source: str,
    depth: int | None,
    tokens: int | None,
    goal: str,
    keep: tuple[str, ...],
    frozen: bool,
    write: str | None,
    prove: bool,
    batch: str | None,
    steps: int,
    seeds: int,
    figure: Path | None,
    as_json: bool,
) -> int:
    """Plan the weights of a model so that it trains: a table, the outcome before and after, code to paste."""
    module = options.new_file(write, ".py")
    if figure is not None and not prove:
        raise BadInput("--figure draws the curves of a proof: use it with --prove.")
    began = time.perf_counter()
    with prints_aside(), ProgressBar("importing torch") as bar:
        batches = options.load_batches(batch)
        bar.say(f"building {source}")
        from edgewise.probe.subjects import subject

        target = subject(source if depth is None else options.describe_with(source, depth, None, {}))
        bar.say("planning")
        cure = cure_of(target, batches, tokens, goal, keep, frozen, bar.say)
    if module is not None:
        from edgewise.repair.new_values import write_module

        write_module(cure.plan, module, f"Initialization of {cure.name} by edgewise (goal {cure.plan.goal}).")
    proof = None
    if prove:
        from edgewise.study.proof import prove as prove_plan

        with prints_aside(), ProgressBar("training as it is and with the plan", 0.0) as bar:
            data = None if batches is None else batches.several
            proof = prove_plan(
                factory_of(target), cure.plan, data, steps=steps, seeds=seeds, progress=bar.fill
            )
    if proof is not None and figure is not None:
        proof.draw().savefig(figure)
    with printing():
        if as_json:
            click.echo(json.dumps(cure.json(proof), allow_nan=False))
        else:
            show_cure(cure, proof, source, module, time.perf_counter() - began)
    for file in filter(None, (module, figure)):
        click.echo(f"Wrote {file}", err=True)
    return exit_code(cure, proof)


def exit_code(cure: Cure, proof: Proof | None) -> int:
    """Return the code of the proof, else of the outcome after the plan, else of whether the plan reaches its goal."""
    if proof is not None:
        return {"helps": exit_codes.FINE, "hurts": exit_codes.FAILS}.get(proof.verdict, exit_codes.RISKY)
    if cure.then is not None:
        return exit_codes.of_outcomes([cure.then.outcome])
    return exit_codes.FINE if cure.plan.reached else exit_codes.RISKY


@dataclass(frozen=True)
class Cure:
    """A plan, and the verdicts of the model as it is and with the plan (None if it has no blocks to measure)."""

    name: str
    plan: Plan
    now: Verdict | None
    then: Verdict | None

    def json(self, proof: Proof | None) -> Document:
        """Return `schema/fix-1.json`."""
        from edgewise.present.json_documents import stamp

        verdicts = {"now": self.now, "then": self.then}
        return {
            "name": self.name,
            "plan": self.plan.json(),
            **{key: None if verdict is None else verdict.json() for key, verdict in verdicts.items()},
            "proof": None if proof is None else proof.json(),
        } | stamp()


def cure_of(
    target: Measurable,
    batches: options.Batches | None,
    tokens: int | None,
    goal: str,
    keep: Sequence[str],
    frozen: bool,
    say: Callable[[str], None],
) -> Cure:
    """Return the plan of a model and the measured verdicts before and after; raise if there is nothing to fix."""
    from edgewise.models.model_map import ModelMap
    from edgewise.models.state import random_streams
    from edgewise.probe.subjects import seeded
    from edgewise.repair.initialize import critical_plan, initialize_

    with random_streams():
        model = seeded(factory_of(target), 0)
    batch = None if batches is None else _first_inputs(batches)
    where = ModelMap(model)
    plan = critical_plan(where, batch, keep=keep, goal=goal, tokens=tokens, frozen=frozen)
    say("measuring the model as it is")
    now = _verdict(where, batch, tokens, target.name, target.module is None)
    if not plan.changes:
        raise BadInput(nothing_to_fix(target.name, plan, now))
    say("measuring the model with the plan")
    initialize_(model, plan=plan, generator=0)
    then = None if now is None else _verdict(where, batch, tokens, target.name, False)
    return Cure(target.name, plan, now, then)


def factory_of(target: Measurable) -> Callable[[], nn.Module]:
    """Return a model on every call: drawn again from torch's stream, or a copy if the weights are given."""
    if target.factory is not None:
        return target.factory
    module = target.module
    assert module is not None
    return lambda: copy.deepcopy(module)


def nothing_to_fix(name: str, plan: Plan, now: Verdict | None) -> str:
    """Return why a plan was not made, and where else to look."""
    from edgewise.present.plan_card import totals_in_words
    from edgewise.present.wording import capitalised

    outcome = "" if now is None else f" It is judged as: {now.outcome.value}."
    if plan.kept and not plan.reached:
        return f"nothing in {name} can be changed.{outcome} {plan.diagnosis} {plan.kept_in_words}"
    if plan.findings and plan.before is not None:  # the start is not the reason: where else to look
        return (
            f"there is nothing to fix in the weights of {name}.{outcome} {capitalised(totals_in_words(plan.before))} "
            "If it does not train, check the learning rate (edgewise rate), the data and the precision."
        )
    return f"there is nothing to fix in the weights of {name}.{outcome} {plan.diagnosis}".strip()


def _verdict(
    where: ModelMap, batch: options.Batch, tokens: int | None, name: str, family_recipe: bool
) -> Verdict | None:
    """Return the verdict of `edgewise measure`; None for a model without blocks of tokens."""
    from edgewise.cli.measure_command import READOUTS, SEEDS, verdict_of

    length = None if batch is not None else tokens
    verdict = verdict_of(where, family_recipe, batch, seeds=SEEDS, readouts=READOUTS[:1], tokens=length)
    return None if verdict is None else verdict.with_provenance(name=name)


def _first_inputs(batches: options.Batches) -> options.Batch:
    """Return the inputs of the first pair (inputs, labels)."""
    several = batches.several()
    iterable = hasattr(several, "__iter__") and not isinstance(several, Mapping)
    first = next(iter(several), None) if iterable else several
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        raise BadInput(
            f"--batch {batches.text} must give batches (inputs, labels) here, got {type(first).__name__}."
        )
    return first[0]


def show_cure(cure: Cure, proof: Proof | None, source: str, module: Path | None, seconds: float) -> None:
    """Print everything on one screen."""
    from edgewise.present import plan_card
    from edgewise.present.terminal import console, show

    out = console()
    command = f"edgewise fix {source} {'--frozen ' if cure.plan.frozen else ''}--write init.py"
    parts = [
        plan_card.answers(cure.name, cure.plan, cure.now, cure.then, out.width, seconds),
        plan_card.plan_table(cure.plan, out.width),
        plan_card.code(cure.plan, module, command),
    ]
    if proof is not None:
        parts.append(plan_card.proof_lines(proof, out.width))
    for part in parts:
        show(out, part)
        out.print()
    show(out, plan_card.notes(cure.plan, out.width))
