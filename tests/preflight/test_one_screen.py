"""What the audit, the check and the verdict call an error never contradict one another, on twenty models."""

from __future__ import annotations

import pytest

from experiments.preflight.contradictions import contradictions
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


@pytest.mark.parametrize("name, mistake", [*((n, "") for n in NAMED), *BROKEN])
def test_errors_do_not_contradict_one_another(name: str, mistake: str) -> None:
    network = NAMED[name]
    pytest.importorskip("transformers") if not network.own else None
    made = setup(network)
    if mistake:
        MISTAKES[mistake](made, network)
    found, outcome = contradictions(made)
    assert not found
    assert mistake or outcome != "not measured", "a healthy model is measured"
