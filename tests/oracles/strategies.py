"""Random chains and plans for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from solvers.chain.brute import count_plans
from solvers.chain.problem import Chain
from solvers.problem import Layer, Option, most_overlap
from solvers.schedule import Checkpoint, Item, Keep

_SMALL = st.integers(0, 12)  # so that ties, and sums that tie, are frequent
_LARGE = st.integers(0, 2 * 10**9)  # beyond int32
_MIXED = st.one_of(_SMALL, _LARGE)

_SIZES = ("x", "w", "tf", "td", "tb", "g", "te", "ta", "tr", "e")
_TIMES = ("f", "b", "r")
_WEIGHED = _SIZES + _TIMES


@st.composite
def chains(
    draw: st.DrawFn,
    min_layers: int = 1,
    max_layers: int = 5,
    max_options: int = 2,
    max_plans: int | None = None,
    recomputable: bool | None = None,
    as_graph: bool = False,
) -> Chain:
    """Chains with every field drawn, zeros and absurd combinations included.

    With `max_plans`, options are taken off the last layers until brute force can afford the chain.
    With `recomputable`, every layer has that value. `as_graph`: nothing that graphs do not have.
    """
    sizes = draw(st.sampled_from((_SMALL, _SMALL, _LARGE, _MIXED)))
    times = draw(st.sampled_from((_SMALL, _SMALL, _LARGE, _MIXED)))
    # A field of its own weight in every chain: where all weigh the same, some never decide a peak.
    weight = draw(st.fixed_dictionaries(dict.fromkeys(_WEIGHED, st.sampled_from((0, 1, 1, 4)))))
    if as_graph:
        max_options, weight = 0, weight | dict.fromkeys(("ta", "tr", "e"), 0)
    # A flag that is drawn freely for every layer is almost never the same on all of them.
    usually = draw(st.sampled_from((st.booleans(), st.just(True), st.just(False))))
    mostly = st.sampled_from((True, True, True, False))
    input_bytes = draw(sizes)
    layers: list[Layer] = []
    # A solver may do equal stretches once; layers drawn one by one are never equal.
    repeats = draw(st.booleans())
    for i in range(draw(st.integers(min_layers, max_layers))):
        if repeats and layers and draw(st.integers(0, 3)):
            layer = draw(_nearly(draw(st.sampled_from(layers))))
        else:
            x, w, tf, td, tb, g, te, ta, tr, e = (draw(sizes) * weight[field] for field in _SIZES)
            f, b, r = (draw(times) * weight[field] for field in _TIMES)
            layer = Layer(
                name="",
                forward_time=f,
                backward_time=b,
                output_bytes=x,
                saved_bytes=w,
                recompute_time=r,
                forward_transient_bytes=tf,
                drop_transient_bytes=td,
                backward_transient_bytes=tb,
                backward_overlap_bytes=draw(st.just(0) | st.integers(0, 2 * (x + w + g + tb))),
                gradient_bytes=g,
                ending_transient_bytes=None if as_graph else draw(st.none() | st.just(te)),
                first_transient_bytes=ta,
                again_transient_bytes=tr,
                beside_bytes=e,
                input_saved=draw(usually),
                output_saved=draw(usually),
                recomputable=draw(mostly) if recomputable is None else recomputable,
                options=tuple(
                    draw(_options(f"o{k}", w, sizes, times))
                    for k in range(draw(st.integers(0, max_options)))
                ),
            )
        before = layers[-1].output_bytes if layers else input_bytes
        layers.append(
            _possible(replace(layer, name=f"l{i}"), before, first=i == 0 and not as_graph)
        )
    layers = possible_forwards(layers)
    chain = Chain(tuple(layers), input_bytes)
    while max_plans is not None and count_plans(chain, max_plans) > max_plans:
        k = max((k for k, layer in enumerate(layers) if layer.options), default=-1)
        if k < 0:
            raise ValueError(f"max_plans {max_plans} is too few for {len(chain)} layers")
        layers[k] = replace(layers[k], options=layers[k].options[:-1])
        chain = Chain(tuple(layers), input_bytes)
    return chain


@st.composite
def _options(
    draw: st.DrawFn,
    name: str,
    saved_bytes: int,
    sizes: st.SearchStrategy[int],
    times: st.SearchStrategy[int],
) -> Option:
    """An option of a layer whose saved set has that size, any field its own or the layer's."""
    return Option(
        name,
        draw(st.integers(0, saved_bytes)),
        draw(times),
        forward_transient_bytes=draw(st.none() | sizes),
        ending_transient_bytes=draw(st.none() | sizes),
        backward_transient_bytes=draw(st.none() | sizes),
        backward_overlap_bytes=draw(st.none() | sizes.map(lambda size: 4 * size)),
        input_saved=draw(st.sampled_from((None, True, False))),
        output_saved=draw(st.sampled_from((None, True, False))),
    )


@st.composite
def _nearly(draw: st.DrawFn, layer: Layer) -> Layer:
    """`layer` once more, or with one small difference."""
    changes = ("", "", "time", "output", "gradient", "input_saved", "names", "options")
    change = draw(st.sampled_from(changes))
    if change == "time":
        return replace(layer, recompute_time=layer.recompute_time + 1)
    if change == "output":
        return replace(layer, output_bytes=layer.output_bytes + 1)
    if change == "gradient":
        return replace(layer, gradient_bytes=layer.gradient_bytes + 1)
    if change == "input_saved":
        return replace(layer, input_saved=not layer.input_saved)
    if change == "options":
        flipped = (replace(o, output_saved=not o.output_saved) for o in layer.options)
        return replace(layer, options=tuple(flipped))
    if change == "names":  # the same costs by other names: a plan must say these
        return replace(layer, options=tuple(replace(o, name=f"{o.name}'") for o in layer.options))
    return layer


def possible_forwards(layers: Sequence[Layer]) -> list[Layer]:
    """Layers whose first forwards `Chain` accepts: where the last may run again, as the others."""
    if not layers[-1].recomputable:
        return list(layers)
    made = [
        replace(la, first_transient_bytes=min(la.first_transient_bytes, la.again_transient_bytes))
        for la in layers
    ]
    options = tuple(replace(option, ending_transient_bytes=None) for option in made[-1].options)
    alike = replace(made[-1], ending_transient_bytes=None, first_transient_bytes=0, options=options)
    return [*made[:-1], alike]


def _possible(layer: Layer, before: int, *, first: bool) -> Layer:
    """`layer` with overlaps that `Chain` accepts, behind an activation of `before` bytes."""
    least = min(
        layer.backward_overlap_bytes, most_overlap(layer, layer.ways[0], before, first=first)
    )
    layer = replace(layer, backward_overlap_bytes=least)
    options = []
    for option, way in zip(layer.options, layer.ways[1:], strict=True):
        most = most_overlap(layer, way, before, first=first)
        if way.backward_overlap_bytes > most:
            option = replace(option, backward_overlap_bytes=most)
        options.append(option)
    return replace(layer, options=tuple(options))


@st.composite
def plans(draw: st.DrawFn, chain: Chain) -> tuple[Item, ...]:
    """Any nested plan of `chain`, pointless ones included, nested at most as deep as it is long."""
    return draw(_levels(chain, 0, len(chain) - 1, len(chain)))


@st.composite
def _levels(draw: st.DrawFn, chain: Chain, s: int, t: int, depth: int) -> tuple[Item, ...]:
    items: list[Item] = []
    while s <= t:
        end = s  # beyond the last layer that a checkpoint from s can cover
        while end <= t and chain.layers[end].recomputable:
            end += 1
        if depth and end > s and draw(st.booleans()):
            j = draw(st.integers(s, end - 1))
            items.append(Checkpoint(s, j, draw(_levels(chain, s, j, depth - 1))))
        else:
            j = s
            names = [None, *(option.name for option in chain.layers[s].options)]
            items.append(Keep(s, draw(st.sampled_from(names))))
        s = j + 1
    return tuple(items)
