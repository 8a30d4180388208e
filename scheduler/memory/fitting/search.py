"""The largest sizes that still fit, by doubling and bisection, and where a model itself ends."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.common.errors import SchedulerError
from scheduler.common.files import read_text
from scheduler.common.jsontext import parse_json
from scheduler.memory.errors import InvalidRecipe, InvalidShape
from scheduler.memory.fitting.peaks import moments, smallest_peak
from scheduler.memory.fitting.training import Training
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.locate import as_record, config_path
from scheduler.memory.shape.shape import Shape

MOST_SEQUENCES, MOST_TOKENS = 2**20, 2**24
"""Where the searches for the largest batch and the longest sequence end."""

_FIELD = "max_position_embeddings"
_SHIPPED = {
    "llama-7b": 2048,
    "llama-3-8b": 8192,
    "llama-3-70b": 8192,
    "mistral-7b": 32768,
    "mixtral-8x7b": 32768,
    "qwen2.5-72b": 131072,
    "deepseek-v3": 163840,
    "gemma-3-1b": 32768,
    "glm-4-9b-0414": 32768,
    "gpt-oss-20b": 131072,
}
"""`max_position_embeddings` of the shipped shapes, as their released config.json has it.

Llama (2048), Meta-Llama-3 (8192; Llama 3.1 has 131072), Mistral-7B-v0.1 and Mixtral-8x7B-v0.1
(32768), Qwen2.5-72B (131072; the Instruct model's has 32768), DeepSeek-V3, Gemma-3-1B (32768),
GLM-4-9B-0414, gpt-oss-20b. The shapes leave it out: no size depends on it.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest sizes that fit, 0 where not even 1 does.

    Attributes
    ----------
    batch, sequence
        The largest batch at the sequence that was asked, the longest sequence at the batch that
        was, with nothing checkpointed.
    batch_checkpointed, sequence_checkpointed
        The same with the best checkpointing.
    most_sequence
        Where the search for a sequence ends: learned positions, or 2²⁴.
    """

    batch: int
    batch_checkpointed: int
    sequence: int
    sequence_checkpointed: int
    most_sequence: int


def trained_positions(
    source: Shape | Mapping[str, object] | str | os.PathLike[str], shape: Shape
) -> int | None:
    """Tokens that a model has positions for, as it was released; None where nothing says it.

    Nor is there a choice where images make the tokens.

    Learned positions are rows of a table: no sequence can be longer. Rotary positions are computed,
    so longer ones run, but the model has not met them. `source` is what `load_shape` was given; a
    file is read again, since a shape does not hold this.
    """
    if shape.fixed_sequence:
        return None
    if shape.positions:
        return shape.longest
    source = as_record(source)
    if isinstance(source, Mapping):
        return _positive(source.get(_FIELD))
    known = _SHIPPED.get(shape.name)
    if known is not None and shape == load_shape(shape.name):
        return known
    if isinstance(source, Shape):
        return None
    try:
        path = config_path(source)
        config = parse_json(read_text(path, "config", InvalidShape), path, InvalidShape)
    except SchedulerError:
        # A pipe, which gives its text once.
        return None
    return _positive(config.get(_FIELD)) if isinstance(config, Mapping) else None


def _positive(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and isinstance(value, int) and value > 0 else None


def largest(fits: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """The largest n from 0 to `most` with `fits(n)`, where no n fits that is above one that fails.

    Zero is taken to fit. Calls are about 2·log2 of the answer over the guess.
    """
    good, trial = 0, max(1, min(guess, most))
    while good < most and fits(trial):
        good, trial = trial, min(2 * trial, most)
    return bisect_left(range(1, trial), True, lo=good, key=lambda n: not fits(n))


def find_limits(training: Training, batch: int, sequence: int, available: int) -> Limits:
    """All four, each by the definition that `Fit.fits` and `Fit.plan` use."""
    temporaries = training.temporaries_bytes()

    def fits(batch: int, sequence: int, checkpointed: bool) -> bool:
        try:
            costs = training.costs(batch, sequence)
        except InvalidRecipe:
            # All but its size has been checked before: it is too large to count.
            return False
        loss, layer, optimizer = (moment.bytes for moment in moments(costs, temporaries))
        if optimizer > available:
            return False
        if max(loss, layer) <= available:
            return True
        return checkpointed and smallest_peak(costs)[0] <= available

    longest = training.shape.longest or MOST_TOKENS

    def most_batch(checkpointed: bool) -> int:
        return largest(lambda n: fits(n, sequence, checkpointed), MOST_SEQUENCES, batch)

    def most_sequence(checkpointed: bool) -> int:
        return largest(lambda n: fits(batch, n, checkpointed), longest, sequence)

    return Limits(
        batch=most_batch(False),
        batch_checkpointed=most_batch(True),
        sequence=most_sequence(False),
        sequence_checkpointed=most_sequence(True),
        most_sequence=longest,
    )
