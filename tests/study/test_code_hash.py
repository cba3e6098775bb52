"""Results go stale exactly when the code behind `measure` changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.study import code_hash as code
from edgewise.study.code_hash import LIBRARY, code_hash, reach
from tests.support.recipes import PARTS, write_recipe

SETTINGS = PARTS["head"] + "OTHER = 1\nTABLE = {}\nTABLE['a'] = 3\n"


def hashed(tmp_path: Path, **changed: str) -> str:
    return code_hash(write_recipe(tmp_path, **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"draw": PARTS["draw"].replace("results]", "results[:3]]")},
        {"claim": PARTS["claim"].replace("It is.", "So it is.")},
        {"cases": PARTS["cases"].replace("40", "50")},
        {"head": PARTS["head"].replace("Squares", "Products").replace("import math", "import math, os  # new")},
        {"measure": 'def measure(case):\n    """Words."""\n    # a remark\n\n    return {\n "y": square(case["x"])}\n'},
        {"helper": 'def square(x):\n    "Words."\n    return (FACTOR * x) * x\n'},
        {"head": PARTS["head"] + "COLOUR = 'red'\n"},
        {"head": PARTS["head"] + "if __name__ == '__main__':\n    print(FACTOR)\n"},
    ],
)
def test_what_does_not_compute_does_not_count(tmp_path: Path, changed: dict[str, str]) -> None:
    assert hashed(tmp_path, **changed) == hashed(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"measure": PARTS["measure"].replace("square(", "1 + square(")},
        {"helper": PARTS["helper"].replace("x * x", "x * x * x")},
        {"head": PARTS["head"].replace("FACTOR = 2", "FACTOR = 3")},
        {"head": PARTS["head"] + "FACTOR += 1\n"},
        {"head": PARTS["head"] + "math.tau_is_two_pi = setattr(math, 'tau', 6.3)\nmath.floor(2.0)\n"},
        {"helper": "if math.pi > 3:\n    def square(x):\n        return FACTOR * x * x\n"},
        {"measure": "@staticmethod\n" + PARTS["measure"]},
    ],
)
def test_what_computes_counts(tmp_path: Path, changed: dict[str, str]) -> None:
    assert hashed(tmp_path, **changed) != hashed(tmp_path)


def test_a_table_filled_later_counts_where_it_is_used(tmp_path: Path) -> None:
    uses = PARTS["measure"].replace("square(", "TABLE['a'] + square(")
    other = SETTINGS.replace("['a'] = 3", "['a'] = 4")
    assert hashed(tmp_path, head=SETTINGS, measure=uses) != hashed(tmp_path, head=other, measure=uses)
    assert hashed(tmp_path, head=SETTINGS) == hashed(tmp_path, head=other)


def test_a_neighbour_counts_by_the_names_used(tmp_path: Path) -> None:
    head = PARTS["head"].replace("FACTOR = 2", "from .common import FACTOR")
    common = write_recipe(tmp_path, head=head).with_name("common.py")

    def with_common(text: str) -> str:
        common.write_text(text)
        return hashed(tmp_path, head=head)

    first = with_common("FACTOR = BASE = 2\nCOLOUR = 1\n")
    assert with_common("# words\nFACTOR = BASE = 2\nCOLOUR = 22\n") == first
    assert with_common("FACTOR = BASE = 3\nCOLOUR = 1\n") != first


def places(tmp_path: Path, imports: str, uses: str) -> set[str]:
    head = PARTS["head"].replace("import math", f"import math\n{imports}")
    path = write_recipe(tmp_path, head=head, measure=f"def measure(case):\n    {uses}\n    return {{}}\n")
    return set(reach(path).pieces.values()) - {"figure1.py"}


def test_the_library_counts_by_the_files_behind_the_names_used(tmp_path: Path) -> None:
    found = places(tmp_path, "import edgewise", "edgewise.predict('gpt2')")
    assert {"theory/predict.py", "adapters/describe.py", "adapters/presets.yaml", "verbs.py"} <= found
    rooms = {place.split("/")[0] for place in found}
    assert not rooms & {"probe", "audit", "view", "cli", "study", "nets", "__init__.py"}
    assert "theory/softmax/moments.npz" in found  # a table decides numbers as code does


@pytest.mark.parametrize(
    ("imports", "uses"),
    [
        ("from edgewise import predict", "predict('gpt2')"),
        ("import edgewise as e", "e.predict('gpt2')"),
        ("", "from edgewise import predict\n    predict('gpt2')"),
        ("", "import edgewise\n    edgewise.predict('gpt2')"),
        ("from edgewise.verbs import predict as p", "p('gpt2')"),
    ],
)
def test_every_way_to_import_leads_to_the_same_code(tmp_path: Path, imports: str, uses: str) -> None:
    assert places(tmp_path, imports, uses) == places(tmp_path, "import edgewise", "edgewise.predict('gpt2')")


def test_a_star_counts_as_all_that_it_may_bring(tmp_path: Path) -> None:
    found = places(tmp_path, "from edgewise.judgement import *", "judge()")
    assert {"judgement/judge.py", "stability/lyapunov.py"} <= found


def test_nothing_of_the_library_counts_where_only_the_claim_uses_it(tmp_path: Path) -> None:
    assert places(tmp_path, "import edgewise", "pass") == set()


def test_a_bare_library_counts_as_a_whole_but_for_what_draws(tmp_path: Path) -> None:
    found = places(tmp_path, "import edgewise", "getattr(edgewise, case['verb'])()")
    assert {"probe/measure.py", "critical/phase_diagram.py", "study/recipe.py"} <= found
    assert not [place for place in found if place.startswith(("view/", "cli/"))]


def test_a_changed_file_deep_in_the_library_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a small library, in which a file two imports away is edited."""
    library = tmp_path / "edgewise"
    (library / "room").mkdir(parents=True)
    (library / "__init__.py").write_text('_HOMES = {"verb": "verbs"}\ndef __getattr__(name): ...\n')
    verb = "def verb():\n    from edgewise.room.one import f\n    return f()\n"
    (library / "verbs.py").write_text(verb + "def other(): ...\n")
    (library / "room" / "__init__.py").write_text("")
    (library / "room" / "one.py").write_text("from edgewise.room import two\ndef f():\n    return two.g()\n")
    deep = library / "room" / "two.py"
    deep.write_text("def g():\n    return 1\n")
    monkeypatch.setattr(code, "LIBRARY", library)
    measure = "def measure(case):\n    return edgewise.verb()\n"
    recipe = {"head": PARTS["head"] + "import edgewise\n", "measure": measure}
    first = hashed(tmp_path, **recipe)
    deep.write_text('"""Words."""\ndef g():\n    return 1  # one\n')
    assert hashed(tmp_path, **recipe) == first
    deep.write_text("def g():\n    return 2\n")
    second = hashed(tmp_path, **recipe)
    assert second != first
    (library / "verbs.py").write_text(verb + "def other(): return 3\n")
    assert hashed(tmp_path, **recipe) == second  # a door counts by the names used


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small library in the place of edgewise: a verb that needs one file, which needs another."""
    library = tmp_path / "edgewise"
    (library / "room").mkdir(parents=True)
    (library / "__init__.py").write_text('_HOMES = {"verb": "room.one"}\ndef __getattr__(name): ...\n')
    (library / "room" / "__init__.py").write_text("")
    (library / "room" / "one.py").write_text(
        "from edgewise.room.two import g\nUNUSED = 1\ndef verb():\n    from edgewise.room.two import LIMIT\n"
        "    return g() + LIMIT\n"
    )
    (library / "room" / "two.py").write_text("LIMIT = 3\ndef g():\n    return open('numbers.json').read()\n")
    monkeypatch.setattr(code, "LIBRARY", library)
    return library


def hash_of_verb(tmp_path: Path, head: str = "import edgewise\n") -> str:
    measure = "def measure(case):\n    return edgewise.verb()\n"
    return hashed(tmp_path, head=PARTS["head"] + head, measure=measure)


def test_moving_and_merging_files_does_not_count(tmp_path: Path, library: Path) -> None:
    first = hash_of_verb(tmp_path)
    (library / "place").mkdir()
    (library / "place" / "__init__.py").write_text("")
    two = (library / "room" / "two.py").read_text()
    (library / "place" / "three.py").write_text(two)
    (library / "room" / "two.py").unlink()
    one = library / "room" / "one.py"
    one.write_text(one.read_text().replace("edgewise.room.two", "edgewise.place.three"))
    assert hash_of_verb(tmp_path) == first
    one.write_text(two + "def verb():\n    return g() + LIMIT\n")
    (library / "place" / "three.py").unlink()
    assert hash_of_verb(tmp_path) == first
    one.write_text(two.replace("3", "4") + "def verb():\n    return g() + LIMIT\n")
    assert hash_of_verb(tmp_path) != first


def test_what_stands_beside_in_the_library_does_not_count_unless_used(tmp_path: Path, library: Path) -> None:
    first = hash_of_verb(tmp_path)
    one = library / "room" / "one.py"
    one.write_text(one.read_text().replace("UNUSED = 1", "UNUSED = 2"))
    assert hash_of_verb(tmp_path) == first


def test_a_data_file_counts_where_it_is_named(tmp_path: Path, library: Path) -> None:
    (library / "room" / "numbers.json").write_text("1")
    (library / "room" / "other.json").write_text("1")
    first = hash_of_verb(tmp_path)
    (library / "room" / "other.json").write_text("2")
    assert hash_of_verb(tmp_path) == first
    (library / "room" / "numbers.json").write_text("2")
    assert hash_of_verb(tmp_path) != first


def test_every_data_file_of_the_library_is_named_in_its_code() -> None:
    """The rule above sees names written out; a name put together from pieces would escape it."""
    data = [path.name for path in LIBRARY.rglob("*") if path.suffix in code.DATA and path.parent.name != "schema"]
    texts = "\n".join(path.read_text() for path in LIBRARY.rglob("*.py"))
    assert data and not [name for name in data if f'"{name}"' not in texts]


@pytest.mark.parametrize("patch", ["two.LIMIT = {}", "two.TABLE['a'] = {}", "setattr(two, 'LIMIT', {})"])
def test_a_patch_of_another_module_counts_wherever_it_stands(tmp_path: Path, library: Path, patch: str) -> None:
    """`measure` does not name the patched module; it runs with the patch all the same."""
    head = "import edgewise\nfrom edgewise.room import two\n" + patch + "\n"
    assert hash_of_verb(tmp_path, head.format(5)) != hash_of_verb(tmp_path, head.format(6))
    one = library / "room" / "one.py"
    text = "from edgewise.room import two\n" + patch + "\n" + one.read_text()
    one.write_text(text.format(5))
    first = hash_of_verb(tmp_path)
    one.write_text(text.format(6))
    assert hash_of_verb(tmp_path) != first


def test_a_neighbour_imported_without_a_dot_counts(tmp_path: Path) -> None:
    head = PARTS["head"].replace("FACTOR = 2", "from common import FACTOR")
    common = write_recipe(tmp_path, head=head).with_name("common.py")
    common.write_text("FACTOR = 2\n")
    first = hashed(tmp_path, head=head)
    common.write_text("FACTOR = 3\n")
    assert hashed(tmp_path, head=head) != first


def test_the_hash_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    head = PARTS["head"] + "import edgewise\n"
    uses = "def measure(case):\n    return edgewise.transformer(depth=2)\n"
    hashes = {hashed(tmp_path / name, head=head, measure=uses) for name in ("one", "two")}
    assert len(hashes) == 1
    assert (LIBRARY / "verbs.py").is_file()


REFUSES = "def square(x):\n    if x < 0:\n        raise ValueError(f'{x} is negative')\n    return FACTOR * x * x\n"
TRIES = "def measure(case):\n    try:\n        return {'y': square(case['x'])}\n    except ValueError as error:\n  "
OTHER_WORDS = REFUSES.replace("is negative", "is below zero")


@pytest.mark.parametrize("then", ["raise TypeError('x') from error", "return {'y': 0.0}"])
def test_the_words_of_a_refusal_do_not_count_where_nothing_takes_them_up(tmp_path: Path, then: str) -> None:
    for measure in (PARTS["measure"], f"{TRIES}      {then}\n"):
        same = hashed(tmp_path, helper=REFUSES, measure=measure)
        assert hashed(tmp_path, helper=OTHER_WORDS, measure=measure) == same
        assert hashed(tmp_path, helper=REFUSES.replace("ValueError", "OSError"), measure=measure) != same
        assert hashed(tmp_path, helper=REFUSES.replace("x < 0", "x < 1"), measure=measure) != same


@pytest.mark.parametrize("then", ["return {'y': str(error)}", "return {'y': traceback.format_exc()}"])
def test_the_words_of_a_refusal_count_where_something_takes_them_up(tmp_path: Path, then: str) -> None:
    words = {hashed(tmp_path, helper=helper, measure=f"{TRIES}      {then}\n") for helper in (REFUSES, OTHER_WORDS)}
    assert len(words) == 2
