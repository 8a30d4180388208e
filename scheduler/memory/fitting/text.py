"""What a person reads of a fit, on one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from scheduler.common.text import figures, format_both, format_bytes, format_smallest, format_time
from scheduler.memory.errors import Argument
from scheduler.memory.fitting.facts import FitFacts
from scheduler.memory.fitting.remedies import Remedy
from scheduler.memory.fitting.search import MOST_SEQUENCES, MOST_TOKENS
from scheduler.memory.recipe import Lora
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.setting import HEAD, linears, lora_targets
from scheduler.report.tables import aligned, format_percent

_WIDTH = 100
_LABEL = 10
_MOMENTS = {"loss": "up to loss"}  # a forward may be the highest of them


Spelling = Callable[[Sequence[Argument]], str]
"""How arguments are given."""


def spelled(arguments: Sequence[Argument]) -> str:
    """Arguments as Python has them."""
    return ", ".join(map(str, arguments))


def fit_lines(fit: FitFacts, remedies: Sequence[Remedy], spell: Spelling) -> list[str]:
    """At most 24 lines of at most 100 columns, and some more for what would help."""
    return [
        *_row("model", _model(fit)),
        *_row("recipe", _recipe(fit)),
        *_row("budget", f"{format_both(fit.budget_bytes)}, {fit.training.gpu.name}"),
        *_row("fits", _verdict(fit)),
        *_row("plan", _plan(fit)),
        *_remedies(fit, remedies, spell),
        "",
        *_row("state", _state(fit)),
        *_row(
            "margin",
            f"{format_bytes(fit.margin_bytes)} for CUDA context, fragmentation, communication",
        ),
        *(line for note in (*fit.not_counted, *fit.of_sharding) for line in _row("note", note)),
        *_row("left", _left(fit)),
        "",
        *_moments(fit),
        *_limits(fit),
    ]


def _row(label: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - _LABEL - 2, break_on_hyphens=False)
    head = [f"{label:>{_LABEL}}  {lines[0]}"]
    return head + [" " * (_LABEL + 2) + line for line in lines[1:]]


def _model(fit: FitFacts) -> str:
    name, count = fit.shape.name, fit.shape.parameters
    size, word = (10**9, "billion") if count >= 10**9 else (10**6, "million")
    most = fit.trained_positions
    beyond = f", beyond its {most:,} positions" if most and fit.sequence > most else ""
    parameters = f"{figures(count / size)} {word} parameters"
    return f"{name}, {parameters}; batch {fit.batch}, sequence {fit.sequence} on each GPU{beyond}"


def _recipe(fit: FitFacts) -> str:
    recipe = fit.training.recipe
    trained = "full training" if recipe.train == "full" else "no weight trained"
    parts = [fit.state.recipe, trained]
    if recipe.lora is not None:
        parts[-1] = _adapters(fit.shape, recipe.lora)
    if recipe.base is not None:
        parts.append(f"base in {recipe.base}")
    if recipe.gradient_accumulation:
        parts.append("gradients accumulate")
    parts += [f"{recipe.attention} attention", f"loss {recipe.loss}"]
    return ", ".join(parts)


def _adapters(shape: Shape, lora: Lora) -> str:
    # "all" is not all where there are experts, so the layers are named.
    chosen = lora_targets(shape, lora)
    names = dict.fromkeys(name for kind in shape.kinds for name in linears(kind))
    targets = ", ".join(name for name in (*names, HEAD) if name in chosen)
    experts = " (none on experts)" if shape.routed_parameters else ""
    dropout = f" dropout {lora.dropout}" if lora.dropout else ""
    return f"LoRA r={lora.rank} on {targets}{experts} in {lora.dtype}{dropout}"


def _state(fit: FitFacts) -> str:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in fit.state.rows() if size)
    return f"{format_bytes(fit.state.total_bytes)}: {parts}"


def _left(fit: FitFacts) -> str:
    if fit.available_bytes <= 0:
        return (
            f"nothing: before any activation or gradient, {format_bytes(-fit.available_bytes)} "
            "are missing"
        )
    what = f"{format_bytes(fit.available_bytes)} for activations"
    if not fit.gradients_bytes:
        return what
    return f"{what} and gradients (the state's {format_bytes(fit.gradients_bytes)} count here)"


def _moments(fit: FitFacts) -> list[str]:
    kept = format_bytes(fit.kept_bytes)
    lines = _row(
        "step", f"the forward keeps {kept} with nothing checkpointed; its highest moments:"
    )
    # Without the margin it is what torch.cuda.max_memory_allocated counts.
    what, state = "activations", "state"
    if fit.gradients_bytes:
        what, state = "activations + gradients", "state without gradients"
    base = f"with {format_bytes(fit.reserved_bytes)}: {state}, margin"
    rows = [("", what, "everything", base)]
    rows += [
        (
            _MOMENTS.get(moment.name, moment.name),
            format_bytes(moment.bytes),
            format_bytes(fit.reserved_bytes + moment.bytes),
            moment.set_by,
        )
        for moment in fit.moments
    ]
    return lines + _to_the_right(rows)


def _verdict(fit: FitFacts) -> str:
    room = fit.available_bytes - fit.peak_bytes
    if room >= 0:
        return f"yes, with nothing checkpointed; {format_bytes(room)} are free"
    return f"not with everything kept: {format_bytes(-room)} too much"


def _plan(fit: FitFacts) -> str:
    smallest = (
        f"the smallest feasible budget, state and margin included, is "
        f"{fit.smallest_text()}, set by {fit.set_by}"
    )
    plan = fit.plan
    if plan is None:
        return f"none fits; {smallest}"
    if plan.overhead == 0:
        return f"nothing need be recomputed; {smallest}"
    again = sum(count > 1 for count in plan.forwards.values())
    parts = ", whole or in part" if plan.schedule.options() else ""
    return (
        f"{plan.status}: {format_percent(plan.overhead)} slower "
        f"({format_time(plan.time, plan.time_unit)} a step), {again} of {len(plan.layers)} layers "
        f"recomputed{parts}; the step needs {format_bytes(plan.peak_bytes)} of the "
        f"{format_bytes(fit.available_bytes)} left; {smallest}"
    )


def _remedies(fit: FitFacts, remedies: Sequence[Remedy], spell: Spelling) -> list[str]:
    lines: list[str] = []
    for remedy in remedies:
        note = f" ({remedy.note})" if remedy.note else ""
        said = f"{spell(remedy.arguments)}{note}: {_effect(fit, remedy)}"
        lines += _row("" if lines else "helps", said)
    return lines


def _effect(fit: FitFacts, remedy: Remedy) -> str:
    if remedy.overhead is None:
        smallest = remedy.smallest_budget_bytes
        less = format_bytes(fit.smallest_budget_bytes - smallest)
        return f"needs {format_smallest(smallest)}, {less} less"
    if remedy.overhead == 0:
        return "fits with nothing recomputed"
    return f"fits, {format_percent(remedy.overhead)} slower"


def _limits(fit: FitFacts) -> list[str]:
    limits = fit.limits
    if limits is None:
        return []
    rows = [
        ("largest", "everything kept", "best checkpointing", ""),
        (
            "batch",
            _bounded(limits.batch, MOST_SEQUENCES),
            _bounded(limits.batch_checkpointed, MOST_SEQUENCES),
            f"at sequence {fit.sequence}",
        ),
    ]
    if not fit.shape.fixed_sequence:
        kept, checkpointed = limits.sequence, limits.sequence_checkpointed
        rows.append(
            (
                "sequence",
                _bounded(kept, limits.most_sequence),
                _bounded(checkpointed, limits.most_sequence),
                f"at batch {fit.batch}{_positions(fit, checkpointed)}",
            )
        )
    return ["", *_to_the_right(rows)]


def _to_the_right(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """Rows of a label, two figures and a remark, the figures under each other's ends."""
    left, right = (max(len(row[column]) for row in rows) for column in (1, 2))
    cells = [(a.rjust(_LABEL), b.rjust(left), c.rjust(right), d) for a, b, c, d in rows]
    return aligned(cells, left=4)


def _positions(fit: FitFacts, longest: int) -> str:
    """`Fit.notes` of the longest sequences, in what is left of their row."""
    most = fit.trained_positions
    if most is None or longest < most:
        return ""
    if fit.shape.positions:
        return "; no more positions are learned"
    return f"; made for {most:,} positions" if longest > most else ""


def _bounded(found: int, most: int) -> str:
    if not found:
        return "none"
    if found < most:
        return f"{found:,}"
    return f"{found:,} at least" if most in (MOST_SEQUENCES, MOST_TOKENS) else f"{found:,} (all)"
