"""The file of a pipeline's plan: JSON of schema ``checkpoint-scheduler/pipeline-plan/1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

from scheduler.common.checks import FileKind, check_keys
from scheduler.common.errors import InvalidPlan, UnsuitableMethod
from scheduler.common.text import shown
from scheduler.pipeline.problem import orders_of
from scheduler.plans.file.fields import HEX, LINE, SIZE, TIME, Value, one_of
from scheduler.plans.file.fields import KIND as PLAN_FILE
from scheduler.plans.plan import Plan
from solvers.pipeline.problem import Runtime, in_flight
from solvers.problem import InvalidProblem

SCHEMA = "checkpoint-scheduler/pipeline-plan/1"

KIND = FileKind(
    SCHEMA,
    "the file of a pipeline's plan",
    InvalidPlan,
    {**PLAN_FILE.others, "plan": "this file holds the plan of a chain; read it with Plan.load"},
)

_VALUES: dict[str, Value] = {
    "microbatches": SIZE,
    "time": TIME,
    "lower_bound_time": TIME,
    "time_unit": LINE,
    "status": one_of("optimal", "feasible"),
    "costs_sha256": HEX,
    "communication_time": TIME,
}
_OF_STAGE: dict[str, Value] = {
    "peak_bytes": SIZE,
    "budget_bytes": SIZE,
    "reserved_bytes": SIZE,
    "proven_bytes": SIZE,
    "state_bytes": SIZE,
    "forward_time": TIME,
    "backward_time": TIME,
}


def record(values: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The form of the file, of what `parsed` gives."""
    custom = [[list(action) for action in order] for order in values["orders"]]
    return {
        "schema": SCHEMA,
        **{name: values[name] for name in _VALUES},
        "schedule": custom if values["schedule"] == "custom" else values["schedule"],
        "runtime": asdict(values["runtime"]),
        "cuts": list(values["cuts"]),
        "stages": [
            {**{name: stage[name] for name in _OF_STAGE}, "plan": stage["plan"].to_dict()}
            for stage in stages
        ],
    }


def parsed(value: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Of a file its stages, and all else, by the names of `Stage` and `PipelinePlan`.

    Raises
    ------
    InvalidPlan
        It is no such file, or says what cannot be.
    """
    read = KIND.check(value)
    names = ("schema", *_VALUES, "schedule", "runtime", "cuts", "stages")
    check_keys("the file", read, names, names, error=InvalidPlan)
    values: dict[str, Any] = {name: _VALUES[name].check(name, read[name]) for name in _VALUES}
    stages = [_stage(s, stage) for s, stage in enumerate(_list("stages", read["stages"]))]
    cuts = values["cuts"] = tuple(_list("cuts", read["cuts"]))
    whole = all(isinstance(cut, int) and not isinstance(cut, bool) for cut in cuts)
    lengths = [len(stage["plan"].layers) for stage in stages]
    if not whole or [b - a for a, b in pairwise(cuts)] != lengths or cuts[0]:
        raise InvalidPlan(
            f"'cuts' must be 0 and where each stage ends, as their plans' layers say ({lengths}), "
            f"got {shown(read['cuts'])}"
        )
    try:
        named = orders_of(read["schedule"], len(stages), values["microbatches"])
        values["schedule"], values["orders"] = named
        values["runtime"] = _runtime(read["runtime"])
    except (UnsuitableMethod, InvalidProblem) as error:
        raise InvalidPlan(str(error)) from None
    for s, stage in enumerate(stages):
        stage["first"], stage["last"] = cuts[s], cuts[s + 1] - 1
        stage["in_flight"] = in_flight(values["orders"][s])
    _check_together(values, stages)
    return stages, values


def _stage(s: int, value: object) -> dict[str, Any]:
    where = f"stages[{s}]"
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"{where} must be an object, got {shown(value)}")
    names = (*_OF_STAGE, "plan")
    check_keys(where, value, names, names, error=InvalidPlan)
    try:
        read = {name: _OF_STAGE[name].check(name, value[name]) for name in _OF_STAGE}
        return {**read, "plan": Plan.from_dict(value["plan"])}
    except InvalidPlan as error:
        raise InvalidPlan(f"{where}: {error}") from error


def _check_together(values: Mapping[str, Any], stages: list[dict[str, Any]]) -> None:
    time, bound = values["time"], values["lower_bound_time"]
    if time < bound or (values["status"] == "optimal" and time > bound):
        raise InvalidPlan(
            f"the plan says a time of {time}, {values['status']}, and a lower bound of {bound}, "
            "which cannot all be so; solve again"
        )
    for s, stage in enumerate(stages):
        room = stage["budget_bytes"] - stage["reserved_bytes"]
        if stage["peak_bytes"] > room:
            raise InvalidPlan(
                f"stages[{s}]: the peak is {stage['peak_bytes']} bytes, and the budget leaves "
                f"{room}"
            )
        if room > stage["proven_bytes"]:
            raise InvalidPlan(
                f"stages[{s}]: the bound was proven for {stage['proven_bytes']} bytes, and the "
                f"budget now leaves {room}; it was changed after it was solved: solve again"
            )


def _runtime(value: object) -> Runtime:
    if not isinstance(value, Mapping):
        raise InvalidPlan(f"'runtime' must be an object, got {shown(value)}")
    known = {each.name: each.default for each in fields(Runtime)}
    check_keys("'runtime'", value, known, known, error=InvalidPlan)
    for name, default in known.items():
        if type(value[name]) is not type(default):
            raise InvalidPlan(f"'runtime': {name!r} cannot be {shown(value[name])}")
    return Runtime(**value)


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidPlan(f"{name!r} must be a list that is not empty, got {shown(value)}")
    return value
