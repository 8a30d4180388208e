"""Routers, which choose the experts of each token, on paper: see `mixtures`."""

from __future__ import annotations

from scheduler.memory.simulate.kernels import cast, linear, scale, shift, unary
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value


def all_shares(paper: Paper, at: Setting, logits: Value) -> Value:
    """Run sigmoid on the scores of chosen experts, and on minus infinity for all others."""
    n, size, rows = logits.elements, logits.size, at.tokens * at.shape.experts_per_token
    highest, places = _highest(paper, logits, rows)
    blank = paper.compute((logits,), n, size, op="aten.full_like.default")
    scores = blank.view()
    paper.change("aten.scatter_.src", scores, places, highest)
    paper.record(
        scores, (highest,), lambda g, saved: [paper.compute(g, rows, size)], paper.save(places)
    )
    chances = unary(paper, cast(paper, scores, 4), "aten.sigmoid.default", saves="output")
    return cast(paper, chances, size)


def route(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value, Value]:
    """Run the router: scores of all experts, shares and indices of those chosen."""
    shape, bias = at.shape, at.shape.router_bias
    rows = at.tokens * shape.experts_per_token
    logits = linear(paper, x, shape.width, shape.experts, trained=at.trained, bias=bias)
    if shape.family == "gpt_oss":
        # Shares are of those that were chosen, in the model's dtype.
        highest, indices = _highest(paper, logits, rows)
        shares = unary(paper, highest, "aten._softmax.default", saves="output")
        return logits, shares, indices
    chances = unary(paper, cast(paper, logits, 4), "aten._softmax.default", saves="output")
    shares, indices = _highest(paper, chances, rows)
    if shape.shares_divided:
        shares = _divided(paper, at, shares)
    if shape.family.startswith("qwen"):
        shares = cast(paper, shares, at.compute)
    return logits, shares, indices


def route_in_groups(paper: Paper, at: Setting, x: Value) -> tuple[Value, Value, Value]:
    """Run DeepSeek-V3's router, in fp32: the best groups, and in these the best experts."""
    shape, e, tokens = at.shape, at.shape.experts, at.tokens
    rows, n = tokens * shape.experts_per_token, tokens * e
    weight = paper.leaf(shape.width * e, 4, trained=at.trained)
    in_fp32 = cast(paper, x, 4)
    logits = linear(paper, in_fp32, shape.width, e, trained=at.trained, weight=weight)
    del in_fp32
    scores = unary(paper, logits, "aten.sigmoid.default", saves="output")
    choice = _chosen_in_groups(paper, at, scores)
    # Their scores again: how they were found passes no gradient.
    _, chosen = _highest(paper, choice, rows)
    shares = paper.compute((scores, chosen), rows, 4, op="aten.gather.default")
    paper.record(shares, (scores,), lambda g, saved: [paper.compute(g, n, 4)], paper.save(chosen))
    if shape.shares_divided:
        shares = _divided(paper, at, shares)
    return logits, scale(paper, shares), chosen


def _biased(paper: Paper, at: Setting, scores: Value) -> Value:
    bias = paper.leaf(at.shape.experts, 4, trained=False)
    made = paper.compute((scores, bias), scores.elements, 4, op="aten.add.Tensor")
    paper.record(made, (scores,), lambda g, saved: g)
    return made


def _chosen_in_groups(paper: Paper, at: Setting, scores: Value) -> Value:
    """Hide the scores of all experts but those in a token's best groups."""
    n, groups = scores.elements, at.tokens * at.shape.expert_groups
    choice = _biased(paper, at, scores)
    of_groups = unary(
        paper, _highest(paper, choice, 2 * groups)[0], "aten.sum.dim_IntList", elements=groups
    )
    _, group = _highest(paper, of_groups, at.tokens * at.shape.groups_per_token)
    mask = paper.compute((of_groups,), groups, 4, op="aten.zeros_like.default")
    paper.change("aten.scatter_.value", mask, group)
    allowed = paper.compute((mask.view(n),), n, 4, op="aten.clone.default")
    flags = paper.compute((allowed,), n, 1, op="aten._to_copy.default")
    hidden = paper.compute((flags,), n, 1, op="aten.bitwise_not.default")
    made = paper.compute((choice, hidden), n, 4, op="aten.masked_fill.Scalar")
    paper.record_simple(made, choice, paper.save(hidden))
    return made


def _highest(paper: Paper, x: Value, rows: int) -> tuple[Value, Value]:
    """Run topk: scores, and places, of the experts that each token chooses."""
    every, size = x.elements, x.size
    scores, places = paper.run("aten.topk.default", (x,), [(rows, size), (rows, 8)])
    paper.record(scores, (x,), lambda g, saved: [paper.compute(g, every, size)], paper.save(places))
    return scores, places


def _divided(paper: Paper, at: Setting, shares: Value) -> Value:
    """Divide by the sum, in place: what was there is copied for the backward."""
    n = shares.elements
    total = unary(paper, shares, "aten.sum.dim_IntList", elements=at.tokens)
    if at.shape.expert_groups:
        total = shift(paper, total)
    before = paper.compute((shares,), n, 4, op="aten.clone.default")
    saved = paper.save(before, total)
    made = shares.view()
    paper.change("aten.div_.Tensor", made, total)

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        to_shares = paper.compute((*grads, saved[1]), n, 4)
        return [to_shares, paper.compute((*grads, *saved), at.tokens, 4)]

    paper.record(made, (shares, total), back, saved)
    return made
