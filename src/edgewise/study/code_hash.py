"""The hash of the code that computes a case: what `measure` reaches, and nothing that only draws or explains.

In the recipe and its neighbours: the functions and constants reachable from `measure`, by name.
In the library: every file these depend on, through all imports, and the data files beside them.
The doors (`__init__.py`, verbs.py) only pass on: there, the names used count and not the whole file.
Comments, docstrings and layout do not count. What is installed (torch, numpy) is recorded and not hashed.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.study.source_file import SourceFile, Statement, read_source

LIBRARY = Path(__file__).parents[1]
PEOPLE_ONLY = ("view", "cli", "__main__.py")  # rooms that a bare `edgewise` does not stand for: they draw and speak
_DOORS = ("__init__.py", "verbs.py")
_WHOLE = "*"
_NEIGHBOURS = "neighbours"  # our own dotted name for the recipe's folder


@dataclass
class Reach:
    """The walk from `measure`: pieces of code found so far, by the place they come from."""

    folder: Path
    pieces: dict[str, str] = field(default_factory=dict)
    _seen: set[tuple[Path, str]] = field(default_factory=set)

    def file(self, path: Path, name: str = _WHOLE) -> None:
        """Add a name of a file, or the whole file."""
        if (path, name) in self._seen:
            return
        self._seen.add((path, name))
        source = read_source(path, self._package(path))
        if name == _WHOLE:
            self._add(source, list(source.statements), name)
            self._data(path.parent)
        elif found := source.binding(name):
            self._add(source, found + source.effects, name)
        elif path.name == "__init__.py":
            self._passed_on(source, name)

    def _add(self, source: SourceFile, statements: list[Statement], name: str) -> None:
        place = self._place(source.path)
        for statement in statements:
            if not statement.is_import:
                self.pieces[f"{place} {statement.digest}"] = ""
            for chain in self._read_in(statement, name):
                self._follow(source, statement, chain, inside=name != _WHOLE)

    def _read_in(self, statement: Statement, name: str) -> set[str]:
        """The names by which a statement reaches other code."""
        if statement.is_import and name != _WHOLE and "*" not in statement.imports:
            return {name}
        doors = {bound for bound, target in statement.imports.items() if target == "edgewise"}  # lazy: no effect
        return statement.chains | (set(statement.imports) - doors)

    def _follow(self, source: SourceFile, statement: Statement, chain: str, inside: bool) -> None:
        """A name read in a statement: something imported, or (`inside` a file taken by names) defined beside it."""
        first, dot, rest = chain.partition(".")
        target = statement.imports.get(first) or source.imports.get(first)
        if target is not None:
            self.dotted(f"{target}{dot}{rest}")
        elif inside:
            self.file(source.path, first)

    def dotted(self, name: str) -> None:
        """Follow a dotted name into the library or to a neighbour of the recipe; other packages are not ours."""
        root, _, rest = name.partition(".")
        if root == "edgewise":
            self._walk(LIBRARY, rest.split(".") if rest else [])
        elif root == _NEIGHBOURS:
            self._walk(self.folder, rest.split(".") if rest else [])

    def _walk(self, place: Path, parts: list[str]) -> None:
        """Down packages as far as the name goes: a module, a name at a door, or a whole package."""
        for depth, part in enumerate(parts):
            if (place / part).is_dir():
                place = place / part
                continue
            rest = parts[depth + 1 :]
            if (module := place / f"{part}.py").is_file():
                door = module.name in _DOORS or place == self.folder
                return self.file(module, rest[0] if door and rest else _WHOLE)
            if (place / "__init__.py").is_file():
                return self.file(place / "__init__.py", part)
        self._package_files(place)

    def _passed_on(self, source: SourceFile, name: str) -> None:
        """A name that a lazy door fetches: its table says from where; if it does not, the whole room counts."""
        for statement in source.statements:
            value = getattr(statement.node, "value", None)
            for key, home in _table(value).items():
                if key == name:
                    return self._walk(source.path.parent, [*home.split("."), name])
        self._package_files(source.path.parent)

    def _package_files(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*.py")):
            if not (folder == LIBRARY and path.relative_to(folder).parts[0] in PEOPLE_ONLY):
                self.file(path)

    def _data(self, folder: Path) -> None:
        """Tables beside the code (.npz, .yaml, .json) decide numbers as much as code does."""
        if LIBRARY in folder.parents:
            for path in sorted(folder.iterdir()):
                if path.suffix in (".npz", ".yaml", ".json"):
                    self.pieces[self._place(path)] = hashlib.sha256(path.read_bytes()).hexdigest()

    def _package(self, path: Path) -> str:
        if path.is_relative_to(LIBRARY):
            return ".".join(["edgewise", *path.parent.relative_to(LIBRARY).parts])
        return ".".join([_NEIGHBOURS, *path.parent.relative_to(self.folder).parts])

    def _place(self, path: Path) -> str:
        """The same on every machine."""
        return str(path.relative_to(LIBRARY if path.is_relative_to(LIBRARY) else self.folder))


def reach(path: Path) -> Reach:
    """All code that `measure` of a recipe depends on."""
    found = Reach(path.parent)
    found.file(path, "measure")
    return found


def code_hash(path: Path) -> str:
    """16 hexadecimal digits that change when the code behind `measure` does."""
    pieces = reach(path.resolve()).pieces
    return hashlib.sha256("\n".join(f"{place}\t{pieces[place]}" for place in sorted(pieces)).encode()).hexdigest()[:16]


def _table(node: ast.AST | None) -> dict[str, str]:
    """A dict of strings written out in the code, as lazy doors have."""
    if not isinstance(node, ast.Dict):
        return {}
    written_out = all(isinstance(item, ast.Constant) for item in (*node.keys, *node.values))
    constants = ast.literal_eval(node) if written_out else {}
    return {key: value for key, value in constants.items() if isinstance(key, str) and isinstance(value, str)}
