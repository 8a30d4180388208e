"""Run a model with its blocks left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from scheduler.common.errors import SchedulerError, UnsupportedModel
from scheduler.pytorch.model.calls import CalledBlock
from scheduler.pytorch.model.replace import replaced
from scheduler.pytorch.model.step import call_model


def call_around(model: nn.Module, inputs: Any) -> Any:
    """Call a model whose blocks pass on what they are given."""
    try:
        return call_model(model, inputs)
    except SchedulerError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"with its blocks left out the model fails ({type(error).__name__}: {error}); it uses "
            "more of its blocks than the one tensor they hand on, so they are not a chain"
        ) from error


@contextmanager
def instead(
    blocks: list[CalledBlock], run: Callable[[CalledBlock, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Call `run` in the place of every block's forward."""

    def forward_of(block: CalledBlock) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(block, args, kwargs)

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced(block.module, forward_of(block)))
        yield
