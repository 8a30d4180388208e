"""A model's name on the Hub, as far as transformers has its config; nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from scheduler import InvalidCosts, solve
from scheduler.cli.main import main
from scheduler.memory import InvalidShape, fit, load_shape

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=320,
    max_position_embeddings=77,
    pad_token_id=None,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache as ``hf download`` leaves it; an empty one is looked at."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, name: str) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    CONFIG.save_pretrained(folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")


def test_a_cached_config(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "some-org/Some-Model_1.5")
    put(cache, "old-name")
    monkeypatch.setattr("socket.socket.connect", None)  # nobody is asked
    shape = load_shape("some-org/Some-Model_1.5")
    assert (shape.name, shape.layers, shape.vocabulary) == ("some-org/Some-Model_1.5", 2, 320)
    assert load_shape("old-name").layers == 2
    # As transformers itself would find it.
    known: Any = AutoConfig.from_pretrained(
        "some-org/Some-Model_1.5", cache_dir=cache, local_files_only=True
    )
    assert load_shape(known).parameters == load_shape(CONFIG).parameters == shape.parameters
    for source in ("some-org/Some-Model_1.5", CONFIG):
        assert fit(source, sequence=16, search=False).trained_positions == 77
    asked = ["--model", "some-org/Some-Model_1.5", "--sequence", "16", "--no-search"]
    assert main(["fit", *asked]) == 0
    assert "some-org/Some-Model_1.5, 0.1" in capsys.readouterr().out


def test_what_is_not_cached_is_one_sentence(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidShape, match=r": hf download some-org/x config.json$") as caught:
        load_shape("some-org/x")
    assert f"of this name is not in Hugging Face's cache, {cache}; " in str(caught.value)
    assert main(["fit", "--model", "some-org/x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "hf download some-org/x config.json" in said
    with pytest.raises(InvalidShape, match="there is no shape 'lama-7b'; did you mean 'llama-7b'"):
        load_shape("lama-7b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidShape, match="pip install transformers, or give the path to its"):
        load_shape("some-org/x")
    with pytest.raises(InvalidShape, match="there is no shape 'lama-7b'"):
        load_shape("lama-7b")


def test_models_and_configs_in_the_place_of_others() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InvalidShape, match=r"got a model \(Linear\) in the place of its shape"):
        load_shape(model)
    with pytest.raises(InvalidCosts, match=r"got a config \(LlamaConfig\) .*costs_from_shape"):
        solve(CONFIG, budget_gb=1)
    trainer: Any = type("Trainer", (), {"model": model})()
    with pytest.raises(InvalidCosts, match=r"got a Trainer .*profile\(….model, inputs\)"):
        solve(trainer, budget_gb=1)
    with pytest.raises(InvalidCosts, match=r"costs_from_shape\('llama-3-8b', batch, sequence\)"):
        solve("llama-3-8b", budget_gb=1)
