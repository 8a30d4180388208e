"""Options on the suite's architectures: never slower than whole blocks or what is set by hand.

By fake profiles, whose times do not depend on the machine. benchmarks/options.py prints by how
much, for all of the suite; these are one of each kind, and quick to profile.
"""

from __future__ import annotations

import pytest

from tests.pytorch.profiling.option_rows import option_rows, profiled
from tests.pytorch.suite import SUITE

QUICK = ["gpt2", "llama", "bert", "vit", "resnet50", "qwen3_moe"]


@pytest.mark.parametrize("name", QUICK)
def test_options_are_never_slower(name: str) -> None:
    _, costs = profiled(name)
    found = option_rows(costs)
    assert len({row.budget_bytes for row in found.rows}) == 3
    assert any(row.best.time < row.whole.time for row in found.rows)
    for row in found.rows:
        assert row.best.peak_bytes <= row.budget_bytes
        assert row.best.time <= row.whole.time, row.label
        for other in found.everywhere:
            if other.plan.peak_bytes <= row.budget_bytes:
                assert row.best.time <= other.plan.time, (row.label, other.option)
    assert any(other.by_hand for other in found.everywhere)
    for other in found.everywhere:
        assert other.best.peak_bytes <= other.plan.peak_bytes
        assert other.best.time <= other.plan.time, other.option


def test_the_suite_has_one_graph_whose_layers_are_kept_whole_or_not_at_all() -> None:
    assert [name for name, one in SUITE.items() if one.leaves] == ["t5"]
