"""Families of Hugging Face in small configurations are healthy; frequencies that were rounded are judged by length."""

from __future__ import annotations

import pytest
import torch

import edgewise
from experiments.preflight import everyone, families
from experiments.preflight.networks import huggingface, setup
from experiments.preflight.run import checked

pytest.importorskip("transformers")
CONTROLS = [name for name in vars(families) if name.startswith("control_")]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_family_is_ready(name: str) -> None:
    report = checked(getattr(families, name)())
    assert report.ok, report


@pytest.mark.parametrize("network", families.HUGGING_FACE, ids=lambda network: network.name)
def test_a_network_with_an_outer_loss_is_ready(network: object) -> None:
    report = checked(setup(network))  # type: ignore[arg-type]
    assert report.ok, report


@pytest.mark.parametrize(
    "kind, name, task",
    [
        ("afmoe", "AfmoeForCausalLM", "next"),  # its rule draws routers as zeros
        ("axk2", "AXK2ForCausalLM", "next"),  # an indexer gives places, through which no gradient comes
        ("axk1", "AXK1ForCausalLM", "next"),  # a branch fifty times as loud as the stream is no missing skip
        ("bigbird_pegasus", "BigBirdPegasusForCausalLM", "next"),  # the class declares no tie
        ("luke", "LukeForMaskedLM", "masked"),  # it declares other ties than that of the readout
    ],
)
def test_what_the_library_leaves_so_is_a_note(kind: str, name: str, task: str) -> None:
    made = everyone.made(kind, name, task, 0)
    if made is None:
        pytest.skip(f"this transformers has no {name}")
    assert (report := checked(made)).ok, report


def test_a_readout_that_is_louder_than_the_library_draws_it_is_an_error() -> None:
    made = setup(next(network for network in families.HUGGING_FACE if network.name == "llama"))
    made["model"].lm_head.weight.data.mul_(60)
    assert [f.kind for f in checked(made).problems] == ["first loss"]


@pytest.mark.parametrize("positions, severity", [(64, "note"), (4096, "warning")])
def test_rounded_frequencies_matter_over_many_positions(positions: int, severity: str) -> None:
    model = huggingface("llama", max_position_embeddings=positions).to(torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float32):  # as they are, and converted back too late
        report = edgewise.check(model.to(dtype), only="tensors")
        found = [f.severity for f in report.findings if f.kind == "buffer"]
        assert found == [severity]


def test_padded_queries_without_a_key_are_healthy() -> None:
    """Left padding through fused attention: torch gives zeros there, and nothing scores these outputs."""
    from experiments.preflight.blind_one import control_left_padded_chat

    setup = control_left_padded_chat()
    arguments = {k: setup[k] for k in ("batches", "loss", "optimizer", "step", "also") if k in setup}
    report = edgewise.check(setup["model"], **arguments)
    assert "empty attention row" not in {finding.kind for finding in report.findings}
