"""What the score misses caps the outcome: errors in the weights, a first loss far above chance, early collapse."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import edgewise
from edgewise.audit.finding import AuditSeverity
from edgewise.cli.main import edgewise as shell
from edgewise.judgement.findings import FIRST_LOSS
from edgewise.nouns.trace import FirstLoss, Trace
from edgewise.nouns.verdict import Kind, Outcome, Verdict

WORDS = 66


class Words(nn.Module):
    """Ids to logits through an encoder whose layers have weights of their own."""

    def __init__(self, readout: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, dropout=0.0)
            for _ in range(4)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, WORDS)
        with torch.no_grad():
            self.head.weight.mul_(readout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def ids() -> Tensor:
    return torch.randint(0, WORDS, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def copies() -> nn.Module:
    """torch's encoder as its documentation builds it: every layer is a copy of one."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


@pytest.fixture(scope="module")
def broken(copies: nn.Module) -> nn.Module:
    """One matrix that was never written."""
    model = copy.deepcopy(copies)
    nn.init.zeros_(model.layers[1].linear1.weight)
    return model


def test_copied_layers_are_a_warning_and_cap_nothing(copies: nn.Module) -> None:
    """torch's own encoder is one, and such networks train."""
    audit = edgewise.audit_initialization(copies)
    assert max(audit, key=lambda f: list(AuditSeverity).index(f.severity)).severity is AuditSeverity.WARNING
    assert edgewise.judge(edgewise.measure(copies, tokens=24), audit=audit).outcome is Outcome.TRAINS


def test_an_error_of_the_audit_caps_the_outcome(broken: nn.Module) -> None:
    trace, audit = edgewise.measure(broken, tokens=24), edgewise.audit_initialization(broken)
    assert audit[0].severity is AuditSeverity.ERROR
    alone, both = edgewise.judge(trace), edgewise.judge(trace, audit=audit)
    assert alone.outcome is Outcome.TRAINS and alone.probability.value > 0.9  # by the score alone
    assert both.outcome is Outcome.RISKY and both.outcome.exit_code == 1 and both.probability is None
    assert both.findings[0].kind is Kind.INITIALIZATION_ERROR and both.findings[0].severity == "risky"
    lines = str(both).splitlines()
    assert lines[1].startswith("RISKY  because of an error in its weights")
    assert lines[4].strip().startswith("Never initialized")
    assert "%" not in lines[1] + lines[2] and "TRAINS" not in str(both)
    assert (
        both.json()["training_probability"] is None
        and both.json()["capped"] == "because of an error in its weights"
    )
    warnings = tuple(finding for finding in audit if finding.severity is not AuditSeverity.ERROR)
    assert edgewise.judge(trace, audit=warnings).outcome is Outcome.TRAINS


def test_an_error_does_not_better_what_fails() -> None:
    failing = edgewise.predict(edgewise.transformer(depth=48, width=1024, heads=16, norm="post"))
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    nn.init.zeros_(model.layers[1].linear1.weight)
    audit = edgewise.audit_initialization(model)
    verdict = edgewise.judge(failing, audit=audit)
    assert verdict.outcome is Outcome.FAILS and verdict.probability is not None and not verdict.capped
    assert Kind.INITIALIZATION_ERROR in {finding.kind for finding in verdict.findings}


ENCODER = """
import torch
from torch import nn

def build():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    nn.init.zeros_(model.layers[1].linear1.weight)
    return model
"""


def test_no_screen_shows_trains_beside_an_error(tmp_path: Path) -> None:
    """Shell, JSON and page; the exit code follows."""
    (tmp_path / "encoder.py").write_text(ENCODER)
    source = f"{tmp_path / 'encoder.py'}:build"
    text = CliRunner().invoke(shell, ["measure", source, "--tokens", "24"], standalone_mode=False)
    assert text.return_value == 1 and "TRAINS" not in text.output
    assert text.output.splitlines()[1].startswith("RISKY  because of an error in its weights")
    assert text.output.count("Never initialized") == 1
    whole = CliRunner().invoke(shell, ["measure", source, "--tokens", "24", "--json"], standalone_mode=False)
    document = json.loads(whole.stdout)
    assert whole.return_value == 1 and document["measured"]["verdict"]["outcome"] == "risky"
    assert document["audit"][0]["severity"] == "error"
    page = tmp_path / "report.html"
    CliRunner().invoke(
        shell, ["report", source, "--measure", "--tokens", "24", "-o", str(page)], standalone_mode=False
    )
    shown = page.read_text()
    assert "Because of an error in its weights" in shown and "of such networks trained (" not in shown


@pytest.mark.parametrize("batch", [ids(), (ids(),), {"ids": ids()}])
def test_a_first_loss_far_above_chance_caps_the_outcome(batch: Any) -> None:
    torch.manual_seed(0)
    trace = edgewise.measure(Words(readout=100.0), batch)
    assert trace.first_loss.chance == pytest.approx(math.log(WORDS))
    assert trace.first_loss.value > 10 * trace.first_loss.chance
    verdict = edgewise.judge(trace)
    assert verdict.outcome is Outcome.RISKY and verdict.probability is None
    assert verdict.findings[0].kind is Kind.LARGE_FIRST_LOSS
    screen = str(verdict)
    assert "RISKY  because of its first loss" in screen and "times chance (4.19)" in screen


def test_a_usual_readout_is_not_capped() -> None:
    torch.manual_seed(0)
    trace = edgewise.measure(Words(), ids())
    assert 1 < trace.first_loss.value / trace.first_loss.chance < 1.2
    assert edgewise.judge(trace).outcome is Outcome.TRAINS and not edgewise.judge(trace).capped


def test_the_loss_of_random_labels_is_that_of_its_definition() -> None:
    """By drawing labels: log sum exp z - mean z is what they give on average."""
    torch.manual_seed(0)
    model = Words(readout=5.0)
    with torch.no_grad():
        logits = model.eval()(ids()).double().flatten(0, 1)
    labels = torch.randint(0, WORDS, (400, len(logits)))
    drawn = torch.stack([torch.nn.functional.cross_entropy(logits, row) for row in labels]).mean()
    seen = edgewise.measure(model, ids()).first_loss
    ownness = float(torch.nn.functional.cross_entropy(logits, ids().flatten()))
    assert seen.value == pytest.approx(min(float(drawn), ownness), rel=0.02)


@pytest.mark.parametrize(("ratio", "outcome"), [(0.99, Outcome.TRAINS), (1.01, Outcome.RISKY)])
def test_the_limit_is_twice_chance(ratio: float, outcome: Outcome) -> None:
    trace = edgewise.predict("gpt2")
    chance = math.log(50257)
    assert (
        edgewise.judge(replace(trace, first_loss=FirstLoss(ratio * FIRST_LOSS * chance, chance))).outcome
        is outcome
    )


def test_the_models_own_labels_count() -> None:
    """A trained model has a small loss on its labels, however large its logits are."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(100)  # tied: each token is by far the likeliest to follow itself
    before = ids().roll(1, 1)  # labels that the model gets right
    large = edgewise.measure(model, {"input_ids": ids(), "labels": ids()}, readouts=("token",))
    small = edgewise.measure(model, {"input_ids": ids(), "labels": before}, readouts=("token",))
    assert edgewise.judge(large).findings[0].kind is Kind.LARGE_FIRST_LOSS
    assert small.first_loss.value < 1 and not edgewise.judge(small).capped


def test_an_output_that_is_no_logits_has_no_first_loss(copies: nn.Module) -> None:
    assert edgewise.measure(copies, tokens=16).first_loss is None


def test_a_saved_trace_keeps_its_first_loss(tmp_path: Path) -> None:
    trace = edgewise.measure(Words(), ids(), readouts=("token",))
    trace.save(tmp_path / "trace.npz")
    assert Trace.load(tmp_path / "trace.npz").first_loss == trace.first_loss


# Without a skip the first two blocks average over all tokens; the others keep what is left.
MERGING = {
    "attention_skip": (0.0, 0.0, *[1.0] * 10),
    "mlp_branch": 0.1,
    "attention_branch": (1.0, 1.0, *[0.1] * 10),
}


def merging(readout: str | None = None) -> tuple[Trace, Verdict]:
    network = edgewise.transformer(depth=12, tokens=512, width=256, heads=4, score_gain=0.1, **MERGING)
    trace = edgewise.predict(network, readout=readout)
    return trace, edgewise.judge(trace)


def test_tokens_that_merge_in_the_first_blocks_fail_with_the_block_named() -> None:
    """The late change is small: before, this network was said to train. No label per token can be read from it."""
    trace, verdict = merging()
    apart = trace.blocks("separation")
    assert apart[0] == 1 and apart[2] < 1e-3 and abs(verdict.angle.change) < 3
    assert verdict.outcome is Outcome.FAILS and verdict.probability.value < 0.01
    first = int(np.flatnonzero(apart >= 1e-3)[-1]) + 1
    assert verdict.findings[0].kind is Kind.RANK_COLLAPSE and verdict.findings[0].severity == "fails"
    assert f"from block {first} of 12 on they are more than 99.9 % alike" in verdict.findings[0].sentence
    assert verdict.remedies and all(remedy.outcome is not Outcome.FAILS for remedy in verdict.remedies)


@pytest.mark.parametrize("readout", ["pooled", "class"])
def test_one_label_per_sequence_is_judged_by_the_score(readout: str) -> None:
    """It can be read from tokens that are all alike."""
    _, verdict = merging(readout)
    assert verdict.outcome is not Outcome.FAILS


def test_tokens_that_start_alike_are_the_datas_doing() -> None:
    trace = edgewise.predict("gpt2", start_overlap=0.9995)
    assert trace.blocks("separation")[-1] < 1e-3
    assert not any("99.9 % alike" in finding.sentence for finding in edgewise.judge(trace).findings)


def test_the_map_agrees() -> None:
    """The share of a phase diagram at a point where tokens merge early, and at one where they do not."""
    network = edgewise.transformer(depth=12, tokens=512, width=256, heads=4, score_gain=0.1, **MERGING)
    axes = {"mlp_in_gain": (0.9, 1.1, 2), "value_gain": (0.9, 1.1, 2)}
    assert (edgewise.phase_diagram(network, axes).outcome == 2).all()
    assert (edgewise.phase_diagram(network, axes, readout="pooled").outcome < 2).all()
