"""torch's own planner of selective checkpoints, `torch.distributed._tools.sac_ilp`, run on the CPU.

It takes a model apart by modules under fake tensors, decides by a MILP which modules to checkpoint
and what share of each one's memory to discard (`sac_milp`), and by another which operations of such
a module to keep for that share (`get_optimal_checkpointing_policy_per_module`). torch stops there:
here its decisions become a policy of `create_selective_checkpoint_contexts`, by the order of
operations, which is how they are numbered.

Its times come from CUDA only: a roofline that asks the driver, or events. In their place stands the
project's own roofline, which is also what its choices are judged by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.ilp_utils import (
    Graph,
    aggregate_stats,
    get_peak_memory_runtime_baseline,
    parse_module_info,
)
from torch.distributed._tools.mem_tracker import MemTracker, _ModState
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import OPS_TO_ALWAYS_SKIP, SACEstimator, SACStats
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from scheduler.pytorch.observe.clock import Roofline, RooflineClock

__all__ = ["Decisions", "Planner", "applied"]

Decisions = dict[str, list[int]]
"""By name of a checkpointed module: for each of its operations, is it kept (1) or not (0)?"""

# A thousandth of the default's speed, so that the times of a small model are milliseconds, which
# the MILP's tolerances are made for; what it minimises is in proportion.
MACHINE = Roofline(156e9, 1.5e9)


class Planner:
    """What torch's tools see of a model, and what they decide at a budget.

    Attributes
    ----------
    peak_bytes
        What they take for the peak without checkpoints: parameters, gradients, activations.
    """

    peak_bytes: int

    def __init__(self, make: Callable[[], tuple[nn.Module, Any]]) -> None:
        clock = RooflineClock(MACHINE)

        def estimate(func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
            start = clock.mark()
            result = func(*args, **(kwargs or {}))
            return result, clock.between(start, clock.mark())

        with ExitStack() as stack:
            stack.enter_context(FakeTensorMode())
            stack.enter_context(clock.running())
            stack.enter_context(
                patch.object(RuntimeEstimator, "_roofline_estimate", staticmethod(estimate))
            )
            stack.enter_context(redirect_stdout(StringIO()))  # it prints
            np.random.seed(0)  # which its fit of piecewise lines draws from
            self._graph, self._stats = _look(*make())
        self._root = self._graph.nodes[0]["fqn"]
        self.peak_bytes = get_peak_memory_runtime_baseline(self._graph)[0]

    def decide(self, share: float) -> Decisions | None:
        """What to keep for this share of `peak_bytes`; None where the MILP finds nothing."""
        from torch.distributed._tools.sac_ilp import (  # needs pulp
            get_optimal_checkpointing_policy_per_module,
            sac_milp,
        )

        discarded, _, peak = sac_milp(self._graph, share * self.peak_bytes / 2**30)
        if peak < 0:
            return None
        return {
            name.removeprefix(self._root).removeprefix("."): (
                get_optimal_checkpointing_policy_per_module(self._stats[name], 1 - ratio)
            )
            for name, ratio in discarded.items()
        }


def _look(model: nn.Module, inputs: Any) -> tuple[Graph, dict[str, SACStats]]:
    """As torch's own test does it (test/distributed/_tools/test_sac_ilp.py)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step() -> None:
        model(inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        step()
        tracker.reset_mod_stats()
        model(inputs).backward()
        last = tracker.get_tracker_snapshot("current")
        optimizer.step()
        optimizer.zero_grad()
    for seen in tracker.memory_tracking.values():
        # The hook after a backward does not run for modules whose inputs need no gradient.
        if _ModState.POST_BW not in seen.snapshots:
            seen.snapshots[_ModState.POST_BW] = [copy.deepcopy(last)]
    runtimes = RuntimeEstimator()
    with runtimes("operator-level-cost-model"):
        step()
    estimator = SACEstimator()
    with estimator("operator-level-cost-model"):
        loss = model(inputs)
    loss.backward()
    info = aggregate_stats(model, tracker, runtimes, estimator, torch.device("cpu"))
    return parse_module_info(info), estimator.sac_mod_stats


@contextmanager
def applied(model: nn.Module, decisions: Decisions) -> Iterator[None]:
    """The model with these modules checkpointed, each keeping what was decided."""
    with ExitStack() as stack:
        for name, kept in decisions.items():
            module = model.get_submodule(name)
            forward = _checkpointed(module.forward, kept)
            stack.enter_context(patch.object(module, "forward", forward))
        yield


def _checkpointed(forward: Callable[..., Any], kept: Sequence[int]) -> Callable[..., Any]:
    def contexts() -> tuple[Any, Any]:
        made: tuple[Any, Any] = create_selective_checkpoint_contexts(_InOrder(kept))
        return made

    def run(*args: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)

    return run


class _InOrder:
    """A policy by the number of an operation, as `SACStats` counts them."""

    def __init__(self, kept: Sequence[int]) -> None:
        self._kept = kept
        self._next = {False: 0, True: 0}

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operation in OPS_TO_ALWAYS_SKIP:
            return CheckpointPolicy.PREFER_RECOMPUTE
        number = self._next[context.is_recompute]
        self._next[context.is_recompute] += 1
        if self._kept[number]:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE
