"""Run a step with a plan and without it, and compare."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.export.standalone.state import named_state
from scheduler.plans.lengths import PlansByLength, check_plan
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.followed import plan_for
from scheduler.pytorch.checkpointing.kind import within
from scheduler.pytorch.kinds import apply
from scheduler.pytorch.model.autocast import lifted
from scheduler.pytorch.model.fake import faked
from scheduler.pytorch.model.rng import GENERATORS
from scheduler.pytorch.model.step import check_loss, device_of, prepared
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of
from scheduler.pytorch.verification.counts import counted, saving
from scheduler.pytorch.verification.measure import Measurement, TrainingStep, measured
from scheduler.pytorch.verification.verdict import Verification

NOISE = 10.0
"""Where steps are not deterministic, gradients may be this many times as far apart as without."""

ROUNDING, MOST_ROUNDING = 64.0, 1 / 32
"""Under a plan with tiles gradients and loss may differ by so many units of rounding, and by that
share of the largest entry at most."""

FLOOR = 2.0**-10
"""Share of the largest entry of all gradients, below which a parameter's are compared with it."""


def verify(
    plan: Plan | PlansByLength,
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    device: str = "real",
    *,
    blocks: str | Iterable[str] = "auto",
) -> Verification:
    """Run a training step with a plan and without it, from the same start, and compare.

    Parameters
    ----------
    plan
        What to verify; of plans by length that of the batch's length.
    model
        Without a plan applied. It is left as it was: gradients, buffers, random states.
    inputs, loss_fn
        As for `profile`, or others: another batch, another length.
    device
        "real", where the model is; or "fake": no memory is taken, forwards, peak and what is left
        behind are checked, values are not.
    blocks
        As for `apply`.

    Returns
    -------
    Verification
        ``ok``, and everything compared; print it. Its ``calibrated`` is the plan with what was
        measured.

    Raises
    ------
    InvalidPlan, UnsupportedModel
        As `apply`, or what the plan runs into in the step.
    """
    if device not in ("real", "fake"):
        raise UnsupportedModel(f"device must be 'real' or 'fake', got {device!r}")
    check_plan(plan, "verify(plan, model, inputs)")
    check_loss(loss_fn)
    plan = plan_for(plan, inputs)
    model = bare(model)
    modules = dict(model.named_modules())
    chain = plan.kind == "chain"  # where each block is called once, and is one layer
    named = within(plan, model)
    names = [name for name in named.layers if chain and name and name in modules]
    blocks = blocks if isinstance(blocks, str) else list(blocks)
    apply(plan, model, blocks).remove()  # what is refused is refused before anything runs
    with ExitStack() as stack:
        if device == "fake":
            model, inputs = stack.enter_context(faked(model, inputs))

        def seen() -> Measurement:
            return measured(model, inputs, loss_fn, names, fake=device == "fake")

        def computed() -> _Values | None:
            return None if device == "fake" else _Values.of(model, inputs, loss_fn, names)

        without, values, again = seen(), computed(), computed()
        with apply(plan, model, blocks):
            found, mine = seen(), computed()
        planned = {name: named.forwards[name] for name in found.forwards}
        fewer = {name: n for name, n in found.forwards.items() if 0 < n < planned[name]}
        if fewer:
            needed = saving(model, inputs, list(fewer))
            planned |= {name: n for name, n in fewer.items() if name not in needed}
    verification = Verification(
        plan,
        device,
        gradients="not compared",
        largest_difference=0.0,
        deterministic=None,
        state="not compared",
        planned_forwards=planned,
        forwards=found.forwards,
        peak_bytes=found.peak_bytes,
        peak_bytes_without=without.peak_bytes,
        left_bytes=found.left_bytes,
        left_bytes_without=without.left_bytes,
        parted=_forwards_part(planned, found.forwards),
    )
    if values is None or again is None or mine is None:
        return verification
    return _compared(verification, values, again, mine)


@dataclass(frozen=True)
class _Values:
    """What a step computes."""

    outputs: list[tuple[str, bytes]]
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    drawn: list[bytes]
    state: dict[str, bytes]
    unit: float  # of rounding, of the least exact type that something is computed in

    def after(self, other: _Values, *, rounded: bool = False) -> bool:
        """Whether another step leaves the same; `rounded`: with a loss that may be rounded."""
        if (self.drawn, self.state) != (other.drawn, other.state):
            return False
        if rounded:
            return _farthest({"": self.loss}, {"": other.loss}, unit=self.unit).units <= ROUNDING
        return _digest(self.loss) == _digest(other.loss)

    @classmethod
    def of(
        cls, model: nn.Module, inputs: Any, loss_fn: Callable[[Any], Any] | None, names: list[str]
    ) -> _Values:
        """Run a step; the model and all random states are put back."""
        outputs: list[tuple[str, bytes]] = []

        def seen(name: str, output: Any) -> None:
            outputs.append((name, _digest(output)))

        device = device_of(model, inputs)
        with prepared(model, inputs):
            watch = _LeastExact()
            with lifted(device) as ambient, counted(model, names, seen), watch:
                loss = TrainingStep(model, inputs, loss_fn, ambient).run()
            named = model.named_parameters()
            gradients = {n: p.grad.detach().cpu() for n, p in named if p.grad is not None}
            drawn = [_digest(torch.rand(1)), *(pickle.dumps(each.read()) for each in GENERATORS)]
            if device.type == "cuda":
                drawn.append(_digest(torch.rand(1, device=device)))
            state = {name: _digest(value) for name, value in named_state(model).items()}
            return cls(outputs, loss.detach().cpu(), gradients, drawn, state, watch.unit)


class _LeastExact(OperationMode):
    """The unit of rounding of the least exact type in which operations compute."""

    unit = 0.0

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = func(*args, **kwargs)
        for tensor in tensors_of(made):
            if tensor.is_floating_point():
                self.unit = max(self.unit, torch.finfo(tensor.dtype).eps)
        return made


def _compared(found: Verification, values: _Values, again: _Values, mine: _Values) -> Verification:
    """What was found, with what is to be said of values: without the plan, again, and with it."""
    noise = _farthest(values.gradients, again.gradients).share
    deterministic = not noise and values.outputs == again.outputs and values.after(again)
    tiled = bool(found.plan.tiles)
    floor = FLOOR if tiled else 0.0
    far, units, worst = _farthest(values.gradients, mine.gradients, floor, values.unit)
    if not far:
        gradients = "equal"
    elif tiled and units <= ROUNDING and far <= MOST_ROUNDING:
        gradients = "equal to rounding"
    else:
        gradients = "within noise" if noise and far <= NOISE * noise else "different"
    state = "not compared"
    if deterministic:
        state = "equal" if values.after(mine, rounded=tiled) else "different"
    parted = found.parted
    if parted is None and deterministic and not tiled:
        parted = _outputs_part(values.outputs, mine.outputs)
    if parted is None and gradients == "different":
        parted = _gradients_part(values, mine, worst)
    if parted is None and state == "different":
        parted = _state_parts(values, mine)
    return replace(
        found,
        gradients=gradients,
        largest_difference=far,
        largest_difference_units=units,
        deterministic=deterministic,
        state=state,
        parted=parted,
    )


class _Apart(NamedTuple):
    """How far tensors are apart, as a share of a tensor's largest entry, and which is farthest.

    `units` is the most in units of rounding: of the tensor's own type, or of a less exact one in
    which the step computes.
    """

    share: float
    units: float
    name: str


def _farthest(
    one: dict[str, torch.Tensor],
    other: dict[str, torch.Tensor],
    floor: float = 0.0,
    unit: float = 0.0,
) -> _Apart:
    """How far tensors are apart, in `unit` of rounding at least.

    `floor`: no entry counts as smaller than this share of them all.

    What is zero but for rounding, as the gradient of a bias on the keys of attention, has no size
    of its own to be compared with.
    """
    far, units, worst = 0.0, 0.0, ""
    least = max((float(each.abs().max()) for each in one.values() if each.numel()), default=0.0)
    least = max(least * floor, 1e-300)
    for name in {**one, **other}:
        if name not in one or name not in other:
            return _Apart(float("inf"), float("inf"), name)
        if torch.equal(one[name], other[name]):
            continue
        a, b = one[name].double(), other[name].double()
        if torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()):
            continue  # the same steps break in the same way
        difference = float((a - b).abs().max()) / max(float(a.abs().max()), least)
        difference = difference if difference > 0 else float("inf")  # NaN on one side
        units = max(units, difference / max(torch.finfo(one[name].dtype).eps, unit))
        if difference > far:
            far, worst = difference, name
    return _Apart(far, units, worst)


def _forwards_part(planned: dict[str, int], found: dict[str, int]) -> str | None:
    for name, count in planned.items():
        if found[name] != count:
            return (
                f"The first to part is block {name!r}: its forward runs {found[name]} times, where "
                f"the plan has {count}."
            )
    return None


def _outputs_part(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> str | None:
    expected = dict(one)
    seen: set[str] = set()
    for name, digest in other:
        if digest != expected.get(name):
            when = "recomputed" if name in seen else "run forward"
            return f"The first to part is block {name!r}: its output differs when it is {when}."
        seen.add(name)
    return None


def _gradients_part(values: _Values, mine: _Values, worst: str) -> str:
    # Backward runs through the blocks from the last to the first.
    blocks = list(dict(values.outputs))
    for block in reversed(blocks):
        names = [n for n in {**values.gradients, **mine.gradients} if n.startswith(f"{block}.")]
        for name in names:
            one, other = values.gradients.get(name), mine.gradients.get(name)
            if one is None or other is None or not torch.equal(one, other):
                return (
                    f"The first to part, in the backward, is block {block!r}: the gradient of "
                    f"{name!r} differs."
                )
    return f"The gradient of {worst!r} differs, which is in no block."


def _state_parts(values: _Values, mine: _Values) -> str:
    if not torch.equal(values.loss, mine.loss):
        return "The loss differs, though every block gives the same."
    for name in {**values.state, **mine.state}:
        if values.state.get(name) != mine.state.get(name):
            return f"What the model has as {name!r} is another after the step."
    return "More or fewer random numbers are drawn."


def _digest(value: Any) -> bytes:
    """A digest by which tensors are the same bit by bit, without keeping them, and others equal."""
    digest = hashlib.blake2b(digest_size=16)
    tensors = tensors_of(value)
    if not tensors:
        digest.update(repr(value).encode())
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.digest()
