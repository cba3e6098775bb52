"""The screen of a verdict: headline, answer, what happens, fixes, one small table; plain lines of a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from edgewise.nouns.card import Line
from edgewise.nouns.verdict import Outcome, Profile, Remedy, Verdict
from edgewise.present import wording

WIDTH, NARROWEST, NARROW = 88, 40, 60  # columns
SHOWN = 3  # remedies; all of them are in verdict.remedies
INDENT = "  "
GLUE = "\x00"  # stands between a number and its % while lines are broken
MORE = "About the start of training only. Numbers: verdict.findings, verdict.json()."


def verdict_text(verdict: Verdict) -> str:
    """What `print(verdict)` shows."""
    return "\n".join(line.text for line in lines(verdict))


def lines(
    verdict: Verdict,
    width: int = WIDTH,
    seconds: float | None = None,
    lead: Sequence[str] = (),
    more: str = MORE,
) -> Iterator[Line]:
    """The whole screen; `lead` comes before all other sentences, such as errors in the weights, `more` after them."""
    width = max(width, NARROWEST)
    yield from headline(verdict, width, seconds)
    yield from answer(verdict, width)
    yield Line("")
    for sentence in (*(lead or wording.errors(verdict)), *_first(verdict), *wording.sentences(verdict)):
        yield from wrapped(sentence, width, INDENT)
    yield from fixes(verdict, width)
    if verdict.depth > 1:
        yield Line("")
        yield from map(Line, table(verdict, width))
    ending = [sentence for sentence in (*_vouched(verdict), more) if sentence]
    if ending:
        yield Line("")
    for sentence in ending:
        yield from (line._replace(style="dim") for line in wrapped(sentence, width, ""))


def headline(verdict: Verdict, width: int, seconds: float | None) -> Iterator[Line]:
    """The network on the left, theory or measured and the seconds on the right, or below where that is too long."""
    left, right = wording.title(verdict), wording.method(verdict, seconds)
    if len(left) + 2 + len(right) <= width:
        yield Line(left + right.rjust(width - len(left)), "bold", len(left))
    else:
        yield from (line._replace(style="bold") for line in wrapped(left, width, "", INDENT))
        yield Line(right)


def answer(verdict: Verdict, width: int) -> Iterator[Line]:
    """The outcome in capitals, and how many of such networks trained."""
    outcome = verdict.outcome.value
    first = f"{outcome.upper()}  "
    broken = [line.text for line in wrapped(first + wording.why(verdict), width, "", INDENT)]
    yield Line(broken[0], outcome, len(outcome))
    yield from map(Line, broken[1:])
    if difference := wording.unlike(verdict):
        yield from wrapped(difference, width, "", INDENT)


def _first(verdict: Verdict) -> Iterable[str]:
    return (verdict.departure,) if verdict.departure else ()


def _vouched(verdict: Verdict) -> Iterable[str]:
    """What the numbers do not vouch for."""
    if verdict.profile.left_out:
        yield f"{verdict.profile.left_out}."
    if verdict.extrapolated:
        yield f"Extrapolated: {'; '.join(verdict.extrapolated)}."


def fixes(verdict: Verdict, width: int) -> Iterator[Line]:
    """The first remedies with the outcome each leads to; general advice where none is proven."""
    remedies = () if verdict.outcome in (Outcome.TRAINS, Outcome.UNDECIDED) else verdict.remedies[:SHOWN]
    if remedies:
        yield Line("")
        yield from rows_of_fixes(remedies, width)
    elif advice := wording.no_remedy(verdict):
        yield Line("")
        yield from wrapped(f"What to do: {advice}", width, INDENT)


def rows_of_fixes(remedies: Sequence[Remedy], width: int) -> Iterator[Line]:
    """Change, outcome and what it means side by side; one below the other where they do not fit."""
    label = max(len("Fix"), *(len(remedy.sentence) for remedy in remedies))
    result = max(len("then"), *(len(wording.then(remedy)) for remedy in remedies))
    if 4 + label + 3 + result > width:
        yield Line(f"{INDENT}Fix", "bold")
        for remedy in remedies:
            yield from wrapped(remedy.sentence, width, 2 * INDENT)
            yield from wrapped(f"then: {wording.then(remedy)}", width, 3 * INDENT)
        return
    yield Line(f"{INDENT}{'Fix'.ljust(label + 2)}   then", "bold")
    for remedy in remedies:
        row = f"{2 * INDENT}{remedy.sentence.ljust(label)}   {wording.then(remedy).ljust(result)}"
        whole = f"{row}   {remedy.note}"
        yield Line((whole if len(whole) <= width else row).rstrip())


def table(verdict: Verdict, width: int) -> list[str]:
    """Overlap and gradient at the input, the quarters and the end; at the ends and the middle of a narrow screen."""
    profile, names = verdict.profile, wording.nouns(verdict)
    blocks = columns(profile.depth, 3 if width < NARROW else 5)
    rows = [[names.block, *map(str, blocks)], ["overlap", *(overlap(profile, block) for block in blocks)]]
    if profile.gradient:
        rows.append(["gradient", *(size(profile.gradient[block]) for block in blocks)])
    first = max(len(row[0]) for row in rows)
    widths = [max(7, *(len(row[i]) for row in rows)) for i in range(1, len(blocks) + 1)]
    return [
        INDENT
        + row[0].ljust(first)
        + "".join(f" {cell.rjust(w)}" for cell, w in zip(row[1:], widths, strict=True))
        for row in rows
    ]


def columns(depth: int, count: int) -> list[int]:
    """Evenly spaced blocks from the input to the last.

    >>> columns(48, 5), columns(2, 5)
    ([0, 12, 24, 36, 48], [0, 1, 2])
    """
    return sorted({round(depth * k / (count - 1)) for k in range(count)})


def overlap(profile: Profile, block: int) -> str:
    """More digits the nearer to 1: 0.40, 0.996, 0.9996."""
    separation = profile.separation[block]
    if separation == 0:
        return "1"
    if separation < 1e-4:
        return ">0.9999"
    digits = 2 if separation >= 0.01 else 3 if separation >= 0.001 else 4
    return f"{profile.overlap[block] + 0.0:.{digits}f}".replace("-0.00", "0.00")


def size(gradient: float) -> str:
    """Two decimals in the middle, whole numbers above 10, bounds beyond what anyone compares."""
    if gradient > 999_999:
        return ">999999"
    if gradient >= 9.995:
        return f"{gradient:.0f}"
    if gradient >= 0.0995:
        return f"{gradient:.2f}"
    return f"{gradient:.3f}" if gradient >= 0.0005 else "<0.001"


def wrapped(sentence: str, width: int, indent: str, further: str | None = None) -> Iterator[Line]:
    """A sentence broken into lines, never between a number and its per-cent sign."""
    glued = sentence.replace(" %", f"{GLUE}%")
    further = indent + INDENT if further is None else further
    broken = textwrap.wrap(
        glued,
        width,
        initial_indent=indent,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return (Line(line.replace(GLUE, " ")) for line in broken)
