"""The hash of the code that computes a case: what `measure` reaches, and nothing that only draws or explains.

In the recipe, its neighbours and the library alike: the statements reachable from `measure` by name, wherever they
stand, so that a file may be moved, split or merged. With every file that is reached count its effects on import
(calls, patches of other modules), and with every statement the data files that it names.
Comments, docstrings, layout and import lines do not count, nor do the words of refusals where nothing that is reached
listens to them. What is installed (torch, numpy) is recorded, not hashed.
A file is seen as statements with the names they bind and read.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

from edgewise.study.refusals import LISTENERS, listens, silent

LIBRARY = Path(__file__).parents[1]
# Rooms that a bare `edgewise` does not stand for: they draw and speak.
PEOPLE_ONLY = ("view", "page", "explorer", "cli", "__main__.py")
DATA = (".npz", ".yaml", ".json")
_WHOLE = "*"
_NEIGHBOURS = "neighbours"  # our own dotted name for the recipe's folder
_NEVER_RUN = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
_IMPORTS = (ast.Import, ast.ImportFrom)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _drawn_by_library(path: Path, target: str) -> bool:
    """Whether the library itself calls on a room that draws or speaks, as methods that make a picture do."""
    room = target.split(".")[1:2]
    return bool(room) and room[0] in PEOPLE_ONLY and LIBRARY in path.parents


@dataclass
class Reach:
    """The walk from `measure`: digests of the statements and data files reached, with the place of each.

    A walk takes the disk as it is at its beginning: every folder and file is read, and every
    dotted name followed, once.
    """

    folder: Path
    _statements: dict[Statement, str] = field(default_factory=dict)  # with the place of each
    _tables: dict[str, str] = field(default_factory=dict)  # data files
    _visited: set[tuple[Path, str]] = field(default_factory=set)
    _followed: set[str] = field(default_factory=set)  # dotted names
    _sources: dict[Path, SourceFile] = field(default_factory=dict)
    _folders: dict[Path, dict[str, bool]] = field(default_factory=dict)

    @property
    def pieces(self) -> dict[str, str]:
        """Digests with their places; the words of refusals count if something that is reached takes them up."""
        words = any(statement.listens for statement in self._statements)
        found = {each.digest if words else each.silent_digest: place for each, place in self._statements.items()}
        return found | self._tables

    def file(self, path: Path, name: str = _WHOLE) -> None:
        """Add a name of a file, or the whole file; either way, what importing the file does."""
        if (path, name) in self._visited:
            return
        self._visited.add((path, name))
        source = self._source(path)
        if name == _WHOLE:
            self._add(source, list(source.statements), name)
            return
        self._enter(source)
        if statements := source.binding(name):
            self._add(source, statements, name)
        elif path.name == "__init__.py":
            self._passed_on(source, name)

    def _enter(self, source: SourceFile) -> None:
        """Importing a file runs its effects, and those of the files that it imports at its top."""
        if (source.path, "") in self._visited:
            return
        self._visited.add((source.path, ""))
        self._add(source, source.effects, "")
        for target in source.imports.values():
            for path in self._modules(target):
                self._enter(self._source(path))

    def _source(self, path: Path) -> SourceFile:
        if path not in self._sources:
            self._sources[path] = read_source(path, self._package(path))
        return self._sources[path]

    def _add(self, source: SourceFile, statements: list[Statement], name: str) -> None:
        for statement in statements:
            if not statement.is_import:
                self._statements[statement] = self._place(source.path)
                self._data(statement)
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
            if not _drawn_by_library(source.path, target):
                self.dotted(f"{target}{dot}{rest}")
        elif inside and (source.binding(first) or source.path.name == "__init__.py"):  # else a local or a builtin
            self.file(source.path, first)

    def dotted(self, name: str) -> None:
        """Follow a dotted name into the library or to a neighbour of the recipe; other packages are not ours."""
        if name in self._followed:
            return
        self._followed.add(name)
        place, parts = self._start(name)
        if place is not None:
            self._walk(place, parts)

    def _start(self, name: str) -> tuple[Path | None, list[str]]:
        """The folder in which a dotted name begins; a neighbour may be imported with a dot or by its bare name."""
        root, *parts = name.split(".")
        if root == "edgewise":
            return LIBRARY, parts
        if root == _NEIGHBOURS:
            return self.folder, parts
        package = self._has_folder(self.folder, root) and self._has_file(self.folder / root, "__init__.py")
        beside = package or self._has_file(self.folder, f"{root}.py")
        return (self.folder, [root, *parts]) if beside else (None, [])

    def _has_folder(self, place: Path, name: str) -> bool:
        return self._listing(place).get(name, False)

    def _has_file(self, place: Path, name: str) -> bool:
        return not self._listing(place).get(name, True)

    def _listing(self, place: Path) -> dict[str, bool]:
        """What a folder holds, and whether it is a folder itself."""
        if place not in self._folders:
            self._folders[place] = {item.name: item.is_dir() for item in os.scandir(place)}
        return self._folders[place]

    def _modules(self, name: str) -> list[Path]:
        """The files that an import of a dotted name runs."""
        place, parts = self._start(name)
        files: list[Path] = []
        for part in parts if place is not None else ():
            assert place is not None
            if self._has_folder(place, part):
                place = place / part
                files += [place / "__init__.py"] if self._has_file(place, "__init__.py") else []
                continue
            return files + ([place / f"{part}.py"] if self._has_file(place, f"{part}.py") else [])
        return files

    def _walk(self, place: Path, parts: list[str]) -> None:
        """Down packages as far as the name goes: a name in a module, a name at a door, or a whole package."""
        for depth, part in enumerate(parts):
            if self._has_folder(place, part):
                place = place / part
                continue
            if self._has_file(place, f"{part}.py"):
                return self.file(place / f"{part}.py", parts[depth + 1] if depth + 1 < len(parts) else _WHOLE)
            if self._has_file(place, "__init__.py"):
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

    def _data(self, statement: Statement) -> None:
        """Tables of the library (.npz, .yaml, .json) decide numbers as much as code does: those a statement names."""
        for name in statement.texts:
            if name.endswith(DATA) and "/" not in name:
                for path in LIBRARY.rglob(name):
                    self._tables[hashlib.sha256(path.read_bytes()).hexdigest()] = self._place(path)

    def _package(self, path: Path) -> str:
        return _package_of(path, LIBRARY, self.folder)

    def _place(self, path: Path) -> str:
        return _place_of(path, LIBRARY, self.folder)


@cache
def _place_of(path: Path, library: Path, folder: Path) -> str:
    return str(path.relative_to(library if path.is_relative_to(library) else folder))


@cache
def _package_of(path: Path, library: Path, folder: Path) -> str:
    if path.is_relative_to(library):
        return ".".join(["edgewise", *path.parent.relative_to(library).parts])
    return ".".join([_NEIGHBOURS, *path.parent.relative_to(folder).parts])


def reach(path: Path) -> Reach:
    """All code that `measure` of a recipe depends on."""
    walk = Reach(path.parent)
    walk.file(path, "measure")
    return walk


def code_hash(path: Path) -> str:
    """16 hexadecimal digits that change when the code behind `measure` does, and not when it moves."""
    return hashlib.sha256("\n".join(sorted(reach(path.resolve()).pieces)).encode()).hexdigest()[:16]


def _table(node: ast.AST | None) -> dict[str, str]:
    """A dict of strings written out in the code, as lazy doors have."""
    if not isinstance(node, ast.Dict):
        return {}
    written_out = all(isinstance(item, ast.Constant) for item in (*node.keys, *node.values))
    constants = ast.literal_eval(node) if written_out else {}
    return {key: value for key, value in constants.items() if isinstance(key, str) and isinstance(value, str)}


class Statement:
    """A top-level statement, read once in one walk."""

    def __init__(self, node: ast.stmt, package: str) -> None:
        self.node = node
        self.is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        self.bound: set[str] = set()  # module-level names that it defines or changes
        self.chains: set[str] = set()  # dotted names that it reads: edgewise.study.train
        self.imports: dict[str, str] = {}  # bound name: dotted target, of every import inside it
        self.texts: set[str] = set()  # its string constants: names of data files among them
        self.catches = False
        links: set[int] = set()
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Attribute, ast.Name)) and id(inner) not in links:
                self.chains.add(_chain(inner, links))
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                self.imports.update(_targets(inner, package))
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                self.texts.add(inner.value)
            elif isinstance(inner, ast.ExceptHandler):
                self.catches = True
        self._bind(node)

    def patches(self, imported: Collection[str]) -> bool:
        """Whether it assigns to an attribute or item of something imported: other files then see another value."""
        return not isinstance(self.node, _Definition) and any(
            isinstance(inner, (ast.Attribute, ast.Subscript))
            and isinstance(inner.ctx, (ast.Store, ast.Del))
            and _root(inner) in imported
            for inner in ast.walk(self.node)
        )

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, _Definition):
            self.bound.add(node.name)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            self.bound |= names - {"*"}  # what a star binds cannot be read here: it always counts, as an effect
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            self.bound |= {_root(node)}
        for inner in ast.iter_child_nodes(node):
            self._bind(inner)

    @cached_property
    def listens(self) -> bool:
        """Whether it takes up the words of refusals."""
        everywhere = any(chain.rpartition(".")[2] in LISTENERS for chain in self.chains)
        return everywhere or (self.catches and listens(self.node))

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(text(self.node).encode()).hexdigest()

    @cached_property
    def silent_digest(self) -> str:
        return hashlib.sha256(text(self.node, words=False).encode()).hexdigest()


@dataclass(frozen=True)
class SourceFile:
    """Top-level statements, without those that never run for a caller (TYPE_CHECKING, __main__)."""

    path: Path
    statements: tuple[Statement, ...]

    def binding(self, name: str) -> list[Statement]:
        """The statements that give a name its meaning; there may be several (X = [], X += ...)."""
        return self._bindings.get(name, [])

    @cached_property
    def _bindings(self) -> dict[str, list[Statement]]:
        table: dict[str, list[Statement]] = {}
        for statement in self.statements:
            for name in statement.bound:
                table.setdefault(name, []).append(statement)
        return table

    @cached_property
    def effects(self) -> list[Statement]:
        """Statements that do something on import, as np.seterr(...) or other.LIMIT = 3 do: always part of the code."""
        return [item for item in self.statements if not item.bound or item.patches(self.imports)]

    @cached_property
    def imports(self) -> dict[str, str]:
        """The imports that every function of the file sees."""
        outside = (item for item in self.statements if not isinstance(item.node, _Definition))
        return {name: target for item in outside for name, target in item.imports.items()}


def read_source(path: Path, package: str) -> SourceFile:
    """Parse a file, once for each of its versions; `package` is what a leading dot in its imports stands for."""
    stamp = path.stat()
    return _read(path, package, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4096)
def _read(path: Path, package: str, changed: int, size: int) -> SourceFile:  # noqa: ARG001  part of the cache's key
    tree = ast.parse(path.read_bytes(), filename=str(path))
    return SourceFile(path, tuple(Statement(node, package) for node in _code(tree.body) if _runs(node)))


def _runs(node: ast.stmt) -> bool:
    return not isinstance(node, ast.If) or ast.unparse(node.test) not in _NEVER_RUN


def text(node: object, words: bool = True) -> str:
    """A node as text, with or without the words of refusals, the same on every Python and wherever its code stands.

    No places, no empty fields (newer versions add some), no imports (they say where other code stands; that code
    itself counts).
    """
    if isinstance(node, ast.AST):
        node = node if words else silent(node)
        values = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
        if isinstance(node, _Definition):
            values = [(name, _code(node.body) if name == "body" else value) for name, value in values]
        shown = [f"{name}={text(value, words)}" for name, value in values if value is not None and value != []]
        return f"{type(node).__name__}({','.join(shown)})"
    if isinstance(node, list):
        return "[" + ",".join([text(item, words) for item in node if not isinstance(item, _IMPORTS)]) + "]"
    return repr(node)


def _chain(node: ast.AST, links: set[int]) -> str:
    """a.b.c of the outermost attribute; its inner links are noted, so that they are not read again as a.b and a."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
        links.add(id(node))
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _root(node: ast.AST) -> str:
    """The name that an assignment to x, x.y or x[i] changes."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        up = parts[: len(parts) - node.level + 1] if node.level else []
        base = ".".join([*up, node.module] if node.module else up)
        for alias in node.names:
            yield alias.asname or alias.name, base if alias.name == "*" else f"{base}.{alias.name}"
        return
    for alias in node.names:
        first = alias.name.partition(".")[0]
        yield alias.asname or first, alias.name if alias.asname else first


def _code(body: list[ast.stmt]) -> list[ast.stmt]:
    """A body without its docstring."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
