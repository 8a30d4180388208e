"""`torch.compile` within a budget in bytes of peak, instead of a share of what it saves.

torch's ``activation_memory_budget`` is a number from 0 to 1: the share of the saved bytes of its
default that the forward may save. What a step then peaks at is not bounded, and it is not monotone
in that number. Here torch asks this project instead, through its own interface for it
(`torch._inductor.custom_graph_pass.CustomKnapsackSolver`): which operations to keep is decided on
the joint graph so that the peak of both graphs, operation by operation, fits the budget and the
least time is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.fx import Graph, Node

from scheduler.common.errors import UnsupportedModel
from scheduler.common.units import check_unit, resolve_budget
from scheduler.pytorch.compile.answer import CompiledPlan, choose
from scheduler.pytorch.compile.choice import StepChoice, play
from scheduler.pytorch.compile.joint import Joint, parts, read_joint
from scheduler.pytorch.observe.clock import Roofline

# Any share between 0 and 1 lets torch ask; at both ends, and where its own cut saves less than
# the share, it does not.
_ASK = 1e-12

# Shares at which torch's own solvers are asked what they would save.
_SHARES = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05)


def compile_budget(
    budget: object = None,
    *,
    budget_gb: object = None,
    outputs_held: bool = True,
    roofline: Roofline | None = None,
    runtime: Callable[[Node], float] | None = None,
    effort: float = 2.0,
) -> CompileBudget:
    """A bound on the peak of what `torch.compile` compiles.

    Either as a backend, which also holds for every later recompilation::

        budget = compile_budget("2GiB")
        model = torch.compile(model, backend=budget.backend("inductor"))

    or as a context around the first call, for code that chooses its backend itself::

        with compile_budget("2GiB") as budget:
            loss = compiled(batch)

    Parameters
    ----------
    budget
        Bytes of peak: text such as ``"2GiB"``, or a number, which is refused where it is out of all
        proportion to what is compiled: see `scheduler.common.units.check_unit`. Of everything but
        parameters, buffers and optimizer state, from empty gradients, as in `measure`: inputs,
        activations, outputs, gradients, temporaries. One graph's forward and backward are bounded;
        what runs outside it (a loss that is not compiled, other graphs) is not. Scratch memory
        inside a kernel is not seen. inductor, which fuses and reorders after the choice, usually
        stays below.
    budget_gb
        Instead of `budget`: a number of GB.
    outputs_held
        Does the caller hold the outputs until the backward is through? False for a loop that lets
        go of the logits before.
    roofline
        Machine whose times decide; default as in `profile`. ``Roofline(bytes_per_second=inf)``
        counts products only: where a compiler fuses everything else.
    runtime
        Times of operations from elsewhere, instead of a roofline: of a node of the joint graph, in
        any one unit. ``torch._functorch.partitioners.estimate_runtime`` minimises what torch's own
        solvers minimise, which by default are the FLOPs that torch counts (none for attention on
        the CPU), or what is measured, as torch's configuration says.
    effort
        Deterministic seconds of the search for one graph that layers leave unproven and that is
        small, about ten of the clock each. The same answer on every machine.

    Returns
    -------
    CompileBudget
        After compilation, `plans` says what was chosen, a plan a graph.

    Raises
    ------
    InvalidBudget
        The budget is missing, given twice or no size; or, while compiling, of another unit.
    ValueError
        Both a roofline and a runtime.
    UnsupportedModel
        This torch has no interface for it.

    Notes
    -----
    While compiling, torch wraps in its ``BackendCompilerFailed`` what is raised there:
    `InfeasibleBudget` with the smallest budget, `NoPlanFound`, `UnsupportedModel`.
    Proven means: in the class of choices that keep or run again, once, each operation of the
    forward. torch can also move into the forward what only the backward computes from it (a mask,
    say); such choices are not in the class.
    Models of many layers are solved layer by layer, with a bound that says what any choice runs
    again at least. Where smaller ones are searched as a whole and that ends without a proof, what
    torch's own solvers choose at a number of shares is played as well, and the best that fits is
    taken: of these, of the layers' and of a ladder of choices, none of which depends on the budget.
    So plans that are not proven never run more again on a larger budget, and those that are proven
    do not either. From a proven plan to one on a larger budget that is not proven there is no such
    promise; a larger effort removes the case.
    """
    if roofline is not None and runtime is not None:
        raise ValueError("times come from a roofline or from runtime, not from both; give one")
    cost = runtime or roofline or Roofline()
    size = resolve_budget(budget_gb, budget)

    def check(everything: Callable[[], int]) -> None:
        check_unit("budget", budget_gb, budget, size, everything)

    return CompileBudget(size, check, outputs_held, cost, effort)


class CompileBudget:
    """A budget for `torch.compile`: a context manager, and a maker of backends.

    Attributes
    ----------
    budget_bytes
        As given.
    plans
        Of each joint graph compiled under it so far, in order.
    """

    def __init__(
        self,
        budget_bytes: int,
        check: Callable[[Callable[[], int]], None],
        outputs_held: bool,
        cost: Roofline | Callable[[Node], float],
        effort: float,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.plans: list[CompiledPlan] = []
        self._check = check
        self._outputs_held = outputs_held
        self._cost = cost
        self._effort = effort
        self._open: list[Any] = []
        self._planned: tuple[list[Node], list[Node]] = [], []
        self._asked = False
        self._solver = _solver(self._tell)

    def __enter__(self) -> CompileBudget:
        context = self._asking()
        context.__enter__()
        self._open.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.pop().__exit__(*error)

    def backend(self, name: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
        """A backend that compiles within the budget, each time it is asked.

        Parameters
        ----------
        name
            A backend that uses torch's min-cut partitioner: "inductor", or
            "aot_eager_decomp_partition", which needs no compiler.
        """
        from torch._dynamo.backends.registry import lookup_backend

        inner = lookup_backend(name) if isinstance(name, str) else name

        def compiled(module: Any, inputs: Any, **options: Any) -> Any:
            with self:
                return inner(module, inputs, **options)

        return compiled

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from torch._functorch import config, partitioners

        before = partitioners.choose_saved_values_set
        torch_choice = getattr(before, "__wrapped__", before)  # the inner budget of two decides

        @wraps(torch_choice)
        def choosing(joint_graph: Graph, node_info: Any, memory_budget: float = 1) -> list[Node]:
            # Planned here: torch asks a solver with its fake tensors switched off, and asks nobody
            # where its default saves less than the inputs hold, parameters among them, as in any
            # wide model on a small batch. The budget has to hold there too.
            kept, _ = self._planned = self._plan(joint_graph, node_info, torch_choice)
            self._asked = False
            saved: list[Node] = torch_choice(joint_graph, node_info, memory_budget)
            if not self._asked:
                saved = [*node_info.inputs, *(part for node in kept for part in parts(node))]
            return saved

        partitioners.choose_saved_values_set = choosing
        try:
            with config.patch(
                activation_memory_budget=_ASK, activation_memory_budget_solver=self._solver
            ):
                yield
        finally:
            partitioners.choose_saved_values_set = before

    def _tell(self) -> tuple[list[Node], list[Node]]:
        self._asked = True
        return self._planned

    def _plan(
        self, graph: Graph, info: Any, torch_choice: Callable[..., list[Node]]
    ) -> tuple[list[Node], list[Node]]:
        """The choice for a joint graph: nodes whose outputs are kept, and those run again."""
        joint = read_joint(graph, info, self._cost, self._outputs_held)
        self._check(lambda: play(joint.step, joint.step.free).peak_bytes)
        answer = choose(
            joint.step,
            self.budget_bytes,
            self._effort,
            lambda: _torch_choices(joint, lambda share: torch_choice(graph, info, share)),
        )
        self.plans.append(CompiledPlan.of(joint.step, answer, self.budget_bytes))
        choice = answer.choice
        kept = [joint.nodes[i] for i in choice.kept]
        again = [joint.nodes[i] for i in choice.again]
        return kept, [*again, *joint.backward]


def _solver(planned: Callable[[], tuple[list[Node], list[Node]]]) -> Any:
    """Torch's interface for a choice of what is saved."""
    try:
        from torch._inductor.custom_graph_pass import CustomKnapsackSolver
    except ImportError as error:
        raise UnsupportedModel(
            f"torch {torch.__version__} takes no solver for what torch.compile saves "
            "(CustomKnapsackSolver, in torch 2.13); use scheduler.pytorch.apply"
        ) from error

    class Solver(CustomKnapsackSolver):
        def __call__(
            self,
            memory: list[float],
            joint_graph: Graph,
            max_memory: float,
            node_info: Any,
            all_recomputable_banned_nodes: list[Node],
        ) -> tuple[list[int], list[int]]:
            kept, again = planned()
            # torch cuts the graph anew with what it is told here. Its items are the operations that
            # are slow; the tags, which are those of torch.utils.checkpoint, say it of all others.
            for node in kept:
                node.meta["recompute"] = of_torch.CheckpointPolicy.MUST_SAVE
            for node in again:
                node.meta["recompute"] = of_torch.CheckpointPolicy.MUST_RECOMPUTE
            rerun = set(again)
            items = range(len(all_recomputable_banned_nodes))
            back = [i for i in items if all_recomputable_banned_nodes[i] in rerun]
            return [i for i in items if i not in back], back

        def uuid(self) -> None:
            """No cache of split graphs: their plans and refusals would be lost with it."""
            return

    return Solver()


def _torch_choices(joint: Joint, saved: Callable[[float], list[Node]]) -> Iterator[StepChoice]:
    """Play what torch saves by itself, at its shares 0 and 1 and some between, by each solver."""
    from torch._functorch import config

    asked = [(share, solver) for share in _SHARES for solver in ("dp", "greedy", "ilp")]
    with _cutting_once():
        for share, solver in [(1.0, "dp"), *asked, (0.0, "dp")]:
            try:
                with config.patch(activation_memory_budget_solver=solver):
                    nodes = saved(share)
            except RuntimeError:  # its integer program may fail, which is no matter here
                continue
            yield play(joint.step, joint.keeping(nodes))


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
