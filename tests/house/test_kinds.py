"""Few places ask which kind of costs, problem, plan or frontier they have at hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = {
    *("CostGraph", "ComputeCosts"),
    *("Chain", "ComputeGraph", "LayerGraph"),
    *("Items", "Nodes", "Actions", "Plan"),
    *("Frontier", "WholeFrontier", "ChainSweep", "Sweep", "Comparison"),
}
MOST = 13


def files() -> list[Path]:
    return sorted(path for room in ("scheduler", "solvers") for path in (ROOT / room).rglob("*.py"))


def asked(path: Path) -> Iterator[str]:
    """Kinds that a file asks for by `isinstance` or by a pattern of `match`, in order."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            classes: ast.expr = node.args[1]
        elif isinstance(node, ast.MatchClass):
            classes = node.cls
        else:
            continue
        names = [name.id for name in ast.walk(classes) if isinstance(name, ast.Name)]
        names += [name.attr for name in ast.walk(classes) if isinstance(name, ast.Attribute)]
        if KINDS.intersection(names):
            yield f"{path.relative_to(ROOT)}:{classes.lineno}"


def test_few_ask_which_kind_it_is() -> None:
    places = [place for path in files() for place in asked(path)]
    assert len(places) <= MOST, "\n".join(places)


def test_the_kinds_are_there() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files()]
    classes = {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    assert classes >= KINDS
