"""What is asked of costs whatever they are costs of, and of every record that files hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from scheduler.common.errors import InvalidCosts
from scheduler.common.fields import BYTES, NAME, as_records, check_values, filled
from scheduler.costs import ComputeCosts, CostGraph, LayerCost, NodeCost
from scheduler.costs.base import BaseCosts
from solvers.chain.problem import Chain
from solvers.graph.problem import ComputeGraph, LayerGraph

LAYERS = tuple(
    LayerCost(name, forward_time=1, backward_time=2, output_bytes=3, saved_bytes=4)
    for name in "abc"
)
KINDS: list[tuple[BaseCosts, type, str, str]] = [
    (CostGraph(LAYERS, 5, "chain"), Chain, "layer", "3 layers"),
    (CostGraph(LAYERS, 5, "graph", "s", (("a", "c"),)), LayerGraph, "layer", "3 layers, 1 edge"),
    (
        ComputeCosts(tuple(NodeCost(name, time=1, bytes=2) for name in "abc"), ((0, 1),), "nodes"),
        ComputeGraph,
        "node",
        "3 nodes, 1 edge",
    ),
]


@pytest.mark.parametrize(
    ("costs", "problem", "noun", "size"), KINDS, ids=["chain", "graph", "nodes"]
)
def test_costs_of_every_kind_are_asked_alike(
    costs: BaseCosts, problem: type, noun: str, size: str, tmp_path: Path
) -> None:
    assert type(costs.to_problem()) is problem
    assert len(costs.to_problem()) == len(costs) == 3
    assert costs.names == ("a", "b", "c")
    assert (costs.noun, costs.size) == (noun, size)
    assert costs.ticks_per_unit == {"ms": 10**6, "s": 10**9}[costs.time_unit]
    costs.save(tmp_path / "costs.json")
    again = type(costs).load(tmp_path / "costs.json")
    assert (again, again.name, again.sha256) == (costs, costs.name, costs.sha256)
    assert type(costs).from_dict(costs.to_dict()) == costs
    assert str(costs) == costs.text()


def test_a_field_is_its_line_in_the_dataclass() -> None:
    """What a layer says is checked, written, read and refused from its fields alone."""

    @dataclass(frozen=True)
    class Part:
        name: str = field(default="", metadata=NAME)
        state_bytes: int = field(default=0, metadata=BYTES)
        rest_bytes: int | None = field(default=None, metadata={**BYTES, "otherwise": "state_bytes"})

        def __post_init__(self) -> None:
            check_values(f"part {self.name!r}", self)

    made = as_records([{"state_bytes": np.int64(3)}, Part("x")], Part, "part", "give one")
    assert made == (Part("part 0", 3), Part("x"))
    assert type(made[0].state_bytes) is int
    assert filled(made[0]) == {"name": "part 0", "state_bytes": 3, "rest_bytes": 3}
    with pytest.raises(InvalidCosts, match="part 'y': state_bytes must be a whole number"):
        Part("y", -1)
    with pytest.raises(InvalidCosts, match=r"'state_byte' in part 'part 0' \(1st part\); did you"):
        as_records([{"state_byte": 3}], Part, "part", "give one")
    with pytest.raises(InvalidCosts, match="there are no parts; give one"):
        as_records([], Part, "part", "give one")
