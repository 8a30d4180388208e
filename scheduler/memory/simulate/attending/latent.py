"""Attention over keys and values that are expanded from a latent (DeepSeek-V3), on paper."""

from __future__ import annotations

from scheduler.memory.simulate.attending.rotary import by_halves
from scheduler.memory.simulate.kernels import join, part, rms_norm, split, view
from scheduler.memory.simulate.modules import project
from scheduler.memory.simulate.setting import KV_DOWN, Setting
from scheduler.memory.simulate.tensors import Paper, Value


def latent_projected(
    paper: Paper, at: Setting, x: Value
) -> tuple[Value, Value, Value, tuple[Value, ...]]:
    """Make queries, keys and values, and what attention refers to meanwhile.

    Of keys a part that all heads share is turned by position.
    """
    shape = at.shape
    turned, straight = shape.turned_width, shape.head_width - shape.turned_width
    q = view(paper, _queries(paper, at, x), copied=True)
    q_straight, q_turned = split(paper, q, [straight, turned])
    compressed = project(paper, at, x, KV_DOWN)
    latent, k_turned = split(paper, compressed, [shape.kv_rank, turned])
    latent = rms_norm(paper, at, latent, shape.kv_rank)
    half = paper.leaf(at.sequence * turned // 2, at.stream, trained=False)
    q_halves, k_halves = (
        [part(paper, x, x.elements // 2) for _ in range(2)] for x in (q_turned, k_turned)
    )
    q_turned, k_turned = by_halves(paper, q_halves, half), by_halves(paper, k_halves, half)
    queries = join(paper, q_straight, q_turned)
    keys, values = _expanded(paper, at, latent, k_turned)
    return queries, keys, values, (q_straight, q_turned, compressed, latent, k_turned)


def _queries(paper: Paper, at: Setting, x: Value) -> Value:
    if not at.shape.query_rank:
        return project(paper, at, x, "q")
    down = project(paper, at, x, "q_a")
    return project(paper, at, rms_norm(paper, at, down, at.shape.query_rank), "q_b")


def _expanded(paper: Paper, at: Setting, latent: Value, shared: Value) -> tuple[Value, Value]:
    shape = at.shape
    straight = shape.head_width - shape.turned_width
    both = view(paper, project(paper, at, latent, "kv_b"), copied=True)
    keys, values = split(paper, both, [straight, shape.attended_width // shape.heads])
    spread = shared.view(shared.elements * shape.heads)
    paper.record_simple(spread, shared)
    n = at.tokens * shape.query_width
    made = paper.compute((both,), n, at.compute, op="aten.new_empty.default")
    made = _copied_into(paper, made, keys)
    return _copied_into(paper, made, spread), values


def _copied_into(paper: Paper, base: Value, x: Value) -> Value:
    """Copy x into a slice; backward, the gradient is copied, and its slice once more."""
    made, n, m, size = base.view(), base.elements, x.elements, x.size
    paper.change("aten.copy_.default", base.view(m), x)

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        whole = paper.compute(grads, n, size)
        return [whole, paper.compute((whole,), m, size)]

    paper.record(made, (base, x), back)
    return made
