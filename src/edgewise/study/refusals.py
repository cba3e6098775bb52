"""What a refusal says is no part of a measurement, unless some of the code listens to it."""

from __future__ import annotations

import ast

LISTENERS = ("format_exc", "exc_info", "print_exc", "format_exception")  # of traceback and sys: wherever they stand


def silent(node: ast.AST) -> ast.AST:
    """A refusal with its kind but without its words; other nodes as they are."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return ast.Raise(node.exc.func, node.cause)
    return ast.Assert(node.test, None) if isinstance(node, ast.Assert) else node


def listens(node: ast.AST) -> bool:
    """Whether a caught exception is taken for more than the cause of another, or for words of a refusal."""
    return any(isinstance(inner, ast.ExceptHandler) and _takes_up(inner) for inner in ast.walk(node))


def _takes_up(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == handler.name
               for statement in handler.body for inner in _heard(statement))  # fmt: skip


def _heard(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, without what refusals are made of."""
    if isinstance(node, ast.Raise):
        return []
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in _heard(child))]
