"""Which class an answer belongs to: facts that a verb stated, held against the truth."""

from __future__ import annotations

from typing import Any

from .truth import Truth
from .verbs import Facts, written_among

CLASSES = (
    "right",
    "silently wrong",
    "partly blind, said",
    "refused clearly",
    "refused unhelpfully",
    "traceback",
    "too slow",
)
GELU = ("gelu", "gelu_tanh", "gelu_new", "gelu_erf")
NEVER = ("rename its parts", "poke does not", "by its gradient")
CLAIMS = ("IDENTICAL_LAYERS", "NEVER_INITIALIZED", "NORM_GAIN_NOT_ONE", "DEPARTS_FROM_SIBLINGS")
Verdict = tuple[str, list[str]]


def judge(verb: str, truths: tuple[Truth, ...], facts: Facts) -> Verdict:
    """Of several stacks, the truth that fits best counts."""
    order = {name: i for i, name in enumerate(CLASSES)}
    verdicts = [JUDGES[verb](truth, facts) for truth in truths]
    return min(
        verdicts, key=lambda v: ({"right": 0, "partly blind, said": 1}.get(v[0], 2), len(v[1]), order[v[0]])
    )


def refusal(truths: tuple[Truth, ...], message: str) -> Verdict:
    words = [word.lower() for truth in truths for word in truth.reason]
    text = message.partition(" What was read")[0].lower()
    clear = any(word in text for word in words) and not any(word in text for word in NEVER)
    return ("refused clearly" if clear else "refused unhelpfully"), [message[:400]]


def _read(truth: Truth, facts: Facts) -> Verdict:
    """Structure and description."""
    if not truth.softmax:
        return _not_attention(truth, facts)
    wrong = [
        *_depth(truth, facts),
        *_blocks(truth, facts),
        *_norms(truth, facts),
        *_plain(truth, facts),
        *_sums(truth, facts),
    ]
    unknown = {
        k: why
        for k, why in facts.get("open", {}).items()
        if k.removesuffix("_kind") == k or k[:-5] not in facts["open"]
    }
    blind = [f"{fact}: {why or 'no reason given'}" for fact, why in unknown.items()]
    if facts["depth"] is None:
        blind.append("depth")
    if wrong:
        return "silently wrong", wrong
    unsaid = [line for line in blind if line.endswith("no reason given")]
    if unsaid:
        return "silently wrong", ["open without a reason: " + ", ".join(unsaid)]
    return ("partly blind, said", blind) if blind else ("right", [])


def _not_attention(truth: Truth, facts: Facts) -> Verdict:
    """A mixer without softmax may be read as such; softmax attention must not be claimed where there is none."""
    claimed = [i for i, is_attention in enumerate(facts.get("attention", [])) if is_attention]
    if claimed and not any(word.lower() in facts["said"].lower() for word in truth.reason):
        return "silently wrong", [f"softmax attention claimed in blocks {claimed}"]
    wrong = _depth(truth, facts)
    return ("silently wrong", wrong) if wrong else ("right", [])


def _depth(truth: Truth, facts: Facts) -> list[str]:
    if truth.depth is None or facts["depth"] in (None, truth.depth):
        return []
    return [f"depth: says {facts['depth']}, is {truth.depth}"]


def _each(value: Any, depth: int) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value] * depth


def _blocks(truth: Truth, facts: Facts) -> list[str]:
    wrong, depth = [], truth.depth or len(facts["heads"])
    for fact in ("heads", "sees", "positions", "qk_norm"):
        true = getattr(truth, fact)
        for said, is_ in zip(facts[fact], _each(true, depth), strict=False):
            if said is not None and is_ is not None and not SAME.get(fact, _equal)(said, is_):
                wrong.append(f"{fact}: says {said}, is {is_}")
                break
    for said, window, is_ in zip(facts["sees"], facts["window"], _each(truth.sees, depth), strict=False):
        if (
            truth.window is not None
            and "window" in str(is_)
            and said is not None
            and window not in (None, truth.window)
        ):
            wrong.append(f"window: says {window}, is {truth.window}")
            break
    kv = facts.get("kv_heads")
    if kv is not None and isinstance(truth.heads, int) and kv != (truth.kv_heads or truth.heads):
        wrong.append(f"kv_heads: says {kv}, is {truth.kv_heads or truth.heads}")
    mlp = any(fact is not None for fact in (truth.gated, truth.activation, truth.mlp_branch))
    without = [kinds for kinds in facts.get("kinds", []) if "MLP" not in kinds and None not in kinds]
    if mlp and without and not facts["open"] and facts["depth"] is not None:
        wrong.append(f"no MLP: says {without[0]} in {len(without)} blocks")
    if truth.heads is not None and False in facts.get("attention", []) and truth.sees is not None:
        wrong.append("a block of softmax attention is said to be none")
    return wrong


def _equal(said: Any, true: Any) -> bool:
    return bool(said == true)


def _sees(said: str, true: str) -> bool:
    if true in ("other", "prefix"):  # any words but these plain ones
        return said not in ("full", "causal", "window", "causal window")
    if true == "causal window":
        return said.startswith("causal") and said != "causal"
    return "window" in said and not said.startswith("causal") if true == "window" else said == true


SAME = {
    "sees": _sees,
    "positions": lambda said, true: said == true or (true == "rotary" and "queries" in said),
}


def _norms(truth: Truth, facts: Facts) -> list[str]:
    wrong = []
    if truth.norm is not None and facts["norm"] and facts["norm"] != [truth.norm]:
        wrong.append(f"norm: says {facts['norm']}, is {truth.norm}")
    if truth.norm_kind is not None and facts.get("norm_kind") and facts["norm_kind"] != [truth.norm_kind]:
        wrong.append(f"norm_kind: says {facts['norm_kind']}, is {truth.norm_kind}")
    return wrong


def _plain(truth: Truth, facts: Facts) -> list[str]:
    wrong = []
    for fact in ("gated", "parallel", "shared", "absolute"):
        said, true = facts.get(fact), getattr(truth, fact)
        if said is not None and true is not None and said != true:
            wrong.append(f"{fact}: says {said}, is {true}")
    said, true = facts["activation"], truth.activation
    if said is not None and true is not None and said != true and not (said in GELU and true == "gelu"):
        wrong.append(f"activation: says {said}, is {true}")
    return wrong


def _sums(truth: Truth, facts: Facts) -> list[str]:
    wrong, depth = [], truth.depth or len(facts["skip"])
    power = 1 if truth.parallel or (truth.mlp_branch is None and truth.activation is None) else 2
    checks = [("skip", [None if s is None else s**power for s in _each(truth.skip, depth)])]
    checks += [(name, _each(getattr(truth, name), depth)) for name in ("attention_branch", "mlp_branch")]
    for name, truths in checks:
        for said, is_ in zip(facts[name], truths, strict=False):
            if said is not None and is_ is not None and not _near(said, is_):
                wrong.append(f"{name}: says {said:.3g}, is {is_:.3g}")
                break
    return wrong


def _near(said: float, true: float) -> bool:
    return abs(abs(said) - abs(true)) <= 0.02 * abs(true) + 1e-6


def _measure(truth: Truth, facts: Facts) -> Verdict:
    wrong = _depth(truth, facts)
    if not facts["finite"]:
        wrong.append("numbers that are not finite")
    if wrong or not truth.softmax:
        return ("silently wrong", wrong) if wrong else ("right", [])
    return _attention(truth, facts["entropies"], facts, wrong)


def _attention(truth: Truth, heads: list[int] | None, facts: Facts, wrong: list[str]) -> Verdict:
    """Entropies of the right number of heads in every block, or words about why not."""
    true = None if truth.depth is None else _each(truth.heads, truth.depth)
    if heads and true and None not in true and len(heads) == truth.depth and heads != true:
        wrong.append(f"heads with entropies: says {heads}, is {true}")
    if wrong:
        return "silently wrong", wrong
    blind, blocks = [], truth.attends or truth.depth
    if not heads or (blocks is not None and len(heads) < blocks):
        blind.append(f"attention of {len(heads or [])} of {blocks} blocks")
    if not facts["gradients"]:
        blind.append("no gradients")
    if not blind:
        return "right", []
    said = "attention" in facts["said"].lower() or "gradient" in facts["said"].lower()
    return ("partly blind, said" if said else "silently wrong"), [*blind, facts["said"][-300:]]


def _audit(truth: Truth, facts: Facts) -> Verdict:
    kinds = {kind for kind, *_ in facts["findings"]}
    free = {
        *truth.faults,
        *truth.allowed,
        *(("IDENTICAL_LAYERS",) if truth.copies or truth.shared else ()),
    }
    wrong = [
        f"{kind} of {parameter}: {seen}"
        for kind, severity, parameter, seen in facts["findings"]
        if kind not in free and (severity == "ERROR" or (kind in CLAIMS and severity != "NOTE"))
    ]
    if truth.faults and not kinds.intersection(truth.faults):
        wrong.append(f"not found: {' or '.join(truth.faults)}")
    return ("silently wrong", wrong) if wrong else ("right", [])


def _sites(truth: Truth, facts: Facts) -> Verdict:
    if not truth.softmax:
        wrong = _depth(truth, facts)  # which matrix is which holds without softmax too
        return ("silently wrong", wrong) if wrong else ("right", [])
    wrong = _depth(truth, facts) + _norms(truth, facts)
    true = _each(truth.heads, truth.depth or 0)
    if any(s is not None and t is not None and s != t for s, t in zip(facts["heads"], true, strict=False)):
        wrong.append(f"heads: says {facts['heads']}, is {truth.heads}")
    if (
        facts["kv_heads"] is not None
        and isinstance(truth.heads, int)
        and facts["kv_heads"] != (truth.kv_heads or truth.heads)
    ):
        wrong.append(f"kv_heads: says {facts['kv_heads']}, is {truth.kv_heads or truth.heads}")
    if None not in (facts["parallel"], truth.parallel) and facts["parallel"] != truth.parallel:
        wrong.append(f"parallel: says {facts['parallel']}, is {truth.parallel}")
    if truth.query is not None and facts["query"] != truth.query:
        wrong.append(f"query: says {facts['query']}, is {truth.query}")
    blind = ["heads"] if None in facts["heads"] and truth.heads is not None else []
    return ("silently wrong", wrong) if wrong else ("partly blind, said", blind) if blind else ("right", [])


def _initialize(truth: Truth, facts: Facts) -> Verdict:
    wrong = _depth(truth, facts)
    kept = written_among(facts["written"], truth.keep)
    wrong += [f"wrote {kept[:3]}"] if kept else []
    wrong += [f"wrote frozen {facts['frozen written'][:3]}"] if facts["frozen written"] else []
    wrong += ["wrote while planning"] if facts["wrote while planning"] else []
    wrong += ["the output is not finite afterwards"] if not facts["finite"] else []
    wrong += ["undo did not restore the weights"] if not facts["restored"] else []
    return ("silently wrong", wrong) if wrong else ("right", [])


def _watch(truth: Truth, facts: Facts) -> Verdict:
    wrong = ["the run is not that of an unwatched one"] if facts["same as unwatched"] is False else []
    if (
        not facts["gradient_norm"] and "not finite" not in facts["said"]
    ):  # of weights that are not numbers there is none
        wrong.append("no gradient norm of the whole")
    if facts["depth"] and truth.depth is not None and facts["depth"] != truth.depth:
        wrong.append(f"blocks: says {facts['depth']}, is {truth.depth}")
    if wrong or not truth.softmax:
        return ("silently wrong", wrong) if wrong else ("right", [])
    if not facts["depth"]:
        return ("partly blind, said" if facts["said"].strip() else "silently wrong"), [
            "no blocks",
            facts["said"][-300:],
        ]
    heads = facts["heads"] if facts["entropies"] else None
    verdict, details = _attention(truth, heads, facts, [])
    if verdict == "silently wrong" and facts["said"].strip() and "heads with" not in " ".join(details):
        verdict = "partly blind, said"
    return verdict, details


JUDGES = {
    "structure": _read,
    "describe": _read,
    "measure": _measure,
    "audit": _audit,
    "sites": _sites,
    "initialize_": _initialize,
    "watch": _watch,
}
