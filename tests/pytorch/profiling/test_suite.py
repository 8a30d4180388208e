"""Every architecture of the suite: profiles, plans and real steps agree."""

from __future__ import annotations

import pytest

from tests.pytorch.suite import SUITE
from tests.pytorch.verification.accuracy import accuracy


@pytest.mark.parametrize("name", SUITE)
def test_an_architecture(name: str) -> None:
    found = accuracy(name)
    assert found.fake_is_real
    assert len({row.predicted_bytes for row in found.rows}) == 4
    for row in found.rows:
        assert row.gradients_equal, row
        assert row.forwards_as_planned, row
        assert row.measured_bytes <= row.predicted_bytes <= row.budget_bytes, row
        assert row.error <= 0.02, row
