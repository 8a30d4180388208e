"""What an MLP or a mixture of experts keeps, from its normed input."""

from __future__ import annotations

from scheduler.memory.activations.operations import activate, linear
from scheduler.memory.activations.setting import Setting, linears
from scheduler.memory.activations.tape import Tape, Tensor

__all__ = ["mixture", "mlp"]


def mlp(tape: Tape, at: Setting, x: Tensor) -> Tensor:
    """Run down(act(gate x) · up x), or down(act(up x)) where there is no gate.

    Kept, f features wide: the activation's own (see `activate`); with a gate act(gate x) and up x,
    e·T·f each, by their product; and the input of down, e·T·f, when down is trained. Gated with
    silu: 4·e·T·f trained, 3·e·T·f frozen. x is kept once, by gate and up.
    """
    sizes = linears(at.shape)
    if "gate_up" in sizes:
        # Gate and up are views of one tensor: kept once, it is as large as the two elsewhere.
        both = linear(tape, at, x, "gate_up", *sizes["gate_up"])
        inside = Tensor("gated activation", at.tokens * at.shape.mlp_width, both.size)
        tape.keep(both, inside.named("activation output"))
    elif at.shape.gated:
        gate = linear(tape, at, x, "gate", *sizes["gate"])
        active, up = activate(tape, at, gate), linear(tape, at, x, "up", *sizes["up"])
        tape.keep(active, up)
        inside = active.named("gated activation")
    else:
        inside = activate(tape, at, linear(tape, at, x, "up", *sizes["up"]))
    return linear(tape, at, inside, "down", *sizes["down"])


def mixture(tape: Tape, at: Setting, x: Tensor) -> Tensor:
    """Run a router and its top k of E experts, each a gated MLP of width f (transformers 5).

    Router: its linear layer keeps x; softmax in fp32 keeps its output, 4·T·E; top-k keeps int64
    indices, 8·T·k; the division of the k chosen by their sum, in place, keeps the sum, 4·T, and a
    copy of what was there before, 4·T·k: 4·T·E + 12·T·k + 4·T. Qwen's weights are
    cast to e bytes, and are divided only where a config says so (``norm_topk_prob``, the shape's
    `shares_divided`): else 4·T·E + 8·T·k.

    Experts work on T·k rows, whatever the routing is. A row keeps gate x and up x together 2·e·f,
    act(gate x) e·f, and the output e·d by its product with the weight of u bytes (u = 4; Qwen e);
    when experts are trained the row's input e·d and down's input e·f too: e·(2d + 4f). Then, by
    implementation,

    grouped (one product over sorted rows): the weight in sorted order u, the sorting permutation 8,
    the rows' tokens 8 and the inverse permutation 8, so 28 a row, and where each expert's rows end,
    4·E.
    batched (a product per row): every row keeps its expert's weights, e·3·d·f, by far the most,
    and the weight u; the experts' indices are the router's.
    eager (a loop): a row's token and place 16, its weight u, and what is added to the result, e·d.
    """
    shape = at.shape
    rows, e = at.tokens * shape.experts_per_token, at.compute
    d, f = shape.width, shape.mlp_width
    linear(tape, at, x, "router", d, shape.experts)
    tape.keep(
        Tensor("router probabilities", at.tokens * shape.experts, 4),
        Tensor("chosen experts", rows, 8),
    )
    if shape.shares_divided:
        tape.keep(
            Tensor("sum of the chosen", at.tokens, 4), Tensor("chosen probabilities", rows, 4)
        )
    if at.trained:
        tape.keep(Tensor("experts' input", rows * d, e), Tensor("gated activation", rows * f, e))
    tape.keep(
        Tensor("gate and up output", rows * 2 * f, e),
        Tensor("activation output", rows * f, e),
        Tensor("experts' output", rows * d, e),
        Tensor("rows' weights", rows, e if shape.family.startswith("qwen") else 4),
    )
    if at.experts == "eager":
        tape.keep(
            Tensor("rows' tokens and places", rows, 16),
            Tensor("experts' weighted output", rows * d, e),
        )
    elif at.experts == "grouped":
        tape.keep(
            Tensor("sorting permutation", rows, 8),
            Tensor("rows' tokens", rows, 8),
            Tensor("inverse permutation", rows, 8),
            Tensor("ends of experts' rows", shape.experts, 4),
        )
    else:
        tape.keep(Tensor("rows' expert weights", rows * 3 * d * f, e))
    if shape.shared_expert_width:
        _shared_expert(tape, at)
    return x.named("mixture output")


def _shared_expert(tape: Tape, at: Setting) -> None:
    """Run sigmoid(w x) · expert(x) on every token, the expert a gated MLP.

    Kept, s features wide: gate x, act(gate x), up x, and trained down's input, e·T·s each; the
    sigmoid's output, e·T, and the expert's, e·T·d, by their product. x is kept by the router.
    """
    inside = Tensor("shared gate output", at.tokens * at.shape.shared_expert_width, at.compute)
    tape.keep(inside, inside.named("shared activation output"), inside.named("shared up output"))
    if at.trained:
        tape.keep(inside.named("shared gated activation"))
    tape.keep(
        Tensor("shared expert's output", at.tokens * at.shape.width, at.compute),
        Tensor("shared expert's share", at.tokens, at.compute),
    )
