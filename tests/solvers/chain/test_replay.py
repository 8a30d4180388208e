"""Replay against arithmetic done by hand, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.chain.problem import Chain, replay_actions
from solvers.problem import Layer, Option
from solvers.replay import Replay
from solvers.schedule import (
    Action,
    Backward,
    Checkpoint,
    Drop,
    Forward,
    Hold,
    IllegalPlan,
    Item,
    Items,
    Keep,
    actions,
    keep_all,
)

#          f  b   x    w  r  tf  td tb  o   g
A = Layer("a", 3, 6, 10, 100, 2, 4, 40, 5, 0, 7)
B = Layer("b", 4, 8, 20, 200, 1, 6, 60, 9, 0, 11)
C = Layer("c", 5, 10, 30, 300, 3)
AB = Chain((A, B), 1)
ABC = Chain((A, B, C), 1)


def during(result: Replay) -> list[int]:
    """Bytes at the worst moment of each forward and backward."""
    return [s.during_bytes for s in result.moments if isinstance(s.action, Forward | Backward)]


def test_keep_all() -> None:
    result = AB.replay(Items(keep_all(2)))
    assert during(result) == [
        135,  # a_-1 1 + d_1 20 = 21 live; x 10 + w 100 + tf 4
        357,  # 21 + 110 = 131 live;       x 20 + w 200 + tf 6
        381,  # 131 + 220 = 351 live;      x_0 10 + g 11 + tb 9
        145,  # 351 + 10 + 11 - w 200 - a_1 20 - d_1 20 = 132; x_-1 1 + g 7 + tb 5
    ]
    assert result.moments[-1].after_bytes == 20  # a_-1 1, d_-1 1, g 7 + 11
    assert (result.peak_bytes, result.peak_action) == (381, Backward(1))
    assert result.time == 3 + 4 + 8 + 6


def test_a_saved_set_without_input_and_output_lets_them_go_early() -> None:
    layers = tuple(replace(la, input_saved=False, output_saved=False) for la in (A, B))
    result = Chain(layers, 1).replay(Items(keep_all(2)))
    assert during(result) == [
        135,  # 21 live as above
        357,  # 131 live: the sweep still holds a_0
        351,  # 351 - a_0 10 - a_1 20 = 321 live; 10 + 11 + 9
        135,  # 321 + 10 + 11 - 200 - 20 = 122 live; 1 + 7 + 5
    ]
    assert (result.peak_bytes, result.peak_action) == (357, Forward(1, True))


@pytest.mark.parametrize(
    ("a_saves_output", "b_saves_input", "before_b"),
    # After both forwards: a_-1 1, d_1 20, w 100 + 200, a_1 20, and a_0 10 if somebody saves it.
    [(True, True, 351), (True, False, 351), (False, True, 351), (False, False, 341)],
)
def test_one_holder_is_enough(a_saves_output: bool, b_saves_input: bool, before_b: int) -> None:
    chain = Chain((replace(A, output_saved=a_saves_output), replace(B, input_saved=b_saves_input)))
    result = chain.replay(Items(keep_all(2)))
    assert during(result)[2] == before_b - 1 + 10 + 11 + 9  # this chain's input has no bytes


def test_checkpoint() -> None:
    result = AB.replay(Items((Checkpoint(0, 0, (Keep(0),)), Keep(1))))
    assert during(result) == [
        71,  # 21 live; x 10 + td 40, and no w
        257,  # 31 live; 20 + 200 + 6
        281,  # 251 live; 10 + 11 + 9
        136,  # 251 + 21 - 200 - a_1 20 - d_1 20 - a_0 10 = 22 live; 10 + 100 + 4
        145,  # 132 live; 1 + 7 + 5
    ]
    assert result.peak_bytes == 281
    assert result.time == 3 + 4 + 8 + 2 + 6  # a's second forward ends a body: r = 2


def test_nested_checkpoints() -> None:
    inner = Checkpoint(0, 0, (Keep(0),))
    result = ABC.replay(Items((Checkpoint(0, 1, (inner, Keep(1))), Keep(2))))
    assert during(result) == [
        81,  # a_-1 1 + d_2 30 = 31 live; 10 + 40
        121,  # 41 live; 20 + 60
        381,  # a_0 is gone: 51 live; 30 + 300
        401,  # 381 live; 20
        71,  # 381 + 20 - 300 - a_2 30 - d_2 30 - a_1 20 = 21 live; 10 + 40
        257,  # 31 live; 20 + 200 + 6
        281,  # 251 live; 10 + 11 + 9
        136,  # 22 live, as without c
        145,
    ]
    # Three forwards; c back; a and b (r = 1) again; b back; a again (r = 2); a back.
    assert result.time == (3 + 4 + 5) + 10 + (3 + 1) + 8 + 2 + 6


def test_early_stop_is_for_the_forward_that_keeps_last() -> None:
    inner = Checkpoint(1, 1, (Keep(1),))
    result = ABC.replay(Items((Checkpoint(0, 1, (Keep(0), inner)), Keep(2))))
    assert during(result)[4:] == [
        135,  # 21 live; 10 + 100 + 4
        211,  # 131 live; 20 + 60
        357,  # a_1 is gone: 131 live; 20 + 200 + 6
        381,  # 351 live; 10 + 11 + 9
        145,  # 132 live: the saved set of a holds a_0 though the inner segment let go
    ]
    # The outer body ends with b's forward, which keeps nothing: f = 4. The inner one costs r = 1.
    assert result.time == (3 + 4 + 5) + 10 + (3 + 4) + 1 + 8 + 6


def test_a_segment_holds_its_input_to_the_end_of_its_backward() -> None:
    layers = (A, replace(B, input_saved=False), C)
    plan = (Keep(0), Checkpoint(1, 2, (Keep(1), Keep(2))))
    unsaved = (replace(A, output_saved=False), *layers[1:])
    result = Chain(unsaved, 1).replay(Items(plan))
    assert during(result) == [
        145,  # 31 live; 10 + 100 + 4
        221,  # 141 live; 20 + 60
        191,  # + a_1 20 = 161 live: a_0 stays; 30
        367,  # a_1, a_2 are gone: 141 live; 20 + 200 + 6
        691,  # 361 live; 30 + 300
        711,  # 691 live; 20
        381,  # 691 + 20 - 300 - a_2 30 - d_2 30 = 351: b saves a_1, the segment a_0; 10 + 11 + 9
        135,  # 351 + 21 - 200 - a_1 20 - d_1 20 - a_0 10 = 122, as a saves no output; 1 + 7 + 5
    ]


def test_option_and_overlap() -> None:
    layer = replace(A, backward_overlap_bytes=4, options=(Option("half", 60, 9),))
    chain = Chain((layer,), 1)
    result = chain.replay(Items((Keep(0, "half"),)))
    assert during(result) == [
        85,  # a_-1 1 + d_0 10 = 11 live; x 10 + w_o 60 + tf 4
        130,  # 81 live; the other 40 of w, x_-1 1 + g 7 + tb 5 - o 4
    ]
    assert result.moments[-1].after_bytes == 9  # a_-1 1, d_-1 1, g 7
    assert result.time == 3 + 9 + 6
    again = chain.replay(Items((Checkpoint(0, 0, (Keep(0, "half"),)),)))
    assert again.time == 3 + 2 + 9 + 6  # r for the recomputed forward, and the option's own


def test_what_each_action_is_for() -> None:
    chain = Chain((replace(A, options=(Option("half", 60, 9),)), B), 1)
    result = chain.replay(Items((Checkpoint(0, 0, (Keep(0, "half"),)), Keep(1))))
    assert [(m.action, m.role, m.ticks, m.again_ticks) for m in result.moments] == [
        (Hold(-1), "", 0, 0),
        (Forward(0, False), "first", 3, 0),
        (Forward(1, True), "first", 4, 0),
        (Drop(0), "", 0, 0),
        (Drop(1), "", 0, 0),
        (Backward(1), "back", 8, 0),
        (Forward(0, True, "half", ends_body=True), "again", 2, 0),
        (Drop(0), "", 0, 0),
        (Backward(0), "back", 6 + 9, 9),
        (Drop(-1), "", 0, 0),
    ]
    assert result.moments[result.peak_at].action == result.peak_action == Backward(1)


@pytest.mark.parametrize(
    ("layer_saves", "option_saves", "before", "again"),
    # Before its backward a holds a_0 10 where the option does; where only the whole saved set
    # does, it holds one of its own again.
    [(True, None, 92, 0), (True, False, 82, 10), (False, None, 82, 0), (False, True, 92, 0)],
)
def test_an_option_holds_and_needs_what_it_says(
    layer_saves: bool, option_saves: bool | None, before: int, again: int
) -> None:
    option = Option("o", 60, 9, 50, 30, 8, output_saved=option_saves)
    chain = Chain((replace(A, output_saved=layer_saves, options=(option,)), B), 1)
    result = chain.replay(Items((Keep(0, "o"), Keep(1))))
    assert during(result) == [
        141,  # 21 live; x 10 + w_o 60 + tf_o 50
        317,  # 91 live; 20 + 200 + 6
        341,  # 311 live: b saves a_0; 10 + 11 + 9
        # 311 + 10 + 11 - 200 - a_1 20 - d_1 20 = 92, or a_0 less; w 100 - w_o 60, 1 + 7 + 30 - 8
        before + again + 40 + 30,
    ]


@pytest.mark.parametrize(
    ("layer_saves", "option_saves", "before"),
    # a_-1 1, d_1 20, w_a 100, w_o 150, a_1 20, and a_0 10 if the option holds it.
    [(True, None, 301), (True, False, 291), (False, None, 291), (False, True, 301)],
)
def test_an_option_says_whether_it_holds_the_input(
    layer_saves: bool, option_saves: bool | None, before: int
) -> None:
    option = Option("o", 150, 1, input_saved=option_saves)
    b = replace(B, input_saved=layer_saves, options=(option,))
    chain = Chain((replace(A, output_saved=False), b), 1)
    result = chain.replay(Items((Keep(0), Keep(1, "o"))))
    assert during(result)[2] == before + 50 + 10 + 11 + 9


def test_the_forward_under_an_option_is_entered_again() -> None:
    inner = (Keep(0, "o"), Checkpoint(1, 1, (Keep(1, "o"),)), Keep(2))
    assert Items(inner).counts(3) == [2, 3, 1]
    assert Items((Checkpoint(0, 2, inner),)).counts(3) == [3, 4, 2]
    assert Items((Checkpoint(0, 2, inner),)).options() == {0: "o", 1: "o"}


def test_zero_sizes() -> None:
    nothing = Chain((Layer("a", 1, 1, 0, 0, 1), Layer("b", 1, 1, 0, 0, 1)))
    result = nothing.replay(Items((Checkpoint(0, 1, keep_all(2)),)))
    assert (result.peak_bytes, result.time) == (0, 6)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((), "stops before layer 0"),
        ((Keep(1), Keep(0)), "must start at layer 0"),
        ((Keep(0),), "stops before layer 1"),
        ((Keep(1),), "must start at layer 0"),
        ((Keep(0), Keep(0), Keep(1)), "must start at layer 1"),
        ((Keep(0), Keep(1), Keep(2)), "stops before|must reach|must start"),
        ((Checkpoint(0, 2, keep_all(3)),), "stops before|must reach|must start"),
        ((Checkpoint(0, 0, ()), Keep(1)), "body of the checkpoint of layers 0 to 0 stops before"),
        ((Checkpoint(0, 1, (Keep(0),)),), "body of the checkpoint of layers 0 to 1 stops before"),
        ((Checkpoint(0, 0, keep_all(2)), Keep(1)), "body of the checkpoint of layers 0 to 0"),
        ((Checkpoint(0, -1, ()), Keep(0), Keep(1)), "must start at layer 0"),
        ((Checkpoint(0, 1, (Keep(1), Keep(0))),), "must start at layer 0"),
        ((Keep(0, "half"), Keep(1)), "'a' has no option 'half' .*none"),
        ((Keep(0), Keep(1, "half")), "'b' has no option 'half' .*'third'"),
        ((Keep(0), Checkpoint(1, 1, (Keep(1),))), "recomputes 'b', which must be kept"),
        ((Checkpoint(0, 1, keep_all(2)),), "recomputes 'b', which must be kept"),
    ],
)
def test_illegal_plans_are_refused(items: tuple[Item, ...], message: str) -> None:
    b = replace(B, recomputable=False, options=(Option("third", 60, 9),))
    with pytest.raises(IllegalPlan, match=message):
        Chain((A, b), 1).replay(Items(items))


KEEP_ALL: list[Action] = [
    Forward(0, True),
    Forward(1, True),
    Drop(0),
    Drop(1),
    Backward(1),
    Backward(0),
]


def test_the_stream_that_is_broken_below() -> None:
    assert list(actions(keep_all(2), 2)) == KEEP_ALL
    assert replay_actions(AB, KEEP_ALL) == AB.replay(Items(keep_all(2)))


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([], "before the backward of the output of 'b'"),
        ([Backward(1)], "'b' runs while its saved set is not live"),
        ([Forward(1, True)], "'b' runs while its input is not live"),
        ([Forward(0, True), Backward(0)], "'a' runs out of order"),
        ([Forward(0, False), Forward(1, True), Drop(0), Backward(1), Backward(0)], "saved set"),
        ([Forward(0, True), Forward(0, True)], "'a' keeps what is already kept"),
        ([Forward(0, False), Forward(0, False)], "while its output is live"),
        ([Forward(0, False), Drop(0), Forward(1, True)], "'b' runs while its input is not live"),
        ([Forward(0, False), Drop(0), Drop(0)], "Drop lets go of the output of 'a', not held"),
        ([Drop(0)], "Drop lets go of the output of 'a', not held"),
        ([Drop(-1)], "Drop lets go of the input, not held"),  # the user's hold is not the plan's
        ([Hold(0)], "hold on the output of 'a', which is not live"),
        ([Hold(-1), *KEEP_ALL], "ends with the input still held"),
        ([*KEEP_ALL[:2], *KEEP_ALL[3:]], "ends with the output of 'a' still held"),
        ([*KEEP_ALL[:3], *KEEP_ALL[4:]], "ends with the output of 'b' still held"),
        (KEEP_ALL[:-1], "ends with the input still held"),  # by the saved set of a
        ([*KEEP_ALL, Backward(0)], "'a' runs while its saved set is not live"),
        ([*KEEP_ALL, Forward(0, True)], "'a' runs after its backward"),
        ([*KEEP_ALL[:3], Drop(0), *KEEP_ALL[3:]], "not held"),  # a drop of what a saved set holds
    ],
)
def test_illegal_streams_are_refused(stream: list[Action], message: str) -> None:
    with pytest.raises(IllegalPlan, match=message):
        replay_actions(AB, stream)


def test_an_unfinished_saved_set_is_refused() -> None:
    # Nothing but the saved set is left: it holds neither its input nor its output.
    bare = Chain((replace(A, input_saved=False, output_saved=False),))
    with pytest.raises(IllegalPlan, match="ends with the saved set of"):
        replay_actions(bare, [Forward(0, True), Drop(0)])
