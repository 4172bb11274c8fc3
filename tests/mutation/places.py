"""Changes of a module that a test should notice: by cosmic-ray's operators, and by two of ours."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

UNUSED = ("VariableReplacer", "VariableInserter", "RemoveDecorator")
"""Operators that need arguments, or give modules that cannot be imported."""

Position = tuple[tuple[int, int], tuple[int, int]]


class SkipStatement(Operator):
    """Leaves out a call, a `raise`, or what is assigned to an attribute or an element."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """See `Operator`."""
        called = node.type in {"atom_expr", "power"} and node.children[-1].type == "trailer"
        kept = node.type == "expr_stmt" and node.children[0].type in {"atom_expr", "power"}
        if node.type == "raise_stmt" or kept or (called and node.parent.type == "simple_stmt"):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """See `Operator`."""
        return parso.parse(node.get_first_leaf().prefix + "pass")

    @classmethod
    def examples(cls) -> tuple[()]:
        """See `Operator`."""
        return ()


class DropOperand(Operator):
    """Makes `a and b`, `a or b` to `a`, or to `b`."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """See `Operator`."""
        if node.type in {"and_test", "or_test"}:
            yield from [(node.start_pos, node.end_pos)] * len(node.children[::2])

    def mutate(self, node: Any, index: int) -> Any:
        """See `Operator`."""
        del node.children[max(2 * index - 1, 0) : 2 * index + (2 if index == 0 else 1)]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """See `Operator`."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a module can be changed in one way, of all that the seed might have chosen.

    Attributes:
        path: of the module, relative to the tree.
        key: stays as long as the line and the function around it do.
    """

    path: Path
    line: int
    key: str
    operator: Operator
    occurrence: int

    def mutant(self, source: str) -> str | None:
        """Return the changed source; None: only an annotation changed, or it is no Python."""
        changed = mutate_code(source, self.operator, self.occurrence)
        if changed is None or _meaning(changed) in {None, _meaning(source)}:
            return None
        return str(changed)

    def diff(self, source: str, changed: str) -> str:
        """Return the change as a unified diff under `file:line`."""
        pair = source.splitlines(), changed.splitlines()
        lines = list(difflib.unified_diff(*pair, lineterm="", n=1))[2:]
        return "\n".join([f"{self.path}:{self.line}", *lines])


def places(path: Path, source: str, *, seed: str) -> Iterator[Place]:
    """Yield all places of a module, each with one change, chosen by `seed`."""
    nodes = list(ast_nodes(get_ast(source)))
    lines, seen = source.splitlines(), Counter[str]()
    ways: dict[tuple[str, Position], list[tuple[str, Operator, int]]] = {}
    for name, operator in _operators():
        found = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, position in enumerate(found):
            rank = _hash(f"{seed} {name} {position}")
            ways.setdefault((name.split("_")[0], position), []).append((rank, operator, occurrence))
    around = _around(source)
    for (family, ((row, _), _)), choices in ways.items():
        if lines[row - 1].lstrip().startswith("@"):
            continue  # how a value is declared, not what is done
        _, operator, occurrence = min(choices, key=lambda choice: choice[0])
        text = f"{around.get(row, '')} {lines[row - 1].strip()} {family}"
        seen[text] += 1
        key = _hash(f"{seed} {text} {seen[text]}")
        yield Place(path=path, line=row, key=key, operator=operator, occurrence=occurrence)


def _operators() -> Iterator[tuple[str, Operator]]:
    for name in operator_names():
        if not name.endswith(UNUSED):
            yield name.partition("/")[2], get_operator(name)()
    yield "SkipStatement", SkipStatement()
    yield "DropOperand", DropOperand()


def _around(source: str) -> dict[int, str]:
    """Return line -> name of the innermost function or class around it."""
    blocks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    blocks.sort(key=lambda node: node.lineno)
    ends = [(node.name, range(node.lineno, (node.end_lineno or 0) + 1)) for node in blocks]
    return {row: name for name, rows in ends for row in rows}


def _meaning(source: str) -> str | None:
    """Return what the code does, annotations left out; None: it is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
    return ast.dump(tree)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
