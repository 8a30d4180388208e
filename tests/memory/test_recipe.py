"""A `Recipe` is checked once, and is the same to all that take it, however it is spelled."""

from __future__ import annotations

import pickle
from dataclasses import asdict, fields, replace
from typing import Any, get_type_hints

import pytest

from scheduler import UnsupportedModel
from scheduler.cli.modelargs import NOT_OPTIONS, OPTIONS
from scheduler.memory import (
    InvalidRecipe,
    InvalidShape,
    Lora,
    Recipe,
    costs_from_shape,
    fit,
    load_shape,
    training_state,
)
from scheduler.memory.errors import Argument, NoFormula
from scheduler.memory.recipe import RecipeFields

P = 124_439_808  # of gpt2
SPELLED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "precision": {"precision": "fp32"},
    "fp16": {"precision": "fp16-mixed", "optimizer": "lion"},
    "sharded": {"zero": 3, "gpus": 8, "optimizer": "adam-8bit"},
    "fsdp": {"zero": "fsdp", "gpus": 4, "precision": "bf16"},
    "accumulated": {"gradient_accumulation": True, "gradient_dtype": "bf16"},
    "frozen": {"train": "frozen", "base": "nf4", "update": "foreach"},
    "adapters": {"train": "lora", "lora": Lora(8, ("qkv",), "fp32", 0.1), "base": "nf4-double"},
    "attention": {"attention": "eager", "loss": "chunked", "padding_mask": True},
    "device": {"device": "cpu", "loss": "bf16"},
}


@pytest.mark.parametrize("name", SPELLED)
def test_a_recipe_is_its_fields(name: str) -> None:
    spelled = SPELLED[name]
    recipe = Recipe(**spelled)
    counts: dict[str, Any] = {"lora_parameters": 10**6} if recipe.lora else {}
    states = [
        training_state(P, recipe=recipe, **counts),
        training_state(P, **spelled, **counts),
        training_state(P, recipe=Recipe(), **spelled, **counts),
    ]
    assert states[0] == states[1] == states[2]
    both: tuple[dict[str, Any], ...] = (spelled, {"recipe": recipe})
    costs = [costs_from_shape("gpt2", 2, 64, **how) for how in both]
    assert costs[0] == costs[1]
    found = [fit("gpt2", sequence=64, search=False, **how) for how in both]
    assert found[0] == found[1]
    assert str(found[0]) == str(found[1])
    assert found[0].to_dict() == found[1].to_dict()
    assert found[0].training.recipe == recipe


def test_a_keyword_replaces_the_field() -> None:
    recipe = Recipe(optimizer="lion", zero=1, gpus=4, attention="eager", loss="bf16")
    other: dict[str, Any] = {"optimizer": "sgd", "attention": "sdpa"}
    changed = replace(recipe, **other)
    assert training_state(P, recipe=recipe, **other) == training_state(P, recipe=changed)
    assert training_state(P, recipe=recipe) != training_state(P, recipe=changed)
    one = costs_from_shape("gpt2", 1, 64, recipe=recipe, **other)
    two, plain = (costs_from_shape("gpt2", 1, 64, recipe=how) for how in (changed, recipe))
    assert one == two != plain
    assert fit("gpt2", recipe=recipe, search=False, **other).training.recipe == changed


def test_what_trains_is_read_from_the_recipe() -> None:
    assert training_state(P, train="frozen") == training_state(P, trainable_parameters=0)
    lora = Recipe(train="lora", lora=Lora(8, dtype="fp32"))
    explicit: dict[str, Any] = {"lora_parameters": 1000, "lora_dtype": "fp32"}
    assert training_state(P, recipe=lora, lora_parameters=1000) == training_state(P, **explicit)
    # In the dtype that is computed in, adapters train by the model's own recipe.
    own = training_state(P, train="lora", lora=Lora(8), lora_parameters=1000)
    assert own == training_state(P, lora_parameters=1000)
    with pytest.raises(InvalidRecipe, match="needs lora_parameters, how many") as caught:
        training_state(P, recipe=lora)
    assert caught.value.argument == "lora_parameters"


def test_defaults_and_plain_values() -> None:
    assert Recipe() == Recipe(precision="bf16-mixed", zero=0, gpus=None, lora=None)
    recipe = Recipe(gpus=8.0, zero=2, tensor_parallel=2.0, sequence_parallel=True)  # type: ignore[arg-type]
    assert (recipe.gpus, recipe.tensor_parallel) == (8, 2)
    assert type(recipe.gpus) is type(recipe.tensor_parallel) is int
    assert recipe.sharding.data == 4
    assert hash(recipe) == hash(replace(recipe))
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    with pytest.raises(AttributeError):
        recipe.zero = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Recipe("fp32")  # type: ignore[call-arg]
    with pytest.raises(InvalidRecipe, match="presicion is no setting of a"):
        costs_from_shape("gpt2", 1, 8, presicion="fp32")  # type: ignore[call-arg]


def test_what_is_computed_in_may_be_named() -> None:
    for named, recipe in (("fp16", "fp16-mixed"), ("bf16", "bf16-mixed")):
        one, two = (costs_from_shape("gpt2", 1, 64, precision=name) for name in (named, recipe))
        assert one == two
    assert Recipe(precision="fp16-mixed").compute == "fp16"
    assert Recipe(precision="autocast").compute == "autocast"


@pytest.mark.parametrize(
    ("given", "argument", "sentence"),
    [
        ({"precision": "int8"}, "precision", "precision must be one of 'bf16-mixed', "),
        ({"precision": "fp16"}, "precision", "precision='fp16' names what costs_from_shape"),
        ({"optimizer": "adamm"}, "optimizer", "did you mean 'adam'?"),
        ({"zero": 4}, "zero", "zero must be 0, 1, 2, 3 or 'fsdp', got 4"),
        ({"gpus": 0}, "gpus", "gpus must be a whole number >= 1, got 0"),
        ({"gpus": 3, "tensor_parallel": 2}, "gpus", "gpus must be a multiple of tensor_parallel·"),
        ({"train": "some"}, "train", "train must be one of 'full', 'frozen', 'lora', got 'some'"),
        ({"train": None}, "train", "train must be one of 'full', 'frozen', 'lora', got None"),
        ({"train": "lora"}, "lora", "train='lora' and lora=Lora(...) go together"),
        ({"lora": "r=8"}, "lora", "lora must be Lora(rank=..., targets=...), got 'r=8'"),
        ({"train": "lora", "lora": Lora(0)}, "lora", "the rank of lora must be a whole number"),
        ({"attention": "flash"}, "attention", "attention must be one of 'sdpa', 'eager', got"),
        ({"loss": "ce"}, "loss", "loss must be one of 'hf', 'hf-outputs-kept', 'bf16', 'chunked'"),
        ({"base": "int4"}, "base", "base must be one of 'fp32', "),
        ({"update": "loop"}, "update", "update must be one of 'fused', 'foreach', got 'loop'"),
        ({"gradient_dtype": "fp8"}, "gradient_dtype", "gradient_dtype must be one of 'fp32', "),
        ({"gradient_accumulation": 1}, "gradient_accumulation", "must be True or False, got 1"),
        ({"padding_mask": "no"}, "padding_mask", "padding_mask must be True or False, got 'no'"),
        ({"device": "tpu"}, "device", "device must be one of 'cuda', 'cpu', got 'tpu'"),
        ({"experts": "one"}, "experts", "experts must be one of 'grouped', 'batched', 'eager'"),
        ({"pipeline_parallel": 0}, "pipeline_parallel", "pipeline_parallel must be a whole number"),
        ({"sequence_parallel": True}, "sequence_parallel", "divides tokens over the GPUs of"),
        ({"runtime": "jax"}, "runtime", "runtime must be one of 'torch', 'megatron', got 'jax'"),
    ],
)
def test_a_bad_field_is_named(given: dict[str, Any], argument: str, sentence: str) -> None:
    takers = (
        lambda: Recipe(**given),
        lambda: training_state(P, **given),
        lambda: training_state(P, recipe=Recipe(), **given),
    )
    for taker in takers:
        with pytest.raises(InvalidRecipe) as caught:
            taker()
        assert sentence in str(caught.value)
        assert caught.value.argument == argument
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.argument) == (str(caught.value), argument)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"train": "frozen", "gradient_dtype": "fp32"}, "gradient_dtype"),
        ({"train": "frozen", "gradient_accumulation": True}, "gradient_accumulation"),
        ({"base": "nf4"}, "base"),
        ({"train": "lora", "lora": Lora(8, "x")}, "lora"),
        ({"train": "lora", "lora": Lora(10**7)}, "lora"),
        ({"expert_parallel": 2}, "expert_parallel"),
        ({"btach": 2}, "btach"),
    ],
)
def test_what_fit_refuses_is_named(given: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        fit("gpt2", **given)
    assert caught.value.argument == argument


def test_what_is_no_recipe() -> None:
    bad: Any = {"precision": "fp32"}
    for taker in (
        lambda: training_state(P, recipe=bad),
        lambda: costs_from_shape("gpt2", 1, 8, recipe=bad),
        lambda: fit("gpt2", recipe=bad),
    ):
        with pytest.raises(
            InvalidRecipe, match=r"recipe must be a Recipe\(\.\.\.\), got"
        ) as caught:
            taker()
        assert caught.value.argument == "recipe"


def test_a_sentence_can_be_spelled_in_another_way() -> None:
    with pytest.raises(InvalidRecipe) as caught:
        fit("gpt2", base="nf4")
    said = "stores weights that do not train; say"
    assert str(caught.value) == f"base='nf4' {said} train='lora' or train='frozen'"
    spelled = caught.value.spelled(lambda argument: f"<{argument.name}>")
    assert spelled == f"<base> {said} <train> or <train>"
    with pytest.raises(NoFormula) as unsupported:
        costs_from_shape("gpt2", 1, 8, precision="autocast", attention="eager")
    assert isinstance(unsupported.value, UnsupportedModel)
    assert unsupported.value.argument == "precision"
    with pytest.raises(InvalidShape) as shape:
        load_shape("no-such-model")
    assert shape.value.argument is None
    assert str(Argument("flops_efficiency", of=" of h100")) == "flops_efficiency of h100"


def test_the_keyword_arguments_are_the_fields() -> None:
    hints = get_type_hints(Recipe)
    assert list(get_type_hints(RecipeFields).items()) == [
        (one.name, hints[one.name]) for one in fields(Recipe)
    ]
    for one in fields(Recipe):
        assert f"{one.name}\n" in Recipe.__doc__.replace(",", "\n"), one.name  # type: ignore[union-attr]


def test_every_field_is_on_the_command_line_or_listed_as_not() -> None:
    names = {one.name for one in fields(Recipe)}
    given = {option.argument for option in OPTIONS} & names
    assert given | {*NOT_OPTIONS} == names
    assert not given & {*NOT_OPTIONS}
    of_fit = {option.argument for option in OPTIONS} - names
    assert of_fit == {"gpu", "batch", "sequence", "efficiency", "options", "tiles", "margin"}


def test_every_field_is_in_the_record_of_a_fit() -> None:
    record = fit("gpt2", search=False).to_dict()
    assert asdict(Recipe()).keys() <= record.keys()
