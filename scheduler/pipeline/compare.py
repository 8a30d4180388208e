"""The best plan of a pipeline beside what people set by hand, all replayed in the same budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import format_time
from scheduler.pipeline import ways
from scheduler.pipeline.question import PipelineFields, Question, read_question
from scheduler.pipeline.solve import solved
from scheduler.planning.comparison import COLUMNS, Comparison, MethodRow, View
from scheduler.report.tables import excess, format_percent

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FIELDS = ("method", "peak_bytes", "fits", "time", "lower_bound_time", "gap", "status", "note")
_OPTIMAL = "optimal cuts and plans"


def compare_pipeline(
    layer_costs: object, budget_gb: object = None, **fields: Unpack[PipelineFields]
) -> Comparison:
    """Each way to cut and checkpoint a pipeline, one row each, the joint optimum last.

    Rows: even cuts with nothing recomputed, with every block recomputed, with Megatron's best
    recompute flags (one ``--recompute-num-layers`` for all stages; with options of the costs,
    ``selective``), and with the best plan of each stage; the same with torchtitan's cuts, which
    count embedding and head as a block each; and the optimum over all cuts and plans.

    Parameters
    ----------
    layer_costs, budget_gb, fields
        As `solve_pipeline` takes them.

    Returns
    -------
    Comparison
        Peaks are those of the stage that needs most; a row fits where each stage is within its
        budget. ``gap`` is how far the time is above what nothing within the budgets is below.

    Raises
    ------
    SchedulerError
        As `solve_pipeline`, but where nothing fits the rows say so.
    """
    question = read_question(layer_costs, budget_gb, **fields)
    costs, pipeline = question.costs, question.pipeline
    try:
        plan = solved(question)
    except InfeasibleBudget as error:
        bound, best, set_by = None, MethodRow(_OPTIMAL, note=str(error)), error.set_by
        said = f"Nothing fits: {error}."
    else:
        bound, set_by = plan.lower_bound_time, ""
        best = MethodRow(
            _OPTIMAL,
            max(stage.peak_bytes for stage in plan.stages),
            True,
            plan.time,
            lower_bound_time=bound,
            gap=plan.gap,
            status=plan.status,
            note=f"cuts at {', '.join(map(str, plan.cuts))}",
        )
        said = ""
    rows = [_row(question, way, bound) for way in _by_hand(question)]
    fitting = [row for row in rows if row.fits and row.time is not None]
    if not said:
        other = min(fitting, key=lambda row: row.time or 0.0, default=None)
        said = f"The {best.status or ''} plan takes {format_time(best.time or 0, costs.time_unit)}"
        if other is None:
            said += ", and no other row fits."
        else:
            less = -excess(best.time or 0, other.time or 0)
            than = f"{format_percent(less)} less than" if less > 0 else "as long as"
            said += f", {than} the best other row, {other.method!r}."
    everything = next((row for row in rows if row.peak_bytes is not None), best)
    return Comparison(
        rows=(*rows, best),
        name=costs.name,
        layers=len(costs),
        budget_bytes=min(size.asked for size in question.sizes),
        reserved_bytes=min(size.reserved for size in question.sizes),
        keep_all_peak_bytes=everything.peak_bytes or 0,
        keep_all_time=everything.time or 0.0,
        time_unit=costs.time_unit,
        set_by=set_by,
        optimal=best,
        size=(
            f"{len(costs)} layers in {pipeline.stages} stages, {pipeline.microbatches} "
            f"microbatches, {question.schedule}"
        ),
        view=View(
            fields=_FIELDS,
            columns=(*COLUMNS[:3], ("above the bound", "gap")),
            notes=("Peaks are of the stage that needs most; one budget for each device.",),
            conclusion=said,
        ),
    )


def _by_hand(question: Question) -> Iterator[ways.Way | str]:
    """Every way but the optimum; of one that has no plan the name."""
    pipeline, limits = question.pipeline, question.limits
    even = ways.even_cuts(pipeline.chain, pipeline.stages)
    if even is not None:
        families = ways.megatron_settings(pipeline, even)
        (nothing,) = ways.by_setting(pipeline, even, families[:1])
        yield replace(nothing, name="no recomputation, even cuts")
        yield ways.full(pipeline, even)
        for word in ("selective", "full block", "full uniform"):
            own = [each for each in families if word in each[0].text]
            if own:
                best = ways.best_of(ways.by_setting(pipeline, even, own))
                yield replace(best, name=f"{best.name}, even cuts")
    for name, less in (("torchtitan's cuts, best plans", 1), ("even cuts, best plans", 0)):
        cuts = ways.even_cuts(pipeline.chain, pipeline.stages, less)
        if cuts is not None:
            yield ways.with_cuts(pipeline, name, cuts, limits) or name


def _row(question: Question, way: ways.Way | str, bound: float | None) -> MethodRow:
    if isinstance(way, str):
        return MethodRow(way, note="no plan of these cuts fits")
    time = way.time / question.costs.ticks_per_unit
    return MethodRow(
        way.name,
        max(way.peaks),
        way.fits,
        time,
        lower_bound_time=bound,
        gap=None if bound is None or not way.fits else excess(time, bound),
    )
