"""Exported Python files: a plan as literals, and definitions of `standalone` modules."""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources

from scheduler.costs.keeps import Keeps
from scheduler.export.exported import Source, as_comment
from scheduler.plans.chain import CHAIN
from scheduler.report.tables import WIDTH
from solvers.schedule import Keep

_STANDALONE = "scheduler.export.standalone"


def python_file(
    title: str, source: Source, data: str, modules: Sequence[str], notes: Sequence[str] = ()
) -> str:
    """A file that depends on nothing of this package.

    `data` are literals in the place of the empty ones of the `modules`, which are those of
    `standalone` in the order in which their definitions are to be read.
    """
    made = "Written by checkpoint-scheduler; depends on nothing of it."
    head = as_comment([title, made, "", *source.summary(), *(("", *notes) if notes else ())])
    texts = [
        (resources.files(_STANDALONE) / f"{name}.py").read_text(encoding="utf-8")
        for name in modules
    ]
    given = {name for node in ast.parse(data).body for name in _assigned(node)}
    bodies = [body for text in texts for body in _definitions(text, given)]
    return "\n\n\n".join([f"{head}\n{_imports(texts)}\n\n{data.strip()}", *bodies]) + "\n"


def _definitions(text: str, given: set[str]) -> Iterator[str]:
    """Every function, class and constant but those that are `given`, as it is written."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield "\n".join(lines[first - 1 : node.end_lineno])
        elif (names := _assigned(node)) and not names <= given:
            yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _assigned(node: ast.stmt) -> set[str]:
    """The names that a statement gives values to."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _imports(texts: Iterable[str]) -> str:
    """All imports but those of each other, once, in the order of formatters."""
    plain: set[str] = set()
    names: dict[str, set[str]] = defaultdict(set)
    for node in (node for text in texts for node in ast.parse(text).body):
        if isinstance(node, ast.Import):
            plain.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(_STANDALONE):
            names[node.module or ""] |= {alias.name for alias in node.names}
    lines = [*plain, *(f"from {name} import {', '.join(sorted(names[name]))}" for name in names)]
    groups: dict[int, list[str]] = defaultdict(list)
    # Plain imports first, and each kind by the name of the module.
    for line in sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1])):
        root = line.split()[1].partition(".")[0]
        groups[0 if root == "__future__" else 1 if root in sys.stdlib_module_names else 2] += [line]
    return "\n\n".join("\n".join(groups[group]) for group in sorted(groups))


def plan_literals(source: Source) -> str:
    """The layers and the checkpoints of a plan."""
    layers = source.plan.layers
    spans = [
        f"({quoted(layers[first])}, {quoted(layers[last])})"
        for first, last, _ in CHAIN.spans(source.plan.schedule)  # an outer one before those inside
    ]
    ways = [item.option for item in source.plan.items if isinstance(item, Keep)]
    in_part = sum(option is not None for option in ways)
    kept = f"{len(ways)} of {len(layers)} layers are kept"
    kept += f", {in_part} of them in part" if in_part else ""
    return (
        f"LAYERS = {literal(map(quoted, layers))}\n"
        f"# {kept}.\n"
        "# Each checkpoint runs from a first to a last layer; one inside another is nested in it.\n"
        f"CHECKPOINTS = {literal(spans)}\n"
    )


def policy_literals(source: Source, target: str) -> str:
    """What the plan's options keep; equal policies once."""
    layers, chosen = source.plan.layers, source.policies(target).items()
    different: dict[Keeps, str] = {}
    for i, (option, keeps) in chosen:
        different.setdefault(keeps, f"# option {quoted(option)}, of {layers[i]}")
    numbers = {keeps: number for number, keeps in enumerate(different)}
    texts = [f"{remark}\n    {_policy(keeps)}" for keeps, remark in different.items()]
    of = {layers[i]: str(numbers[keeps]) for i, (_, keeps) in chosen}
    return (
        "# What stays of a block under an option: results of operations, by which calls of them.\n"
        f"POLICIES = {literal(texts)}\n"
        "# Blocks kept under an option: the number of the policy.\n"
        f"OPTIONS = {literal(of)}\n"
    )


def _policy(keeps: Keeps) -> str:
    calls: dict[str, list[int]] = {}
    for operation, call, *_ in sorted(keeps):
        calls.setdefault(operation, []).append(call)
    found = {}
    for operation, numbers in calls.items():
        line = f"        {quoted(operation)}: {numbers},"
        long = len(line) > WIDTH
        found[operation] = literal(map(str, numbers), indent=8) if long else str(numbers)
    return literal(found, indent=4)


def literal(members: Iterable[str] | Mapping[str, str], *, indent: int = 0) -> str:
    """A list, or a dict of text, with a member on each line, laid out as formatters do."""
    brackets = "{}" if isinstance(members, Mapping) else "[]"
    if isinstance(members, Mapping):
        members = [f"{quoted(key)}: {value}" for key, value in members.items()]
    lines = "".join(f"{' ' * (indent + 4)}{member},\n" for member in members)
    return f"{brackets[0]}\n{lines}{' ' * indent}{brackets[1]}" if lines else brackets


def quoted(text: str) -> str:
    """Text on one line as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)
