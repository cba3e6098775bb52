"""What a refusal says is no part of a measurement, unless some of the code listens to it."""

from __future__ import annotations

import ast

_LISTENERS = ("format_exc", "exc_info", "print_exc", "format_exception")  # of traceback and sys: all exceptions


class _Silence(ast.NodeTransformer):
    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return node


def silenced(tree: ast.Module) -> ast.Module:
    """The same code, with the kind of every refusal but not its words."""
    silent = _Silence().visit(tree)
    assert isinstance(silent, ast.Module)
    return silent


def listens(node: ast.AST) -> bool:
    """Whether silenced code takes a caught exception for more than the cause of another."""
    return any(
        (isinstance(inner, ast.ExceptHandler) and inner.name is not None and _used(inner))
        or (isinstance(inner, (ast.Name, ast.Attribute)) and _name(inner) in _LISTENERS)
        for inner in ast.walk(node)
    )


def _used(handler: ast.ExceptHandler) -> bool:
    causes = {id(inner.cause) for inner in ast.walk(handler) if isinstance(inner, ast.Raise)}
    return any(isinstance(inner, ast.Name) and inner.id == handler.name and id(inner) not in causes
               for inner in ast.walk(handler))  # fmt: skip


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr
