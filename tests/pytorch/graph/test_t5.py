"""Hugging Face's encoder-decoder models as graphs, with padding and dropout.

That T5 is profiled, planned and run to the byte at three budgets is part of the suite.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers

from scheduler import solve
from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import TracedGraph, apply_graph, measure, profile_graph, trace
from tests.pytorch.models import Case, assert_equal, gradients
from tests.pytorch.suite import LENGTH, ROWS, TOKENS, t5, tokens

LEAVES = {
    "t5": ["*coder.block.*", "*coder.final_layer_norm"],
    "bart": ["model.*coder.layers.*"],
}


def padding() -> torch.Tensor:
    """A mask for the batch: two rows are shorter than the others."""
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[1, 40:] = mask[3, 20:] = 0
    return mask


def bart() -> Case:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=48,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=112,
        decoder_ffn_dim=112,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=64,
        decoder_start_token_id=0,
        **TOKENS,
    )
    model = transformers.BartForConditionalGeneration(config).train()
    return Case(model, {"input_ids": tokens(), "labels": tokens()})


@cache
def padded(name: str) -> Case:
    """A model by name with a padded batch; whoever changes it puts it back."""
    case = t5(3, 3) if name == "t5" else bart()
    return Case(case.model, {**case.inputs, "attention_mask": padding()})


@cache
def traced(name: str) -> TracedGraph:
    return trace(padded(name).model, padded(name).inputs, LEAVES[name])


def test_the_layers_of_t5() -> None:
    """The first block of each stack is two: what makes its position bias, and the rest."""
    names = traced("t5").names
    edges = {(names[u], names[v]) for u, v in traced("t5").edges}
    for stack in ("encoder", "decoder"):
        blocks = [f"{stack}.block.{i}" for i in range(3)]
        assert [n for n in names if ".block." in n and n.startswith(stack)] == [
            f"{stack}.block.0[1]",
            *blocks,
        ]
        assert {(f"{stack}.block.0[1]", block) for block in blocks} <= edges
    memory = {v for u, v in edges if u == "encoder.dropout#2"}
    assert memory == {f"decoder.block.{i}" for i in range(3)}
    assert len(names) == 19
    first = traced("t5").nodes[names.index("decoder.block.0")]
    assert len(first.modules) > 10


@pytest.mark.parametrize("name", LEAVES)
def test_a_padded_batch(name: str) -> None:
    case, graph = padded(name), traced(name)
    costs = profile_graph(case.model, case.inputs, None, LEAVES[name])
    everything = solve(costs, budget=10**12).peak_bytes
    plan = solve(costs, budget=everything * 6 // 10, optimal_in="forward")
    expected = gradients(case.model, case.inputs)
    modules = sorted({module for node in graph.nodes for module in node.modules})
    with apply_graph(plan, graph, case.model) as handle:
        assert_equal(gradients(case.model, case.inputs), expected)
        assert handle.forwards == {layer: plan.forwards[layer] for layer in graph.names}
        measured = measure(case.model, case.inputs, None, modules)
    assert measured.peak_bytes == plan.peak_bytes
    assert measured.left_bytes == 0
    assert sum(plan.forwards.values()) > len(costs.layers)


@pytest.mark.parametrize("name", LEAVES)
def test_another_kind_of_batch(name: str) -> None:
    """Where nothing is padded these models leave the mask out: another graph."""
    case, graph = padded(name), traced(name)
    full = {**case.inputs, "attention_mask": torch.ones_like(padding())}
    other = {**case.inputs, "attention_mask": padding().flip(0)}
    costs = profile_graph(case.model, case.inputs, None, LEAVES[name])
    plan = solve(costs, budget=10**12)
    expected = gradients(case.model, other)
    with apply_graph(plan, graph, case.model):
        assert_equal(gradients(case.model, other), expected)
        with pytest.raises(UnsupportedModel, match="is True now and was False when it was traced"):
            case.model(**full)


def test_only_the_loss_is_trained_on() -> None:
    case, graph = padded("t5"), traced("t5")
    plan = solve(profile_graph(case.model, case.inputs, None, LEAVES["t5"]), budget=10**12)
    with apply_graph(plan, graph, case.model):
        output = case.model(**case.inputs)
    assert type(output).__name__ == "Seq2SeqLMOutput"
    assert output.logits.shape == (ROWS, LENGTH, TOKENS["vocab_size"])
    assert output.encoder_last_hidden_state.requires_grad
    with pytest.raises(UnsupportedModel, match="a gradient comes to one of 3 tensors that T5For"):
        output.logits.sum().backward()


def test_a_block_in_pieces_has_no_hook() -> None:
    case, graph = padded("t5"), traced("t5")
    plan = solve(profile_graph(case.model, case.inputs, None, LEAVES["t5"]), budget=10**12)
    hook = case.model.get_submodule("encoder.block.0").register_forward_hook(lambda *_: None)
    try:
        said = pytest.raises(UnsupportedModel, match=r"module 'encoder.block.0' has a hook")
        with apply_graph(plan, graph, case.model), said:
            case.model(**case.inputs)
    finally:
        hook.remove()


def test_layers_that_are_dropped_by_chance() -> None:
    """BART's own layer drop: a plan would run in every step what the first happened to run."""
    case = padded("bart")
    encoder: Any = case.model.get_submodule("model.encoder")
    encoder.layerdrop = 0.05
    try:
        with pytest.raises(UnsupportedModel, match=r"LayerDrop.*set model.model.encoder.layerdrop"):
            trace(case.model, case.inputs, LEAVES["bart"])
    finally:
        encoder.layerdrop = 0.0
