"""One model of the zoo put through a profile, its plans, and real steps under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scheduler.pytorch.model.step import call_model, loss_of
from tests.pytorch.zoo.models import Entry, Made, seed


class DoesNotTrain(Exception):
    """No way to make a model trains one step."""


def trained(entry: Entry) -> Callable[[], Made]:
    """A maker of the first variant of an entry that trains a step, checked by a step."""
    reasons: list[str] = []
    for place, make in enumerate(entry.makes):
        try:
            for number, made in enumerate(make()):
                try:
                    gradients = step(made)
                except Exception as error:
                    reasons.append(f"{place}.{number} {said(error)}")
                    continue
                if gradients:
                    return lambda make=make, number=number: _nth(make(), number)
                reasons.append(f"{place}.{number} no gradient")
        except Exception as error:
            reasons.append(f"{place} {said(error)}")
    raise DoesNotTrain(" | ".join(reasons))


def _nth(variants: Any, number: int) -> Made:
    return next(made for i, made in enumerate(variants) if i == number)


def step(made: Made) -> dict[str, torch.Tensor]:
    """The gradients of one step from the same random state."""
    made.model.zero_grad(set_to_none=True)
    seed()
    loss_of(call_model(made.model, made.batch), made.loss_fn).backward()
    return {n: p.grad for n, p in made.model.named_parameters() if p.grad is not None}


def said(error: BaseException) -> str:
    """An exception in one line, with the place that it came from."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({frames[-1]})"
