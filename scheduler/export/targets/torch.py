"""A Python file that applies a plan with torch alone."""

from __future__ import annotations

from scheduler.export.exported import Exported, Source
from scheduler.export.standalone.runtime import IMPORTS, RUNTIME, data, head, policies

__all__ = ["python_file", "to_torch"]


def to_torch(source: Source) -> Exported:
    """`apply_plan(model)`, nested checkpoints included.

    Raises
    ------
    InvalidPlan
        The plan does not say what its options keep.
    """
    title = "The plan below for torch: apply_plan(model), before training."
    return Exported("torch", python_file("torch", title, source))


def python_file(
    target: str,
    title: str,
    source: Source,
    *,
    notes: tuple[str, ...] = (),
    imports: tuple[str, ...] = (),
    extra: str = "",
    tail: str = "",
) -> str:
    """A file of data, the runtime, and what a framework needs around it.

    `imports` are lines that go among those of the runtime, sorted as formatters sort them.

    Raises
    ------
    InvalidPlan
        The plan does not say what its options keep.
    """
    parts = [
        f"{head(title, source, notes)}\n{_imports(imports)}",
        f"{data(source)}{policies(source, target)}{extra}",
        RUNTIME.strip("\n"),
        tail.strip("\n"),
    ]
    # Two blank lines between definitions, one after the imports.
    body = "\n\n\n".join(part.strip("\n") for part in parts[2:] if part)
    return f"{parts[0].strip()}\n\n{parts[1].strip()}\n\n\n{body}\n"


def _imports(more: tuple[str, ...]) -> str:
    *standard, third = IMPORTS.strip().split("\n\n")
    # Plain imports first, and each kind by the name of the module.
    lines = sorted(
        [*third.splitlines(), *more], key=lambda line: (line.startswith("from"), line.split()[1])
    )
    return "\n\n".join([*standard, "\n".join(lines)])
