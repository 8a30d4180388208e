"""A fixed tenth of the zoo: models that others chose, each plan of theirs held to a plain step.

Which they are is a matter of their names alone (`Entry.in_tenth`); `benchmarks/zoo.py` runs all.
"""

from __future__ import annotations

import pytest

from tests.pytorch.zoo.check import REFUSED, WORKS, DoesNotTrain, check, trained
from tests.pytorch.zoo.hub import transformers_entries
from tests.pytorch.zoo.models import Entry

SLOW = ("transformers/inkling_mm_model",)
"""Takes two minutes, in the solver of graphs: the benchmark runs it."""
TENTH = [e for e in transformers_entries() if e.in_tenth(7) and e.name not in SLOW]


@pytest.mark.parametrize("entry", TENTH, ids=lambda entry: entry.name)
@pytest.mark.filterwarnings("ignore")  # of the models, at their configurations
def test_model(entry: Entry) -> None:
    try:
        make = trained(entry)
    except DoesNotTrain as reason:
        pytest.skip(str(reason)[:200])
    result = check(make, plans=2)
    assert result.outcome in (WORKS, REFUSED), (result.outcome, result.detail)
    assert result.outcome == WORKS or result.detail.count(". ") == 0
