"""What torch's own solvers would save of a joint graph, as choices of this project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import Graph, Node

from scheduler.pytorch.compile.choice import StepChoice, play
from scheduler.pytorch.compile.joint import Joint

__all__ = ["torch_choices"]

_SHARES = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05)


def torch_choices(
    joint: Joint, graph: Graph, info: Any, choose: Callable[[Graph, Any, float], list[Node]]
) -> Iterator[StepChoice]:
    """Play what torch saves by itself, at its shares 0 and 1 and some between, by each solver.

    Parameters
    ----------
    joint
        What `read_joint` made of the graph.
    graph, info, choose
        Joint graph, torch's ``NodeInfo`` of it, and its ``choose_saved_values_set``.
    """
    from torch._functorch import config

    asked = [(share, solver) for share in _SHARES for solver in ("dp", "greedy", "ilp")]
    with _cutting_once():
        for share, solver in [(1.0, "dp"), *asked, (0.0, "dp")]:
            try:
                with config.patch(activation_memory_budget_solver=solver):
                    saved = choose(graph, info, share)
            except RuntimeError:  # its integer program may fail, which is no matter here
                continue
            yield play(joint.step, joint.keeping(saved))


@contextmanager
def _cutting_once() -> Iterator[None]:
    """The minimum cuts take most of torch's time, and each share asks for the same few."""
    from torch._functorch import partitioners

    torch_module: Any = partitioners
    cut = torch_module.solve_min_cut
    known: dict[str, Any] = {}

    def cutting(graph: Graph, info: Any, options: Any, dont_ban: Any = None) -> Any:
        key = f"{options} {sorted(node.name for node in dont_ban or ())}"
        if key not in known:
            known[key] = cut(graph, info, options, dont_ban)
        return known[key]

    torch_module.solve_min_cut = cutting
    try:
        yield
    finally:
        torch_module.solve_min_cut = cut
