"""Turns a template into a function's text, with a mutation of its syntax tree or without."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache

from environments.swebench.mini.templates import Mutation, Template


class _Rewrite(ast.NodeTransformer):
    """Replaces the first subtree that equals `old`, in source order, by `new`."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = ast.dump(_pattern(old)), _pattern(new)
        self.done = False

    def visit(self, node: ast.AST) -> ast.AST:
        if not self.done and ast.dump(node) == self.old:
            self.done = True
            return ast.copy_location(self.new, node)
        return super().visit(node)


def _pattern(text: str) -> ast.AST:
    function = ast.parse(f"def f():\n    {text}").body[0]
    assert isinstance(function, ast.FunctionDef)
    statement = function.body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


@cache
def _body(template: Template, mutation: Mutation | None) -> str:
    """The template as a function F, mutated, with its placeholders still in place."""
    body = "\n".join("    " + line for line in template.body.split("\n"))
    tree: ast.AST = ast.parse(f"def F({', '.join(template.parameters)}):\n{body}")
    if mutation is not None:
        rewrite = _Rewrite(mutation.old, mutation.new)
        tree = rewrite.visit(tree)
        if not rewrite.done:
            raise ValueError(f"template {template.name}: no subtree {mutation.old!r} to mutate")
    text = ast.unparse(ast.fix_missing_locations(tree))
    # Python releases differ in the brackets they write around a lone generator argument.
    return re.sub(r"\b(all|any)\(\((.*)\)\)$", r"\1(\2)", text)


def render(
    template: Template,
    name: str,
    names: Mapping[str, str],
    constant: int,
    mutation: Mutation | None = None,
) -> str:
    """A function's text: `names` for the placeholders L, A, B, C, and `constant` for K."""
    values = {**names, "K": str(constant), "F": name}
    return re.sub(r"\b[LABCKF]\b", lambda match: values[match.group()], _body(template, mutation))
