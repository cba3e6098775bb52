"""A dossier repeats its step to the bit, and a replay says which explanation survives."""

from __future__ import annotations

import json
import math
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from edgewise.cli.main import run as shell
from edgewise.errors import BadInput
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.read_run import Run
from edgewise.monitor.replay import Dossiers, Try, _statements, replay
from edgewise.monitor.watch import watch
from tests.monitor.subjects import VOCABULARY, batches, encoder, hugging_face, loss_of, train


def dossier_of(
    model: nn.Module,
    folder: Path,
    last: torch.Tensor,
    criterion: nn.Module | None = None,
    half: bool = False,
    **options: Any,
) -> tuple[Path, list[float]]:
    """Train a little, end with the batch `last`, and raise an alarm at that step by hand."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-3), []
    with watch(model, everything=True, quiet=True, to=folder, criterion=criterion, **options) as handle:
        for x in [*batches(4), last]:
            if x is last:
                handle.diagnosis.see = lambda step, heads: [  # type: ignore[method-assign]
                    Alarm(
                        AlarmKind.BAD_BATCH, step, "", None, step, "On purpose.", "nothing moved before it."
                    )
                ]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = loss_of(model, x, criterion)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert handle.error == ""
    return handle.dossiers.paths[0], losses


def statement(outcome: Any, name: str) -> bool | None:
    return next(held for words, held, _ in outcome.statements if words == name)


def test_the_step_is_repeated_to_the_bit_with_dropout(tmp_path: Path) -> None:
    last = list(batches(6))[5]
    path, losses = dossier_of(hugging_face("gpt2", dropout=0.1), tmp_path / "run", last)
    outcome = replay(path, hugging_face("gpt2", seed=5, dropout=0.1))
    assert outcome.tries[0].loss == losses[-1]
    assert statement(outcome, "That the step is reproduced") is True
    assert statement(outcome, "The attention kernel") is False
    assert statement(outcome, "The number format") is False
    assert statement(outcome, "The batch") is False
    assert {p.name for p in path.iterdir()} == {
        "README.txt",
        "about.json",
        "rows.csv",
        "batch.pt",
        "state.pt",
    }
    assert "On purpose." in (path / "README.txt").read_text()


def test_a_batch_that_is_unlike_the_others_is_found_out(tmp_path: Path) -> None:
    """A trained habit, and then a batch that contradicts it in every token."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for x in batches(60):
        optimizer.zero_grad()
        loss_of(model, x, criterion).backward()
        optimizer.step()

    class Wrong(nn.Module):
        """The criterion of the run, with the labels of one batch turned around."""

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return criterion(prediction, target)

    wrong, path = Wrong(), tmp_path / "run"
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    with watch(model, everything=True, quiet=True, to=path, criterion=wrong) as handle:
        for number, x in enumerate(batches(30, seed=3)):
            target = (VOCABULARY - 1 - x) if number == 29 else x
            optimizer.zero_grad()
            wrong(model(x).flatten(0, 1), target.flatten()).backward()
            optimizer.step()
    assert [alarm.kind for alarm in handle.alarms] == [AlarmKind.BAD_BATCH]
    outcome = replay(handle.dossiers.paths[0], encoder(seed=9), criterion)
    assert statement(outcome, "The batch") is True
    assert statement(outcome, "That the weights were bad already") is False
    assert outcome.usual_loss < 0.5 < outcome.stored_loss


def test_half_precision_is_told_from_single(tmp_path: Path) -> None:
    """With weights so large that bfloat16 rounds logits by more than 1, float32 gives another loss."""
    model = hugging_face("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight *= 3e3
    path, _ = dossier_of(model, tmp_path / "run", list(batches(6))[5], half=True)
    assert json.loads((path / "about.json").read_text())["alarm"]["kind"] == "bad_batch"
    outcome = replay(path, hugging_face("gpt2"))
    assert statement(outcome, "That the step is reproduced") is True
    single = next(t for t in outcome.tries if t.name == "float32")
    assert math.isfinite(single.loss) and single.loss != outcome.tries[0].loss


@pytest.mark.parametrize(
    ("run", "single", "other", "before", "held"),
    [
        (
            (2.0, 1.0),
            (2.0, 1.0),
            (2.0, 1.0),
            (2.0, 0.9),
            (False, False, False, False, False),
        ),  # stored was nan
        (
            (math.nan, math.inf),
            (2.0, 1.0),
            (math.nan, math.inf),
            (2.0, 1.0),
            (True, True, False, True, False),
        ),
        (
            (math.inf, math.inf),
            (math.inf, math.inf),
            (2.0, 1.0),
            (9.0, 1.0),
            (True, False, True, False, True),
        ),
    ],
)
def test_what_a_step_that_ended_in_nan_says(
    run: tuple[float, float],
    single: tuple[float, float],
    other: tuple[float, float],
    before: tuple[float, float],
    held: tuple[bool, ...],
) -> None:
    """Reproduced if it ends in nan again; the format if float32 does not; the kernel if the other one does not; the
    batch if the one before is finite; the weights if that one's loss is far above the usual 2."""
    names = ("as run", "float32", "other attention", "batch before")
    tries = {
        name: Try(name, *numbers) for name, numbers in zip(names, (run, single, other, before), strict=True)
    }
    assert tuple(each[1] for each in _statements(tries, math.nan, 2.0, {"state": True})) == held


@pytest.mark.parametrize(("loss", "usual", "held"), [(2.3, 1.0, True), (1.2, 1.0, False), (2.3, 2.2, False)])
def test_a_batch_whose_loss_alone_is_high_survives(loss: float, usual: float, held: bool) -> None:
    """Inputs ten thousand times too large saturate the network: the loss is high, and its gradient is not."""
    tries = {name: Try(name, loss, 2.0) for name in ("as run", "float32", "other attention")}
    tries["batch before"] = Try("batch before", 0.9, 3.0)
    assert {words: value for words, value, _ in _statements(tries, loss, usual, {"state": True})}[
        "The batch"
    ] is held


def test_a_folder_with_spaces_can_be_replayed_as_its_readme_says(tmp_path: Path) -> None:
    path, _ = dossier_of(encoder(), tmp_path / "my run", next(iter(batches(1))), nn.CrossEntropyLoss())
    command = (path / "README.txt").read_text().strip().rpartition(": ")[2]
    assert shlex.split(command) == ["edgewise", "replay", str(path), "file.py:model"]


def test_the_shell_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, losses = dossier_of(encoder(), tmp_path / "run", list(batches(6))[5], nn.CrossEntropyLoss())
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom tests.monitor.subjects import encoder\n"
        "def both():\n    return encoder(seed=3), nn.CrossEntropyLoss()\n"
        "def alone():\n    return encoder(seed=3)\ndef other():\n    return encoder(depth=3), nn.CrossEntropyLoss()\n"
    )
    assert shell(["replay", str(path), f"{tmp_path}/mine.py:both"]) == 0
    printed = capsys.readouterr().out
    assert f"as run           loss {losses[-1]:.6g}" in printed
    assert "That the step is reproduced survives" in printed
    for function, words in (("alone", "the model returns no loss"), ("other", "does not fit the dossier")):
        assert shell(["replay", str(path), f"{tmp_path}/mine.py:{function}"]) == 64
        assert words in capsys.readouterr().err
    assert shell(["replay", str(path), f"{tmp_path}/mine.py:both", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tries"][0]["loss"] == pytest.approx(losses[-1])
    assert document["statements"][0] == {
        "explanation": "That the step is reproduced",
        "survives": True,
        "why": document["statements"][0]["why"],
    }
    assert shell(["replay", str(tmp_path / "missing"), f"{tmp_path}/missing.py:both"]) == 64
    assert "missing is not a dossier" in capsys.readouterr().err  # and not that the module is missing
    assert shell(["replay", str(tmp_path), f"{tmp_path}/mine.py:both"]) == 64
    assert "is not a dossier" in capsys.readouterr().err


def test_above_the_limit_the_last_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model.pt").write_bytes(b"")
    path, _ = dossier_of(
        encoder(),
        tmp_path / "run",
        list(batches(6))[5],
        nn.CrossEntropyLoss(),
        state_limit=1000,
        checkpoints=tmp_path / "saved",
    )
    assert not (path / "state.pt").exists()
    with pytest.raises(
        BadInput, match=r"above the size limit, or in shards. The last checkpoint was .*saved/model.pt"
    ):
        replay(path, encoder(), nn.CrossEntropyLoss())


def test_a_link_that_leads_nowhere_is_no_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "latest.pt").symlink_to(saved / "deleted.pt")
    dossiers = Dossiers(tmp_path / "run", encoder(), 0, saved)
    assert dossiers._checkpoint() is None
    (saved / "model.pt").write_bytes(b"")
    assert dossiers._checkpoint() == str(saved / "model.pt")


def test_an_alarm_is_written_down_where_its_dossier_cannot_be(tmp_path: Path) -> None:
    """It was lost, the monitor switched itself off, and `edgewise alarms` said that there was none."""
    model, criterion, run = encoder(), nn.CrossEntropyLoss(), tmp_path / "run"
    run.mkdir()
    (run / "dossiers").write_text("in the way")
    with watch(model, everything=True, to=run, criterion=criterion, quiet=True) as handle:
        train(model, 2, criterion)
        handle._guarded(handle._raise, Alarm(AlarmKind.DEAD_HEAD, 1, "", None, 1, "It grows.", "attention"))
        train(model, 2, criterion)
    assert not handle.error and handle.step == 4
    kinds = [event["kind"] for event in Run(run).events()]
    assert kinds == ["start", "blind", "alarm", "stop"]


def test_a_damaged_dossier_is_refused(tmp_path: Path) -> None:
    path, _ = dossier_of(encoder(), tmp_path / "run", list(batches(6))[5], nn.CrossEntropyLoss())
    whole = (path / "state.pt").read_bytes()
    (path / "state.pt").write_bytes(b"")
    with pytest.raises(BadInput, match=r"state.pt cannot be read \(BadZipFile: File is not a zip file"):
        replay(path, encoder(), nn.CrossEntropyLoss())
    with zipfile.ZipFile(path / "state.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**7))
    with pytest.raises(
        BadInput, match=r"state.pt cannot be read \(BadZipFile: it claims 10,000,000 bytes and has 9,8"
    ):
        replay(path, encoder(), nn.CrossEntropyLoss())
    (path / "state.pt").write_bytes(whole)
    (path / "batch.pt").write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="cannot be read"):
        replay(path, encoder(), nn.CrossEntropyLoss())
