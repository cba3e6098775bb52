"""The shape of the package in numbers, counted from its syntax: modules, lines, importers, names, helpers used once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

QUESTIONS = ("What", "Whether", "Where", "How", "Which", "Why", "Who")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file; many tests look at the same files."""
    return ast.parse(text)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, however deep; unlike `ast.walk` it does not visit expressions, which are most of a tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(tree, name, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)


@dataclass(frozen=True)
class House:
    """A package's modules, without the doors `__init__` and `__main__`."""

    root: Path

    @cached_property
    def everything(self) -> dict[str, Path]:
        """Every file by its dotted name under the root; a package's door has the package's name."""
        paths = sorted(self.root.rglob("*.py"))
        return {
            ".".join(p.relative_to(self.root).with_suffix("").parts).removesuffix("__init__"): p
            for p in paths
        }

    @cached_property
    def modules(self) -> dict[str, Path]:
        return {n: p for n, p in self.everything.items() if p.name not in ("__init__.py", "__main__.py")}

    @cached_property
    def text(self) -> dict[str, str]:
        return {name: path.read_text() for name, path in self.modules.items()}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {name: parsed(text) for name, text in self.text.items()}

    @cached_property
    def functions(self) -> list[tuple[str, Function]]:
        return [(n, f) for n, tree in self.trees.items() for f in statements(tree) if isinstance(f, Function)]

    def room(self, module: str) -> str:
        """The folder a module is in, or its own name on the top level."""
        return module.split(".")[0]

    def lines(self, room: str = "") -> int:
        return sum(text.count("\n") for name, text in self.text.items() if room in ("", self.room(name)))

    def size(self, room: str = "") -> int:
        return sum(room in ("", self.room(name)) for name in self.modules)

    @cached_property
    def one_importer(self) -> list[str]:
        """Modules that exactly one other module imports; a door that passes names on is not counted."""
        importers: dict[str, set[str]] = {name: set() for name in self.modules}
        for name, tree in self.trees.items():
            for node in statements(tree):
                for target in self._targets(node):
                    if target in importers and target != name:
                        importers[target].add(name)
        return [name for name, by in importers.items() if len(by) == 1]

    def _targets(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            return []
        inside = [name.partition(".")[2] for name in names if name.startswith(f"{self.root.name}.")]
        return [name if name in self.modules else name.rpartition(".")[0] for name in inside]

    @cached_property
    def shared_class_names(self) -> list[str]:
        """Public class names that stand in several files."""
        bodies = (node for tree in self.trees.values() for node in tree.body)
        names = Counter(n.name for n in bodies if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))
        return sorted(name for name, count in names.items() if count > 1)

    @cached_property
    def shared_stems(self) -> list[str]:
        """File names that occur in several folders."""
        stems = Counter(name.rpartition(".")[2] for name in self.modules)
        return sorted(stem for stem, count in stems.items() if count > 1)

    @cached_property
    def _defined(self) -> Counter[str]:
        return Counter(f.name for _, f in self.functions)

    @cached_property
    def _uses(self) -> Counter[str]:
        return Counter(re.findall(r"\b_[a-z][a-z0-9_]*\b", "\n".join(self.text.values())))

    def used_once(self, room: str = "") -> float:
        """The share of private functions of a name of their own that are used in one place."""
        private = [
            f.name
            for name, f in self.functions
            if room in ("", self.room(name))
            and re.fullmatch(r"_[a-z][a-z0-9_]*", f.name)
            and self._defined[f.name] == 1
        ]
        return sum(self._uses[name] == 2 for name in private) / max(len(private), 1)

    @cached_property
    def _any(self) -> list[tuple[str, int]]:
        """Of every function, its module and how often `Any` stands in its signature."""
        signatures = (
            (name, f"{ast.unparse(f.args)} {ast.unparse(f.returns) if f.returns else None}")
            for name, f in self.functions
        )
        return [(name, len(re.findall(r"\bAny\b", signature))) for name, signature in signatures]

    def any_per_function(self, room: str = "") -> float:
        """How often `Any` stands in a signature, per function."""
        counts = [count for name, count in self._any if room in ("", self.room(name))]
        return sum(counts) / max(len(counts), 1)

    def questions(self, room: str = "") -> int:
        """Public functions whose docstring begins as a question."""
        docstrings = (
            ast.get_docstring(f)
            for name, f in self.functions
            if room in ("", self.room(name)) and not f.name.startswith("_")
        )
        return sum((text or " ").split(" ")[0].rstrip(",") in QUESTIONS for text in docstrings)

    def count(self, words: str) -> int:
        """How often some words stand in the code."""
        return sum(text.count(words) for text in self.text.values())
