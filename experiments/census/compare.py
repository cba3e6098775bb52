"""Where a description and the truth part, fact by fact, and whether a note says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

NEAR = 0.02  # relative error of a multiplier
WORDS = {  # a note that speaks of the fact in any of these words says so
    "depth": ("layer", "depth", "block", "stack", "share"),
    "heads": ("head",),
    "causal": ("causal", "mask", "direction", "sees"),
    "window": ("window", "local", "sliding", "chunk", "sparse"),
    "norm": ("norm",),
    "positions": ("position", "bias", "rotary", "rope", "alibi", "relative"),
    "gated": ("gate", "mlp", "expert", "activation"),
    "qk_norm": ("quer", "qk", "norm"),
    "parallel": ("parallel",),
    "skip": ("multipl", "residual", "scale", "skip"),
    "branch": ("multipl", "residual", "scale", "branch", "silent"),
    "attention": (
        "state space",
        "linear attention",
        "convolution",
        "recurrent",
        "mixer",
        "sink",
        "sum to one",
    ),
    "copies": ("copies", "copied"),
    "measured": (),
    "prediction": ("copies", "copied", "extrapolated", "trained", "theory does not hold"),
}


def differences(claims: dict[str, Any], truth: dict[str, Any], tokens: int) -> Iterator[tuple[str, str]]:
    """(fact, "says this, is that") for everything that the description gets wrong."""
    for fact, test in TESTS.items():
        if truth.get(fact) is None and fact != "branch":
            continue
        wrong = "is not read" if claims.get(fact, 0) is None else test(claims, truth, tokens)
        if wrong:
            yield fact, wrong


def owned(fact: str, notes: str) -> bool:
    return any(word in notes for word in WORDS[fact])


def _differs(said: Any, true: Any) -> str:
    return f"says {said}, is {true}"


def _depth(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
    choices = truth["depth"] if isinstance(truth["depth"], list) else [truth["depth"]]
    return "" if claims["depth"] in choices else _differs(claims["depth"], truth["depth"])


def _same(fact: str) -> Callable[..., str]:
    def test(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
        return "" if claims[fact] == truth[fact] else _differs(claims[fact], truth[fact])

    return test


def _all(fact: str) -> Callable[..., str]:
    """One value for the whole stack against one for each layer; layers without an opinion do not count."""

    def test(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
        said = claims[fact] if isinstance(claims[fact], list) else [claims[fact]] * len(truth[fact])
        others = [t for s, t in zip(said, truth[fact], strict=False) if t is not None and t != s]
        return _differs(claims[fact], truth[fact]) if others else ""

    return test


def _window(claims: dict[str, Any], truth: dict[str, Any], tokens: int) -> str:
    said = [w if isinstance(w, str) or (w is not None and w < tokens) else "full" for w in claims["window"]]
    pairs = zip(said, truth["window"], strict=False)
    return _differs(said, truth["window"]) if any(t is not None and s != t for s, t in pairs) else ""


_INSIDE = {"none": "not in the branch"}
_ALSO = {
    "none": ("absolute",),
    "in queries or keys": ("rotary",),
}  # a rotation with a decay is said in wider words


def _positions(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
    """What acts in the attention; positions added to the stream before the first block are no business of a block."""
    for said, true in zip(claims["positions"], truth["positions"], strict=False):
        fine = (None, said, _INSIDE.get(said, "in the branch"), *_ALSO.get(said, ()))
        if true not in fine:
            return _differs(claims["positions"], truth["positions"])
    return ""


def _attention(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
    """A description knows one kernel for all layers; a record knows what each layer does."""
    one = claims["attention"]
    said = [one] * len(truth["attention"]) if isinstance(one, str) else one
    true = [kind if kind is None or "softmax" in kind else "mixer" for kind in truth["attention"]]
    if "softmax, changed" in said:  # which change it is has no word of its own
        true = [
            "softmax, changed" if kind and "softmax" in kind and kind != "softmax" else kind for kind in true
        ]
    pairs = zip(said, true, strict=False)
    return _differs(one, truth["attention"]) if any(t is not None and s != t for s, t in pairs) else ""


def _near(said: float | None, true: float) -> bool:
    return said is None or abs(said - true) <= NEAR * max(abs(true), 1e-3)


def _skip(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
    pairs = zip(claims["skip"], truth["skip"], strict=False)
    return (
        _differs(claims["skip"], truth["skip"])
        if any(t is not None and not _near(s, t) for s, t in pairs)
        else ""
    )


def _branch(claims: dict[str, Any], truth: dict[str, Any], _: int) -> str:
    said = claims["branch"]
    if isinstance(truth.get("branch"), dict):
        for part in ("attention", "mlp"):
            pairs = zip(said[part], truth["branch"][part] or (), strict=False)
            if not all(t is None or _near(s, t) for s, t in pairs):
                return _differs(said[part], truth["branch"][part])
        return ""
    for layer, columns in enumerate((truth.get("columns") or [])[: len(said["attention"])]):
        if columns is None or len(columns) != 2 or truth["norm"] is None or truth["norm"][layer] == "post":
            continue
        first, second, skip = said["attention"][layer], said["mlp"][layer], claims["mlp_skip"][layer]
        if first is None or second is None or skip is None:
            continue
        if not _near(first * skip, columns[0]) or not _near(second, columns[1]):
            return _differs([round(first * skip, 4), round(second, 4)], columns)
    return ""


def _copies(_: dict[str, Any], truth: dict[str, Any], __: int) -> str:
    """Blocks that are copies of one another: no number of a description can say it, a note must."""
    return "blocks are copies of one another" if truth["copies"] else ""


TESTS: dict[str, Callable[..., str]] = {
    "depth": _depth,
    "heads": _same("heads"),
    "causal": _all("causal"),
    "window": _window,
    "norm": _all("norm"),
    "positions": _positions,
    "gated": _same("gated"),
    "qk_norm": _all("qk_norm"),
    "parallel": _same("parallel"),
    "attention": _attention,
    "skip": _skip,
    "branch": _branch,
    "copies": _copies,
}
