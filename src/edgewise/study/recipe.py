"""Recipe: one Python file with cases, measure, claim and draw; load, check, list.

`claim` and `draw` receive a `Result` per case; `claim` returns a `Claim`, a published statement beside what we see.
`select`, `over_seeds` and `seed_count` are what most claims and figures ask of results: means over seeds.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edgewise.errors import BadInput, register_user_code
from edgewise.files import Document, open_regular
from edgewise.study.store import Plain, dumps, loads, plain

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

LARGEST = 4_000_000  # bytes of a recipe
FUNCTIONS = ("cases", "measure", "claim", "draw")
SCALES = ("small", "full")
FOLDERS = ("papers", "experiments")  # what others claimed, and what we asked
INSTALLED = "recipes"  # the folder of the installed package that holds them


@dataclass(frozen=True)
class Claim:
    """One statement and its outcome; `held` is None if the results do not decide it.

    numbers: what the outcome rests on, by name. parts: the single statements of a `Claim.all`. rows: which rows
    of the sources (`papers/rows.yaml`, such as "A28") the statement answers.
    """

    published: str
    ours: str
    scale: str
    held: bool | None
    numbers: Document = field(default_factory=dict)
    parts: tuple[Claim, ...] = ()
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("published", "ours", "scale"):
            if not isinstance(getattr(self, name), str):
                raise BadInput(f"Claim.{name} is {getattr(self, name)!r}. A sentence (str) is expected.")
        held = plain(self.held, "Claim.held")
        if held is not None and not isinstance(held, bool):
            raise BadInput(f"Claim.held is {self.held!r}. Expected True, False, or None for undecided.")
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "numbers", plain(dict(self.numbers), "Claim.numbers"))
        if isinstance(self.rows, str) or not all(isinstance(row, str) for row in self.rows):
            raise BadInput(f"Claim.rows is {self.rows!r}. Expected names of rows, such as ('A28',).")
        object.__setattr__(self, "rows", tuple(self.rows))

    @classmethod
    def all(cls, claims: Sequence[Claim]) -> Claim:
        """Return several statements as one: it holds if all hold, and fails if one fails."""
        if not claims:
            raise BadInput("Claim.all needs at least one claim.")
        outcomes = [claim.held for claim in claims]
        held = False if False in outcomes else None if None in outcomes else True
        published, ours = (
            " ".join(getattr(claim, name) for claim in claims) for name in ("published", "ours")
        )
        scale = " / ".join(dict.fromkeys(claim.scale for claim in claims))
        rows = tuple(dict.fromkeys(row for claim in claims for row in claim.rows))
        return cls(published, ours, scale, held, parts=tuple(claims), rows=rows)

    @property
    def outcome(self) -> str:
        """The outcome as text."""
        return {True: "held", False: "not held", None: "undecided"}[self.held]

    def to_dict(self) -> Document:
        """Return for a JSON file."""
        words = {"published": self.published, "ours": self.ours, "scale": self.scale, "held": self.held}
        parts = {"parts": [part.to_dict() for part in self.parts]} if self.parts else {}
        rows = {"rows": list(self.rows)} if self.rows else {}
        return {**words, "numbers": self.numbers, **rows, **parts}

    def __str__(self) -> str:
        lines = [f"Claim {self.outcome}, at scale: {self.scale}"]
        for part in self.parts or (self,):
            lines += [f"  published: {part.published}", f"  ours:      {part.ours} [{part.outcome}]"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Result:
    """One measured case; `seconds` is the processor time that its `measure` took."""

    case: Document
    value: Document
    seconds: float = 0.0


@dataclass(frozen=True)
class Heading:
    """What a recipe's file says about itself, read without running it."""

    path: Path
    title: str

    @property
    def name(self) -> str:
        """paper/figure: also its place below the folder of runs."""
        return f"{self.path.parent.name}/{self.path.stem}"


@dataclass(frozen=True)
class Recipe(Heading):
    """A loaded recipe: its file, its title, and its four functions behind checks."""

    module: ModuleType

    def cases(self, scale: str = "small") -> list[Document]:
        """Return the cases of one scale as the store would give them back; duplicates and non-JSON are rejected."""
        cases = self._call("cases", scale)
        if not isinstance(cases, Sequence) or isinstance(cases, str):
            raise BadInput(
                f"{self.path}: cases({scale!r}) returned a {type(cases).__name__}, not a list of dicts."
            )
        places: dict[str, int] = {}
        for place, case in enumerate(cases):
            name = f"{self.path}: cases({scale!r})[{place}]"
            if not isinstance(case, dict):
                raise BadInput(f"{name} is a {type(case).__name__}. A dict is expected.")
            text = dumps(plain(case, name))
            if places.setdefault(text, place) != place:
                twins = f"cases {places[text]} and {place} of cases({scale!r}) are equal: {text}"
                raise BadInput(f"{self.path}: {twins}. Give every case its own content, such as a seed.")
        if not places:
            raise BadInput(f"{self.path}: cases({scale!r}) is empty. At least one case is needed.")
        return [loads(text) for text in places]

    def checked_value(self, value: object) -> Document:
        """Return what `measure` returned, plain; anything that the store cannot hold is rejected by its place."""
        if not isinstance(value, dict):
            raise BadInput(f"{self.path}: measure returned a {type(value).__name__}. A dict is expected.")
        return dict(plain(value, f"{self.path}: measure(case)"))

    def claim(self, results: Sequence[Result]) -> Claim:
        claim = self._call("claim", list(results))
        if not isinstance(claim, Claim):
            raise BadInput(
                f"{self.path}: claim returned a {type(claim).__name__}, not an edgewise.study.Claim."
            )
        return claim

    def draw(self, results: Sequence[Result]) -> Figure:
        figure: Figure = self._call("draw", list(results))
        if not hasattr(figure, "savefig"):
            raise BadInput(f"{self.path}: draw returned a {type(figure).__name__}, not a matplotlib Figure.")
        return figure

    def _call(self, name: str, argument: object) -> Any:
        """Call a function of the recipe; name a mistake in it, which is the recipe's, with its line."""
        function: Callable[[Any], Any] = getattr(self.module, name)
        try:
            return function(argument)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(f"{self.path}: {name} raised {_where(error)}") from error


def home() -> Path | None:
    """Return where the recipes of edgewise are: in the installed package, or in its checkout.

    None if neither is.
    """
    package = Path(__file__).parents[1]
    places = (package / INSTALLED, package.parents[1])
    return next((place for place in places if all((place / folder).is_dir() for folder in FOLDERS)), None)


def locate(recipe: str | Path) -> Path:
    """Return the file of a recipe: a path, or papers/poole2016exponential/figure1_length_map[.py] of those shipped."""
    path, shipped = Path(recipe), home()
    if path.is_file() or path.is_absolute() or shipped is None:
        return path
    names = (path, path.with_name(f"{path.name}.py")) if path.name else (path,)
    folders = (shipped, *(shipped / folder for folder in FOLDERS))
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), path)


def load_recipe(path: str | Path) -> Recipe:
    """Load a recipe file; one that lacks a function, or cannot be imported, is rejected by name."""
    path = locate(path).resolve()
    _check(path)
    try:
        # Inside a package that stands for its folder, `from .common import f` finds its neighbors.
        package = "edgewise_papers_" + hashlib.sha256(str(path.parent).encode()).hexdigest()[:12]
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]  # neighbors are read again too: they may have been edited since
        parent = ModuleType(package)
        parent.__path__ = [str(path.parent)]
        sys.modules[package] = parent
        spec = importlib.util.spec_from_file_location(f"{package}.{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        register_user_code(path)
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{path} cannot be imported: {_where(error)}") from error
    return Recipe(path, _title(module.__doc__, path), module)


def read_heading(path: str | Path) -> Heading:
    """Return name and title of a recipe, from its place and docstring; raise if it lacks a function."""
    path = Path(path).resolve()
    _check(path)
    return Heading(path, _title(_outline(path)[1], path))


def _title(docstring: str | None, path: Path) -> str:
    lines = (docstring or path.stem).strip().splitlines()
    return lines[0].rstrip(".") if lines else path.stem


def find_recipes(folder: str | Path) -> list[Path]:
    """Return every file below the folder that defines cases and measure, or is not even Python."""
    found = []
    for path in sorted(Path(folder).rglob("*.py")):
        try:
            lacking = set(_lacking(path))
        except BadInput:
            lacking = set()  # shown with its reason, rather than passed over
        if not {"cases", "measure"} & lacking:
            found.append(path)
    return found


def _check(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"No recipe {path} was found. `edgewise run --list` shows those that are here.")
    if path.suffix != ".py":
        raise BadInput(f"{path} is not a Python file. A recipe is a .py file with {', '.join(FUNCTIONS)}.")
    if lacking := _lacking(path):
        raise BadInput(
            f"{path} has no function {' and no '.join(lacking)}. A recipe defines {', '.join(FUNCTIONS)}."
        )


def _lacking(path: Path) -> list[str]:
    """Return the functions that a file does not define, read without running it."""
    return [name for name in FUNCTIONS if name not in _outline(path)[0]]


def _outline(path: Path) -> tuple[frozenset[str], str | None]:
    """Functions and docstring of a file."""
    with open_regular(path, LARGEST) as file:
        text = file.read()
    try:
        return _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"{path} is not Python: {error}") from error


@lru_cache(512)  # a list of recipes looks at each file three times
def _parsed(text: bytes) -> tuple[frozenset[str], str | None]:
    tree = ast.parse(text)
    names = frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return names, ast.get_docstring(tree)


def _where(error: BaseException) -> str:
    """Type, message and the line of the recipe's own code at which it happened."""
    place, frame = "", error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if not code.co_filename.startswith(("<", str(Path(__file__).parent))):
            place = f" ({Path(code.co_filename).name}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return f"{type(error).__name__}: {error}{place}"


def select(results: Sequence[Result], **where: object) -> list[Result]:
    """Return the results whose case has these values; raise `BadInput` if there is none."""
    selection = [r for r in results if all(r.case.get(key) == value for key, value in where.items())]
    if not selection:
        raise BadInput(f"no result has {where}; the cases do not cover it.")
    return selection


def over_seeds(
    results: Sequence[Result], name: str, **where: object
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard error (0 for one seed) of a value over the selected cases."""
    import numpy as np

    values = np.array([r.value[name] for r in select(results, **where)], dtype=float)
    if len(values) == 1:
        return values[0], np.zeros_like(values[0])
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def seed_count(results: Sequence[Result]) -> int:
    """Return how many random networks stand behind a point."""
    return len({r.case["seed"] for r in results if "seed" in r.case})


def rounded(values: Any, digits: int = 6) -> Plain:
    """Return the same nested numbers as lists with few digits, so that records stay small."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [rounded(value, digits) for value in values]
    return float(f"{values:.{digits}g}")


def simulated_orbit(case: Document) -> Document:
    """Return `simulated` for a recipe: a case with knobs, seed and start_overlap to rows of few digits, by name."""
    from edgewise.nets.build import simulated
    from edgewise.nouns.architecture import transformer

    network = transformer(**case["knobs"])
    orbit = simulated(network, seed=case["seed"], start_overlap=case["start_overlap"])
    return {name: rounded(row) for name, row in vars(orbit).items()}
