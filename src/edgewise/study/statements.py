"""One Python file as the code hash sees it: statements with the names they bind and read, without docstrings."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

_NEVER_RUN = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
_IMPORTS = (ast.Import, ast.ImportFrom)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Statement:
    """A top-level statement; everything about it is found in one walk, once."""

    def __init__(self, node: ast.stmt, package: str) -> None:
        self.node = node
        self.is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        self.bound: set[str] = set()  # module-level names that it defines or changes
        self.chains: set[str] = set()  # dotted names that it reads: edgewise.study.train
        self.imports: dict[str, str] = {}  # bound name: dotted target, of every import inside it
        self.texts: set[str] = set()  # its string constants: names of data files among them
        links: set[int] = set()
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Attribute, ast.Name)) and id(inner) not in links:
                self.chains.add(_chain(inner, links))
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                self.imports.update(_targets(inner, package))
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                self.texts.add(inner.value)
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
    def digest(self) -> str:
        return hashlib.sha256(text(self.node).encode()).hexdigest()


@dataclass(frozen=True)
class SourceFile:
    """Top-level statements, without those that never run for a caller (TYPE_CHECKING, __main__)."""

    path: Path
    statements: tuple[Statement, ...]

    def binding(self, name: str) -> list[Statement]:
        """The statements that give a name its meaning; there may be several (X = [], X += ...)."""
        return [statement for statement in self.statements if name in statement.bound]

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


def text(node: object) -> str:
    """A node as text, the same on every Python and wherever its code stands.

    No places, no empty fields (newer versions add some), no imports (they say where other code stands; that code
    itself counts).
    """
    if isinstance(node, ast.AST):
        values = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
        if isinstance(node, _Definition):
            values = [(name, _code(node.body) if name == "body" else value) for name, value in values]
        inside = ",".join([f"{name}={text(value)}" for name, value in values if value is not None and value != []])
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return "[" + ",".join([text(item) for item in node if not isinstance(item, _IMPORTS)]) + "]"
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
