"""What a notebook shows of every noun, by the report's templates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import edgewise
from edgewise.present import wording
from tests.support.html_elements import Elements


def shown(record: object) -> str:
    html = Elements(record._repr_html_())  # type: ignore[attr-defined]
    assert "script" not in {tag for tag, _ in html.elements}
    return html.text["all"].replace("\u00a0", " ")


def test_architecture_trace_and_verdict() -> None:
    network = edgewise.transformer(depth=24, norm="post", tokens=32).replace(name="mine")
    trace = edgewise.predict(network)
    verdict = edgewise.judge(trace)
    assert "mine · 24 blocks" in shown(network) and "position of the norm" in shown(network)
    assert "Norm of the stream" in shown(trace) and "1e" not in shown(network)
    assert all(sentence in shown(verdict) for sentence in wording.sentences(verdict))
    assert wording.then(verdict.remedies[0]) in shown(verdict)


def test_plan_and_proof(tmp_path: Path) -> None:
    import torch

    from edgewise.study.proof import Arm, Proof, compare

    torch.manual_seed(0)
    layers = [torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(8)]
    with torch.no_grad():
        for layer in layers:
            layer.self_attn.out_proj.weight.mul_(8)  # tokens merge
    model = torch.nn.Sequential(*layers)
    plan = edgewise.critical_plan(model, torch.randn(2, 8, 32))
    text = shown(plan)
    assert "Plan for goal 'critical'" in text and "New std" in text
    assert all(f"{change.new_std:.4g}" in text for change in plan.changes[:2])

    ends = {"as it is": 2.0, "plan": 0.5}
    arms = [Arm(name, ((2.0, last),) * 2, (1e-3,) * 2, (last, last + 0.01)) for name, last in ends.items()]
    proof = Proof(*arms, compare(arms[0].finals, arms[1].finals), 2.3, 2, str(plan), "digits")
    assert "edgewise.study" in sys.modules and edgewise.study.prove is not None
    assert str(proof) in shown(proof) and "0.500, 0.510" in shown(proof)

    whole = Elements(plan.report(tmp_path / "plan.html").read_text())
    assert "to redraw" in whole.plain and plan.diagnosis in whole.plain and "goal='critical'" in whole.plain
    assert all(f"{change.new_std:.4g}" in whole.plain for change in plan.changes[:2])
    page = Elements(proof.report(tmp_path / "proof.html").read_text())
    assert str(proof) in page.plain and "The plan helps" in page.plain and "steps=2, seeds=2" in page.plain
    assert sum(dict(a).get("class") in ("curve", "after") for _, a in page.elements) == 2
    with pytest.raises(edgewise.BadInput, match=r"\.html file"):
        proof.report(tmp_path / "proof.pdf")


@pytest.mark.parametrize("names", ["describe('gpt2')", "predict({'depth': 2, 'tokens': 8})"])
def test_a_fresh_session_has_them_from_the_first_call(names: str) -> None:
    script = f"import edgewise; print('edgewise card' in edgewise.{names}._repr_html_())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
