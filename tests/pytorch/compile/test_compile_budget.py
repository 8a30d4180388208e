"""`torch.compile` within a budget of peak: what torch's allocator measures, and what is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config, partitioners
from torch.profiler import ProfilerActivity, profile

from scheduler.common.errors import InfeasibleBudget, InvalidBudget, UnsupportedModel
from scheduler.pytorch import CompileBudget, compile_budget
from scheduler.pytorch.compile.answer import choose
from scheduler.pytorch.compile.choice import JointOperation, StepChoice, StepGraph, ladder, play
from scheduler.pytorch.compile.exact import quickest, smallest
from scheduler.pytorch.compile.joint import once, read_joint
from scheduler.pytorch.compile.layered import Layered
from scheduler.pytorch.observe.clock import Roofline

BACKEND = "aot_eager_decomp_partition"  # torch's partitioner, and the graphs run as they are


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_dropout = 0.0
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        parts = self.qkv(self.first(x)).split(d, -1)
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, None, self.attention_dropout, True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), self.dropout)


class Decoder(nn.Module):
    """A small transformer that returns its loss; `logits` instead, where told so."""

    def __init__(
        self, layers: int = 1, width: int = 32, words: int = 64, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.logits = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits if self.logits else F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def allocated_peak(step: Callable[[], object]) -> int:
    """Most bytes that torch's CPU allocator had handed out at once during `step`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        step()
    assert run.profiler is not None
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def stepped(model: nn.Module, compiled: Any, tokens: torch.Tensor) -> tuple[int, list[Any]]:
    """Peak of a step with its inputs, and its gradients."""

    def step() -> None:
        torch.manual_seed(7)
        result = compiled(tokens)
        (result if result.dim() == 0 else result.square().sum()).backward()

    gradients: list[Any] = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        step()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    peak = allocated_peak(step)
    model.zero_grad(set_to_none=True)
    return peak + tokens.nbytes, gradients


def run(model: nn.Module, tokens: torch.Tensor, budget: CompileBudget) -> tuple[int, list[Any]]:
    torch._dynamo.reset()
    return stepped(model, torch.compile(model, backend=budget.backend(BACKEND)), tokens)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    # Sums in another order on each run otherwise, and gradients that differ in the last bit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (4, 32))


def test_budgets_hold_exactly_and_more_memory_never_costs_time(tokens: torch.Tensor) -> None:
    model = Decoder(layers=2)
    free = compile_budget("1GiB")
    peak, expected = run(model, tokens, free)
    plan = free.plans[0]
    assert plan.recomputed == ()
    assert 0 <= plan.peak_bytes - peak <= 16
    least = _least(model, tokens)
    shares = []
    for fifths in (0, 2, 5):
        budget = compile_budget(plan.peak_bytes - 1 - (plan.peak_bytes - 1 - least) * fifths // 5)
        peak, gradients = run(model, tokens, budget)
        (now,) = budget.plans
        assert peak <= now.peak_bytes <= budget.budget_bytes
        assert now.peak_bytes - peak <= 16  # what a number in an operation may take
        assert now.status == "optimal"
        assert all(map(torch.equal, gradients, expected))
        shares.append(now.recomputed_share)
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] > 0


def _least(model: nn.Module, tokens: torch.Tensor) -> int:
    with pytest.raises(BackendCompilerFailed) as raised:
        run(model, tokens, compile_budget("1B"))
    refusal = raised.value.inner_exception
    assert isinstance(refusal, InfeasibleBudget)
    return refusal.smallest_budget_bytes


def test_dropout_runs_once(tokens: torch.Tensor) -> None:
    model = Decoder(dropout=0.2)
    free = compile_budget("1GiB")
    _, expected = run(model, tokens, free)
    tight = compile_budget(free.plans[0].peak_bytes * 4 // 5)
    peak, gradients = run(model, tokens, tight)
    assert peak <= tight.budget_bytes
    assert tight.plans[0].recomputed
    assert all(map(torch.equal, gradients, expected))


def test_a_random_attention_is_kept() -> None:
    def attention(dropout: float) -> str | None:
        graph = torch.fx.Graph()
        inputs = [graph.placeholder(name) for name in "qkv"]
        target = torch.ops.aten._scaled_dot_product_flash_attention.default
        node = graph.call_function(target, (*inputs, *((dropout,) if dropout else ())))
        return "keep" if once(node) else None

    assert (attention(0.0), attention(0.1)) == (None, "keep")


@pytest.mark.parametrize(("share", "solver"), [(0.3, "dp"), (0.1, "ilp")])
def test_torch_own_choice_is_played_as_it_runs_and_never_beats_ours(
    tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch, share: float, solver: str
) -> None:
    model, played = Decoder(), []
    cost, choose_saved = partitioners.estimate_runtime, partitioners.choose_saved_values_set

    def choosing(graph: Any, info: Any, memory_budget: float = 1) -> Any:
        saved = choose_saved(graph, info, memory_budget)
        joint = read_joint(graph, info, cost, outputs_held=True)
        choice = play(joint.step, joint.keeping(saved))
        played.append((choice.peak_bytes, choice.again_time / joint.step.forward_time))
        return saved

    torch._dynamo.reset()
    with monkeypatch.context() as patched:
        patched.setattr(partitioners, "choose_saved_values_set", choosing)
        with config.patch(activation_memory_budget=share, activation_memory_budget_solver=solver):
            peak, _ = stepped(model, torch.compile(model, backend=BACKEND), tokens)
    ((played_peak, again),) = played
    assert 0 <= played_peak - peak <= 16
    monkeypatch.setattr(Layered, "of", lambda graph: None)  # they prove it
    ours = compile_budget(played_peak, runtime=cost, effort=1e-3)  # no time to search
    run(model, tokens, ours)
    assert ours.plans[0].peak_bytes <= played_peak
    assert ours.plans[0].recomputed_share <= again
    assert "feasible (at least " in str(ours.plans[0])


def test_budget_too_small_is_refused_with_the_smallest_one(tokens: torch.Tensor) -> None:
    model = Decoder()
    with pytest.raises(BackendCompilerFailed, match="the smallest feasible budget is") as raised:
        run(model, tokens, compile_budget("100KB"))
    inner = raised.value.inner_exception
    assert isinstance(inner, InfeasibleBudget)
    least = compile_budget(inner.smallest_budget_bytes)
    peak, _ = run(model, tokens, least)
    assert 0 <= inner.smallest_budget_bytes - peak <= 16
    # Attention that drops nothing out may run twice.
    assert "_scaled_dot_product" in " ".join(least.plans[0].recomputed)
    with pytest.raises(BackendCompilerFailed, match="the smallest feasible budget is"):
        run(model, tokens, compile_budget(inner.smallest_budget_bytes - 1))


def test_torch_does_not_ask_where_inputs_are_large_and_the_budget_holds_anyway(
    tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Decoder()
    model.embed = nn.Embedding(16384, 32).requires_grad_(False)  # more than torch would save
    asked: list[object] = []
    answer = partitioners._optimize_runtime_with_given_memory

    def asking(*args: Any) -> Any:
        asked.append(args)
        return answer(*args)

    monkeypatch.setattr(partitioners, "_optimize_runtime_with_given_memory", asking)
    free = compile_budget("1GiB")
    _, expected = run(model, tokens, free)
    room = free.plans[0]
    tight = compile_budget(room.peak_bytes * 9 // 10)
    peak, gradients = run(model, tokens, tight)
    assert asked == []
    assert peak <= tight.plans[0].peak_bytes <= tight.budget_bytes
    assert tight.plans[0].recomputed
    assert all(map(torch.equal, gradients, expected))


def test_outputs_of_the_model_are_counted_while_they_are_held(tokens: torch.Tensor) -> None:
    model = Decoder()
    model.logits = True
    held, let_go = compile_budget("1GiB"), compile_budget("1GiB", outputs_held=False)
    peak, _ = run(model, tokens, held)
    run(model, tokens, let_go)
    logits = tokens.numel() * 64 * 4
    assert let_go.plans[0].peak_bytes < held.plans[0].peak_bytes
    assert held.plans[0].peak_bytes >= peak - logits  # what the loss outside takes is not inside


def test_context_plans_the_first_call_and_restores_torch(tokens: torch.Tensor) -> None:
    model = Decoder()
    names = ("activation_memory_budget", "activation_memory_budget_solver")
    before = [getattr(config, name) for name in names]
    chooser = partitioners.choose_saved_values_set
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=BACKEND)
    with compile_budget("1GiB") as budget:
        compiled(tokens).backward()
    assert len(budget.plans) == 1
    assert str(budget.plans[0]).endswith("optimal")
    assert [getattr(config, name) for name in names] == before
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed), compile_budget(1000):
        torch.compile(model, backend=BACKEND)(tokens)
    assert [getattr(config, name) for name in names] == before
    assert partitioners.choose_saved_values_set is chooser


def test_backend_holds_for_a_later_recompilation(tokens: torch.Tensor) -> None:
    model = Decoder()
    torch._dynamo.reset()
    budget = compile_budget("1GiB")
    compiled = torch.compile(model, backend=budget.backend(BACKEND), dynamic=False)
    compiled(tokens)
    compiled(tokens[:2])
    assert len(budget.plans) == 2


def test_symbolic_sizes_are_refused(tokens: torch.Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        Decoder(), backend=compile_budget("1GiB").backend(BACKEND), dynamic=True
    )
    with pytest.raises(BackendCompilerFailed, match="dynamic=False") as raised:
        compiled(tokens)
    assert isinstance(raised.value.inner_exception, UnsupportedModel)


def test_times_come_from_one_place() -> None:
    with pytest.raises(ValueError, match="give one"):
        compile_budget("1GiB", roofline=Roofline(), runtime=partitioners.estimate_runtime)


def test_a_share_is_no_budget() -> None:
    with pytest.raises(InvalidBudget, match="must be a whole number of bytes"):
        compile_budget(0.5)


def test_a_budget_in_another_unit_is_refused() -> None:
    assert compile_budget(budget_gb=0.5).budget_bytes == 5 * 10**8
    with pytest.raises(BackendCompilerFailed, match=r"budget 40 is .*'40MB'"):
        run(Decoder(), torch.zeros(16, 64, dtype=torch.int64), compile_budget(40))


@pytest.mark.parametrize("seed", range(40))
def test_exact_choice_is_the_best_of_all(seed: int) -> None:
    graph = random_step(random.Random(seed))
    every = [
        play(graph, itertools.compress(graph.free, bits))
        for bits in itertools.product((False, True), repeat=len(graph.free))
    ]
    least = min(choice.peak_bytes for choice in every)
    rungs = ladder(graph)
    assert _order(rungs) == sorted(_order(rungs))
    assert smallest(graph, rungs[-1], 20.0)[0].peak_bytes == least
    assert quickest(graph, least - 1, None, 20.0) == (None, True, 0)
    with pytest.raises(InfeasibleBudget, match=f"smallest feasible budget is {least} bytes"):
        choose(graph, least - 1, 20.0)
    for budget in sorted({choice.peak_bytes for choice in every}):
        best = min(choice.again_time for choice in every if choice.peak_bytes <= budget)
        answer = choose(graph, budget, 20.0)
        assert (answer.choice.again_time, answer.proven, answer.least_time) == (best, True, best)
        assert answer.choice.peak_bytes <= budget
        hasty = choose(graph, budget, 1e-9, lambda: every)
        assert hasty.choice.again_time == best  # it is among those that the search is given
        assert hasty.choice.peak_bytes <= budget
        assert hasty.least_time <= best
        assert hasty.proven == (hasty.least_time == best)


@pytest.mark.parametrize("seed", range(2))
def test_answers_without_a_proof_are_monotone_and_bounded(seed: int) -> None:
    graph = random_step(random.Random(seed), (50, 50), (40, 40))
    top, least = play(graph, graph.free).peak_bytes, ladder(graph)[0].peak_bytes
    answers = [
        choose(graph, least + (top - least) * share // 5, 1e-9, lambda: [play(graph, [])])
        for share in range(5)
    ]
    assert not all(answer.proven for answer in answers)
    again = [answer.choice.again_time for answer in answers]
    assert again == sorted(again, reverse=True)
    for answer in answers:
        assert answer.least_time <= answer.choice.again_time
        assert answer.proven == (answer.least_time == answer.choice.again_time)


def _order(rungs: list[StepChoice]) -> list[tuple[int, int]]:
    return [(rung.peak_bytes, -rung.again_time) for rung in rungs]


def random_step(
    draw: random.Random, before: tuple[int, int] = (3, 7), after: tuple[int, int] = (2, 6)
) -> StepGraph:
    sizes: list[int] = []
    early: list[JointOperation] = []
    for i in range(draw.randint(*before)):
        inner = [b for op in early if op.forward for b in op.makes]
        reads = draw.sample(inner, min(len(inner), draw.randint(0, 2)))
        makes = tuple(range(len(sizes), len(sizes) + draw.choice((1, 1, 1, 2))))
        sizes += [draw.randint(1, 9) for _ in makes]
        fixed: Any = draw.choice((None, None, None, None, None, "keep", "again"))
        forward = i == 0 or fixed != "again" or draw.random() < 0.5
        time = draw.randint(1, 20)
        early.append(JointOperation(f"f{i}", time, tuple(sorted(reads)), makes, fixed, forward))
    made = [b for op in early for b in op.makes]
    outputs = frozenset(early[0].makes[:1])
    late: list[JointOperation] = []
    for t in range(draw.randint(*after)):
        reads = draw.sample(made, min(len(made), draw.randint(0, 2)))
        reads += late[-1].makes if late else ()
        late.append(JointOperation(f"b{t}", 1, tuple(sorted(reads)), (len(sizes),)))
        sizes.append(draw.randint(1, 6))
    gradients = frozenset(op.makes[0] for op in late[-2:])
    held = draw.random() < 0.5
    return StepGraph(
        tuple(early), tuple(late), tuple(sizes), outputs, gradients, 2, draw.randint(0, 3), held
    )
