"""Signals inside `deferred()` wait for a check; handlers are the user's own again afterwards."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from edgewise import interrupts
from edgewise.interrupts import check, deferred, deferring
from tests.support.alarms import Alarm, Ring, Strikes, alarms


@pytest.fixture(autouse=True)
def _control_c() -> Iterator[None]:
    """Tests started in the background of a script ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def alarm() -> Iterator[Ring]:
    with alarms() as ring:
        yield ring


@pytest.mark.usefixtures("alarm")
def test_a_signal_waits_for_the_next_check() -> None:
    lines = []

    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        lines.append("between")
        check()
        lines.append("after")

    with pytest.raises(Alarm):
        work()
    assert lines == ["between"]


@pytest.mark.usefixtures("alarm")
def test_without_a_check_it_waits_for_the_end() -> None:
    lines = []

    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        lines.append("after")

    with pytest.raises(Alarm):
        work()
    assert lines == ["after"]


def test_control_c_as_well() -> None:
    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        check()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_check_outside_does_nothing() -> None:
    check()


def test_handlers_that_do_not_raise_run_at_the_check() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    own = signal.getsignal(signal.SIGUSR1)
    try:
        with deferred():
            signal.raise_signal(signal.SIGUSR1)
            assert calls == []
            check()
            assert calls == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is own and calls == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("alarm")
def test_nested_ones_wait_for_the_outermost() -> None:
    lines = []

    @deferring
    def work() -> None:
        deferring(signal.raise_signal)(signal.SIGALRM)
        lines.append("the inner one is over")

    with pytest.raises(Alarm):
        work()
    assert lines == ["the inner one is over"]


@pytest.mark.usefixtures("alarm")
def test_what_code_inside_swallows_is_raised_at_the_end() -> None:
    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        try:
            check()
        except Exception as error:
            raise ValueError("something else") from error

    with pytest.raises(Alarm):
        work()


@pytest.mark.usefixtures("alarm")
def test_two_signals_are_both_obeyed() -> None:
    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGINT)
        check()

    with pytest.raises(KeyboardInterrupt) as second:
        work()
    assert isinstance(second.value.__context__, Alarm)


@pytest.mark.usefixtures("alarm")
def test_code_that_never_checks_is_stopped_by_a_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.01)
    lines = []

    def work() -> None:
        with deferred() as waiting:
            signal.raise_signal(signal.SIGALRM)
            time.sleep(0.02)
            with waiting.closed():
                signal.raise_signal(signal.SIGALRM)
                lines.append("closed")
            signal.raise_signal(signal.SIGALRM)
            lines.append("open")

    with pytest.raises(Alarm):
        work()
    assert lines == ["closed"]


@pytest.mark.usefixtures("alarm")
def test_another_thread_has_no_handlers() -> None:
    results: list[str] = []

    @deferring
    def beside() -> None:
        check()
        results.append("done")

    @deferring
    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        results.append("main")

    with pytest.raises(Alarm):
        work()
    assert results == ["done", "main"]


@pytest.mark.usefixtures("alarm")
def test_the_function_keeps_its_name_and_result() -> None:
    @deferring
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert double(4) == 8 and double.__name__ == "double" and double.__doc__ == "Twice the number."


def test_pairs_of_changes_are_never_torn(alarm: Ring) -> None:
    """A thousand alarms while two numbers are changed together: outside `deferred()` some would fall between."""
    moments, numbers = random.Random(0), [0, 0]

    @deferring
    def work() -> None:
        for _ in range(40):
            check()
            numbers[0] += 1
            sum(range(50))
            numbers[1] += 1

    own, strikes = signal.getsignal(signal.SIGALRM), Strikes(work, calls=10)
    for _ in range(1000):
        strikes.strike(alarm, moments.random())
        assert numbers[0] == numbers[1]
        assert signal.getsignal(signal.SIGALRM) is own
    assert strikes.rang > 300


def test_thirty_alarms_on_models_of_all_kinds() -> None:
    """The short form of `benchmarks/interrupts.py`, without what is only measured."""
    from benchmarks.interrupts import trial

    rows, rang, altered = trial(30, verbs=("read", "audit", "plan"), families=("vit",))
    assert altered == 0, rows
    assert rang >= 15
