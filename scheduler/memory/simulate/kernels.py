"""The operations of a transformer, on paper: what each makes, saves and costs, and its backward.

Each mirrors the module of transformers 5.24 that it is named after, local variables and all: when
Python lets go of a tensor decides the peak. Sizes: e bytes of an element of what linear layers
make; T tokens.
"""

from __future__ import annotations

from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value


def add(paper: Paper, x: Value, y: Value) -> Value:
    """Run x + y; both get the gradient itself, unless it has to be summed."""
    made = paper.compute(
        (x, y), max(x.elements, y.elements), max(x.size, y.size), op="aten.add.Tensor"
    )
    sizes = (x.elements, x.size), (y.elements, y.size)

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        (g,) = grads
        return [
            g if (n, size) == (g.elements, g.size) else paper.compute((g,), n, size)
            for n, size in sizes
        ]

    paper.record(made, (x, y), back)
    return made


def subtract(paper: Paper, x: Value, y: Value) -> Value:
    """Run x - y, the smaller spread over the larger; y gets the gradient negated."""
    n, m, size = x.elements, y.elements, x.size
    made = paper.compute((x, y), n, size, op="aten.sub.Tensor")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        negated = paper.compute(grads, n, size)
        return [grads[0], negated if n == m else paper.compute((negated,), m, size)]

    paper.record(made, (x, y), back)
    return made


def cast(paper: Paper, x: Value, size: int) -> Value:
    """Run x.to(dtype); nothing where x has it."""
    if x.size == size:
        return x
    made = paper.compute((x,), x.elements, size, op="aten._to_copy.default")
    paper.record_simple(made, x)
    return made


def shift(paper: Paper, x: Value) -> Value:
    """Run x plus a number: the gradient passes as it is."""
    made = paper.compute((x,), x.elements, x.size, op="aten.add.Tensor")
    paper.record(made, (x,), lambda g, saved: g)
    return made


def view(paper: Paper, x: Value, *, made: bool = False, copied: bool = False) -> Value:
    """Put x in another order: a copy forward where `made`, a copy of its gradient if `copied`."""
    copy = "aten.clone.default"
    result = paper.compute((x,), x.elements, x.size, op=copy) if made else x.view()
    if copied:
        paper.record_simple(result, x)
    else:
        paper.record(result, (x,), lambda g, saved: g)
    return result


def split(paper: Paper, x: Value, widths: int | list[int]) -> list[Value]:
    """Take x apart, in equal parts or by the widths given; the gradient is put together again."""
    parts = [1] * widths if isinstance(widths, int) else widths
    made = [x.view(x.elements * part // sum(parts)) for part in parts]
    n, size = x.elements, x.size
    paper.record(made, (x,), lambda g, saved: [paper.compute([v for v in g if v], n, size)])
    return made


def unary(
    paper: Paper, x: Value, op: str, *, saves: str = "", elements: int | None = None
) -> Value:
    """Run an element-wise function, or a mean, with one kernel forward and one backward.

    `saves` is "input", "output" or nothing.
    """
    before = [paper.save(x)] if saves == "input" else []
    made = paper.compute((x,), x.elements if elements is None else elements, x.size, op=op)
    after = [paper.save(made)] if saves == "output" else []
    paper.record_simple(made, x, *before, *after)
    return made


def scale(paper: Paper, x: Value) -> Value:
    """Run x times a number."""
    return unary(paper, x, "aten.mul.Tensor")


def power(paper: Paper, x: Value, *, of_output: bool = False) -> Value:
    """Run pow(x, n), or rsqrt(x): the backward is a power, a multiple of it and a product."""
    before = [] if of_output else [paper.save(x)]
    op = "aten.rsqrt.default" if of_output else "aten.pow.Tensor_Scalar"
    made = paper.compute((x,), x.elements, x.size, op=op)
    after = [paper.save(made)] if of_output else []

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        n, size = saved[0].elements, saved[0].size
        lower = paper.compute(saved, n, size)
        multiple = paper.compute((lower,), n, size)
        return [paper.compute((grads[0], multiple), n, size)]

    paper.record(made, (x,), back, *before, *after)
    return made


def multiply(paper: Paper, x: Value, y: Value) -> Value:
    """Run x * y, the smaller spread over the larger.

    Each factor is saved for the other's gradient. Both products of the backward have full size,
    in the wider dtype; then the one for a smaller factor is summed, the one for a narrower cast.
    """
    to_x, to_y = x.node is not None, y.node is not None
    sizes, kinds = (x.elements, y.elements), (x.size, y.size)
    factors = [v for v, wanted in ((y, to_x), (x, to_y)) if wanted]
    kept = [paper.save(*factors)] if factors else []
    made = paper.compute((x, y), max(sizes), max(x.size, y.size), op="aten.mul.Tensor")

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (g,) = grads
        found = [paper.compute((g, other), g.elements, g.size) for other in saved]
        saved.clear()  # the engine sums and casts when the node is done with what it was given
        wanted = [i for i, needed in enumerate((to_x, to_y)) if needed]
        for place, i in enumerate(wanted):
            if sizes[i] != g.elements:
                found[place] = paper.compute((found[place],), sizes[i], g.size)
            if kinds[i] != g.size:
                found[place] = paper.compute((found[place],), sizes[i], kinds[i])
        return [found.pop(0) if needed else None for needed in (to_x, to_y)]

    paper.record(made, (x, y), back, *kept)
    return made


def linear(
    paper: Paper,
    x: Value,
    inputs: int,
    outputs: int,
    *,
    trained: bool,
    bias: bool = False,
    weight: Value | None = None,
) -> Value:
    """Run x Wᵀ + b: 2·inputs·outputs FLOPs a token; the backward as many for each gradient."""
    rows, size = x.elements // inputs, x.size
    w = weight or paper.leaf(inputs * outputs, size, trained=trained)
    b = paper.leaf(outputs, size, trained=trained)
    flops = 2 * rows * inputs * outputs
    # The weight is saved in any case, for x's gradient; a parameter takes no memory.
    kept = paper.save(*((x, w) if trained else (w,)))
    reads, op = ((b, x, w), "aten.addmm.default") if bias else ((x, w), "aten.mm.default")
    made = paper.compute(reads, rows * outputs, size, flops, op=op)
    onward = x.node is not None

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        (g,), w = grads, saved[-1]
        to_x = paper.compute((g, w), rows * inputs, size, flops) if onward else None
        to_w = paper.compute((g, saved[0]), inputs * outputs, size, flops) if trained else None
        saved.clear()  # what was made again for this backward alone goes before the bias has its
        to_b = paper.compute((g,), outputs, size) if trained and bias else None
        return [to_x, to_w, to_b]

    paper.record(made, (x, w, b), back, kept)
    return made


def dropout(paper: Paper, at: Setting, x: Value, probability: float) -> Value:
    """Run dropout: a mask, and a product with it. CUDA has one kernel for both."""
    if not probability:
        return x
    n, size = x.elements, x.size
    if at.cuda:
        made, mask = paper.run("aten.native_dropout.default", (x,), [(n, size), (n, 1)])
        saved = paper.save(mask)
    else:
        mask = paper.compute((x,), n, size, op="aten.empty_like.default")
        paper.change("aten.bernoulli_.float", mask)
        paper.change("aten.div_.Scalar", mask)
        saved = paper.save(mask)
        made = paper.compute((x, mask), n, size, op="aten.mul.Tensor")
    paper.record_simple(made, x, saved)
    return made


def layer_norm(paper: Paper, at: Setting, x: Value) -> Value:
    """Run torch's fused layer norm, with weight and bias."""
    rows, size, stat = x.elements // at.shape.width, x.size, 4 if at.cuda else x.size
    w, b = (paper.leaf(at.shape.width, size, trained=at.trained) for _ in range(2))
    made, mean, root = paper.run(
        "aten.native_layer_norm.default",
        (x, w, b),
        [(x.elements, size), (rows, stat), (rows, stat)],
    )
    saved = paper.save(x, mean, root)

    def back(grads: list[Value], saved: list[Value]) -> list[Value | None]:
        reads = (*grads, *saved)
        to_x = paper.compute(reads, grads[0].elements, size)
        if not at.trained:
            return [to_x, None, None]
        return [to_x, *(paper.compute((), at.shape.width, size) for _ in range(2))]

    paper.record(made, (x, w, b), back, saved)
    return made


def rms_norm(paper: Paper, at: Setting, x: Value, width: int) -> Value:
    """Run transformers' RMS norm; Gemma's multiplies in fp32 by 1 + w."""
    size, gemma = x.size, at.shape.family.startswith("gemma")
    w = paper.leaf(width, size, trained=at.trained)
    x, rows = cast(paper, x, 4), x.elements // width
    if gemma:
        # One expression: the mean is no variable, as it is in the other families.
        x = l2_norm(paper, x, rows, 4)
        x = multiply(paper, x, shift(paper, cast(paper, w, 4)))
        return cast(paper, x, size)
    if at.shape.family == "llama4_text":
        return multiply(paper, l2_norm(paper, x, rows, size), w)
    variance = mean(paper, power(paper, x), rows)
    x = multiply(paper, x, power(paper, shift(paper, variance), of_output=True))
    if at.shape.family == "gpt_oss":
        return cast(paper, multiply(paper, w, x), size)
    return multiply(paper, w, cast(paper, x, size))


def l2_norm(paper: Paper, x: Value, rows: int, size: int) -> Value:
    """Run Llama 4's norm, of fp32 numbers, up to its weight."""
    root = power(paper, shift(paper, mean(paper, power(paper, x), rows)), of_output=True)
    x = multiply(paper, x, root)
    del root
    return cast(paper, x, size)


def mean(paper: Paper, x: Value, rows: int) -> Value:
    """Run the mean of each row."""
    return unary(paper, x, "aten.mean.dim", elements=rows)


def part(paper: Paper, x: Value, elements: int) -> Value:
    """Slice x: a view; backward, a tensor of zeros as large as x with the gradient in it."""
    made = x.view(elements)
    paper.record_simple(made, x)
    return made


def join(paper: Paper, x: Value, y: Value, op: str = "aten.cat.default") -> Value:
    """Concatenate x and y: a copy; backward, two views."""
    made = paper.compute((x, y), x.elements + y.elements, x.size, op=op)
    sizes = x.elements, y.elements
    paper.record(made, (x, y), lambda g, saved: [g[0].view(n) for n in sizes])
    return made


def gelu_new(paper: Paper, x: Value) -> Value:
    """Run 0.5·x · (1 + tanh(c·(x + 0.044715·x³))), as it is written out."""
    half = scale(paper, x)
    return multiply(paper, half, shift(paper, _tanh(paper, x)))


def _tanh(paper: Paper, x: Value) -> Value:
    inside = scale(paper, add(paper, x, scale(paper, power(paper, x))))
    return unary(paper, inside, "aten.tanh.default", saves="output")
