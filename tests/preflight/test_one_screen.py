"""What the audit, the check and the verdict call an error never contradict one another, on twenty models."""

from __future__ import annotations

import pytest

import edgewise
from edgewise.errors import BadInput
from experiments.preflight.development import MISTAKES
from experiments.preflight.networks import NETWORKS, setup

NAMED = {network.name: network for network in NETWORKS}
BROKEN = [
    ("gpt2", "memory_in_a_matrix"),
    ("own gpt", "nan_in_a_matrix"),
    ("llama", "loud_readout"),
    ("own llama", "one_matrix_too_large"),
    ("bert", "norm_gain_zero"),
    ("opt", "new_rows_too_large"),
    ("own post-norm", "all_too_small"),
    ("own encoder", "constant_matrix"),
]
NUMBERS = {"not finite", "never written", "loss not finite", "first loss"}  # errors about the start itself


@pytest.mark.parametrize("name, mistake", [*((n, "") for n in NAMED), *BROKEN])
def test_errors_do_not_contradict_one_another(name: str, mistake: str) -> None:
    network = NAMED[name]
    pytest.importorskip("transformers") if not network.own else None
    made = setup(network)
    if mistake:
        MISTAKES[mistake](made, network)
    model, batch = made["model"], made["batches"][0]
    report = edgewise.check(**made)
    errors = [f for f in report.findings if f.severity == "error"]
    try:
        audit = [f for f in edgewise.audit_initialization(model) if f.severity.value == "error"]
    except BadInput:
        audit = []  # a family that it does not know
    places = {place for finding in errors for place in finding.places}
    for finding in audit:
        assert places & set(finding.parameters), f"the audit's error is none of check: {finding}"
    if any(f.kind == "initialization" for f in errors):
        assert audit, "check names an error of the audit that it does not have"
    try:
        verdict = edgewise.judge(
            edgewise.measure(model, batch[0] if network.task == "image" else batch[:, :-1])
        )
    except BadInput:
        assert mistake, "a healthy model is measured"
        return
    if {f.kind for f in errors} & NUMBERS:
        assert verdict.outcome.value != "trains", f"{report}\n{verdict}"
    if verdict.outcome.value == "will not train":
        assert not report.ok, f"{report}\n{verdict}"
