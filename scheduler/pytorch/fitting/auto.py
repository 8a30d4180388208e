"""From a model, a batch and a budget to a training step that fits, in one call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from scheduler.common.errors import InvalidBudget, SchedulerError, UnsupportedModel
from scheduler.common.text import format_bytes, shown
from scheduler.common.units import check_unit, parse_bytes, resolve_budget
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.fitting.facts import FRAGMENTATION, default_margin
from scheduler.memory.fitting.peaks import with_gradient
from scheduler.memory.gpus import Gpu
from scheduler.planning.request import percent_of
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.apply import Handle
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.fitting.choice import Choice, Request
from scheduler.pytorch.fitting.held import (
    held_state,
    named_moments,
    trained_bytes,
    without_gradient,
)
from scheduler.pytorch.fitting.watch import watched
from scheduler.pytorch.kinds import apply
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.settings import switch_off_checkpointing, switch_to_training
from scheduler.pytorch.model.step import arguments_of, check_loss, device_of, loss_of
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.tracker import unique_bytes
from scheduler.pytorch.profiling.profile import profile
from scheduler.pytorch.verification.measure import measure
from scheduler.pytorch.verification.verify import verify as compare_steps
from scheduler.report.tables import wrapped
from solvers.problem import Problem

Loss = Callable[[Any], Any]

_FEW = 20
"""Of so many bytes that train, one may have no gradient without a word."""


@dataclass
class AutoHandle:
    """A plan that `auto_checkpoint` chose and applied; a ``with`` block removes it at its end.

    Attributes
    ----------
    choice
        What was chosen, for which budget and state, and what was measured.
    """

    choice: Choice
    _handle: Handle = field(repr=False)
    _switched_off: list[tuple[nn.Module, str]] = field(repr=False)
    _watch: list[RemovableHandle] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, choice: Choice, model: nn.Module, blocks: str | Iterable[str]) -> AutoHandle:
        """Apply what was chosen before."""
        model = bare(model)
        switched_off = switch_off_checkpointing(model)
        return cls(choice, apply(choice.plan, model, blocks), switched_off)

    @property
    def plan(self) -> Plan:
        """What is applied."""
        return self.choice.plan

    def remove(self) -> None:
        """Put everything back, the model's own checkpointing too; harmless when done twice."""
        self._handle.remove()
        self.unwatched()
        for module, flag in self._switched_off:
            setattr(module, flag, True)
        self._switched_off.clear()

    def unwatched(self) -> AutoHandle:
        """The same, where somebody else sees to modes and to larger batches."""
        for hook in self._watch:
            hook.remove()
        self._watch.clear()
        return self

    def report(self) -> Coverage:
        """As of `Handle`: what the plan wants of each layer and what the model does.

        Printed, the paragraph of `auto_checkpoint` is above it.
        """
        return replace(self._handle.report(), heading=wrapped(self.choice.paragraph()))

    def __enter__(self) -> AutoHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def auto_checkpoint(
    model: nn.Module,
    inputs: Any,
    loss_fn: Loss | None = None,
    *,
    budget_gb: object = None,
    budget: object = None,
    optimizer: torch.optim.Optimizer | str | None = "adamw",
    gradient_accumulation: bool = False,
    options: bool = True,
    tiles: bool | int = False,
    margin: object = None,
    verify: bool | str = True,
    blocks: str | Iterable[str] = "auto",
    fake: bool | None = None,
    gpu: str | Gpu | None = None,
    time_limit: float = 10.0,
    quiet: bool = False,
) -> AutoHandle:
    """Train a model within a memory budget, losing as little time as can be: all in one call.

    The model is profiled, what training holds all the time is set aside, and the best plan for the
    rest is applied to it; a paragraph says what was chosen, its peak beside the budget, the time
    lost, what sets the peak and what would help most.

        handle = auto_checkpoint(model, batch, budget_gb=80, optimizer=optimizer)
        ...                                                  # train as always
        handle.remove()

    It is planned in train mode, whatever mode the model is in. A step with gradients in another
    mode, with a larger batch, or of parameters that have no gradient in this step, may need more
    memory than planned, which a warning says once.

    Set aside are the parameters and buffers (which are there already), the optimizer's state, the
    gradients where they are accumulated, DistributedDataParallel's buckets, and a margin.
    Gradients that a step makes itself, activations, inputs and temporaries are the plan's; the
    temporaries of the optimizer's step are held against the budget as well.

    Parameters
    ----------
    model, inputs, loss_fn, blocks
        As for `profile`: the model before it is sharded or compiled as a whole, a batch of the
        size to be trained, and what makes a scalar of the output where that has no ``loss``.
    budget_gb, budget
        A number of GB, or bytes or text such as ``"80GiB"``. Default: the CUDA device's memory.
    optimizer
        The optimizer, whose state is found by a step of it on stand-ins without memory; before it
        is made a name of `scheduler.memory.state.optimizers.OPTIMIZERS`; or None, for no state.
    gradient_accumulation
        Gradients of one backward are still there in the next.
    options
        Let blocks be kept in part, where they can be: not in compiled blocks, nor in graphs, nor
        where these are seen to run other operations in each call.
    tiles
        As for `profile`: let the head with its loss, and MLPs, run in tiles; gradients are then the
        model's to rounding.
    margin
        Bytes or text to leave free. Default: 3% of the budget for what an allocator cannot use,
        and on CUDA what of the device's memory is neither free nor torch's (the context and the
        libraries' workspaces; others' processes), but 1 GiB at least.
    verify
        True: run the step under the plan, within its memory, and hold forwards and peak to what
        was planned; where the peak is above, what is measured goes into the margin and another
        plan is made. "values": also compare outputs, gradients and states with those of a step
        without the plan, which needs the memory to keep everything. False: neither.
    fake, gpu
        As for `profile`. Default: fake tensors, which take no memory, and whose times are
        estimated; real ones where these cannot run the model, or it is seen to run otherwise.
    time_limit
        Seconds that the plan of a model that is no chain may take.
    quiet
        Print nothing; ``print(handle.report())`` does it later.

    Returns
    -------
    AutoHandle
        ``handle.plan``, ``handle.report()``, ``handle.remove()``; also a context manager.

    Raises
    ------
    InfeasibleBudget
        No plan fits: the smallest budget that does, with what is set aside, what sets it, and what
        would lower it.
    InvalidBudget
        There is no budget and no CUDA device.
    UnsupportedModel
        As `profile` and `apply` do; the model does not take the batch; the optimizer is of other
        parameters; or the step is not as planned.
    """
    whole, model = model, bare(model)
    check_loss(loss_fn)
    if not (isinstance(verify, bool) or verify == "values"):
        raise UnsupportedModel(f'verify must be True, False or "values", got {shown(verify)}')
    device = device_of(model, inputs)
    blocks = blocks if isinstance(blocks, str) else list(blocks)
    asked = _budget(budget_gb, budget, device)
    state, update = held_state(model, optimizer, sums=gradient_accumulation)
    switched_off = switch_off_checkpointing(model)
    modes = switch_to_training(model)
    found: AutoHandle | None = None
    try:
        ways = _Ways(blocks, options, tiles, fake, gpu)
        costs, estimated, notes = _profiled(model, inputs, loss_fn, ways)
        if switched_off:
            notes.append("the model's own gradient checkpointing was switched off")
        notes += _mode_notes(model, modes)
        if costs.noise:
            notes.append(costs.noise.removesuffix("."))

        def everything() -> int:
            problem: Problem[Any] = costs.to_problem()
            return state.total_bytes + problem.replay(problem.keep_all()).peak_bytes

        check_unit("budget", budget_gb, budget, asked, everything)
        aside = _margin(margin, asked, device)
        check_unit("margin", None, margin, aside, everything)
        trained = trained_bytes(model)
        counted = sum(layer.gradient_bytes for layer in costs.layers)
        idle: set[str] = set()
        if counted < trained:
            scalar_of = _scalar_of(costs.edges is None, loss_fn)
            idle = without_gradient(model, inputs, scalar_of, fake=estimated)
            if trained_bytes(model, idle) < counted:  # some get one that no graph shows
                idle = set()
            state, update = held_state(model, optimizer, sums=gradient_accumulation, idle=idle)
        made = trained_bytes(model, idle)
        if state.moments_bytes and trained - made > trained // _FEW:
            notes.append(
                f"parameters of {format_bytes(trained - made)} have no gradient in this step, and "
                "nothing is set aside for what the optimizer would hold of them"
            )
        if gradient_accumulation and counted == made:
            # The sums are set aside: what a backward makes passes until it is added to them.
            layers = tuple(with_gradient(each, 0, each.gradient_bytes) for each in costs.layers)
            costs = replace(costs, layers=layers)
        request = Request(
            asked,
            costs,
            state,
            trained if _has_buckets(whole) else 0,
            aside,
            unique_bytes(inputs) + update + (0 if gradient_accumulation else made),
            _smaller_moments(model, state.moments_bytes, idle),
            time_limit,
            margin is None,
        )
        check = _Step(model, inputs, loss_fn, blocks, verify)
        try:
            choice, handle = check.chosen(request, estimated, tuple(notes))
            found = AutoHandle(choice, handle, switched_off, watched(model, inputs, idle))
        except UnsupportedModel:
            # What runs may depend on values, which fake tensors have not, or change by the call.
            if estimated and fake is None and not is_fake(model):
                fake = False
            elif options:
                options = False
            else:
                raise
            for module, flag in switched_off:
                setattr(module, flag, True)
    except BaseException:
        for module, flag in switched_off:
            setattr(module, flag, True)
        raise
    finally:
        for part, mode in modes:
            part.training = mode
    if found is None:
        return auto_checkpoint(
            whole,
            inputs,
            loss_fn,
            budget_gb=budget_gb,
            budget=budget,
            optimizer=optimizer,
            gradient_accumulation=gradient_accumulation,
            options=options,
            tiles=tiles,
            margin=margin,
            verify=verify,
            blocks=blocks,
            fake=fake,
            gpu=gpu,
            time_limit=time_limit,
            quiet=quiet,
        )
    if not quiet and not is_another_rank():
        print(wrapped(found.choice.paragraph()))
    return found


@dataclass(frozen=True)
class _Step:
    """The step that is planned, and how it is verified."""

    model: nn.Module
    inputs: Any
    loss_fn: Loss | None
    blocks: str | list[str]
    verify: bool | str

    def chosen(
        self, request: Request, estimated: bool, notes: tuple[str, ...], *, again: bool = False
    ) -> tuple[Choice, Handle]:
        """The best plan, applied, its step as planned; once more with what was measured above."""
        choice = Choice(request, request.best(), estimated, notes=notes)
        if self.verify == "values":
            choice = self._compared(choice)
        if self.verify is not True:
            return choice, apply(choice.plan, self.model, self.blocks)
        try:
            with apply(choice.plan, self.model, self.blocks):
                found = measure(self.model, self.inputs, self._loss_of(choice.plan), self.blocks)
        except (SchedulerError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:  # fake tensors are less strict, of a dtype for instance
            raise _no_step(self.model, error) from error
        _check_forwards(choice.plan, found.forwards)
        above = found.peak_bytes - request.budget_bytes + request.reserved_bytes
        above -= request.state.gradients_bytes  # set aside, and made by a step from empty gradients
        if above <= 0:
            # Anew: its calls are those in training.
            handle = apply(choice.plan, self.model, self.blocks)
            return replace(choice, found=found), handle
        if again:
            raise UnsupportedModel(
                f"the step was measured {format_bytes(above)} above what is left for it, with a "
                "second plan too; give a larger margin="
            )
        off = found.peak_bytes - choice.plan.peak_bytes - request.state.gradients_bytes
        more = replace(request, margin_bytes=request.margin_bytes + max(off, above))
        note = f"a first plan was measured {format_bytes(above)} above the budget"
        notes = (*notes, f"{note}, which is in the margin now")
        return self.chosen(more, estimated, notes, again=True)

    def _loss_of(self, plan: Plan) -> Loss | None:
        return _scalar_of(plan.kind == "chain", self.loss_fn)

    def _compared(self, choice: Choice) -> Choice:
        found = compare_steps(
            choice.plan, self.model, self.inputs, self._loss_of(choice.plan), blocks=self.blocks
        )
        if not found.ok:
            raise UnsupportedModel(f"the step is not as planned, so no plan is applied: {found}")
        return replace(choice, found=found)


def _scalar_of(chain: bool, loss_fn: Loss | None) -> Loss | None:
    """What makes a scalar of the output, which may be one where the model is no chain."""
    return loss_fn if chain else loss_fn or _own_loss


def _own_loss(output: Any) -> Any:
    return output if isinstance(output, torch.Tensor) else loss_of(output, None)


def _check_forwards(plan: Plan, forwards: dict[str, int]) -> None:
    for name, planned in plan.forwards.items():
        # Fewer are none that a backward needed: the peak, which is measured, tells any other case.
        if forwards.get(name, planned) > planned:
            raise UnsupportedModel(
                f"the forward of {name!r} runs {forwards[name]} times in a step, where the plan "
                f"has {planned}, so it is not applied; scheduler.pytorch.verify tells more"
            )


class _Ways(NamedTuple):
    """How to profile, by the arguments of `auto_checkpoint`."""

    blocks: str | list[str]
    options: bool
    tiles: bool | int
    fake: bool | None
    gpu: str | Gpu | None


def _profiled(
    model: nn.Module, inputs: Any, loss_fn: Loss | None, asked: _Ways
) -> tuple[CostGraph, bool, list[str]]:
    """The costs, whether their times are estimated, and what was left out."""
    _check_taken(model, inputs)

    def seen(options: bool, fake: bool) -> CostGraph:
        how = asked._replace(options=options, fake=fake, gpu=asked.gpu if fake else None)
        # What fake tensors cannot do is tried on real ones: nobody needs torch's traceback.
        torch_s = logging.getLogger("torch._subclasses.fake_tensor")
        was, torch_s.disabled = torch_s.disabled, True
        try:
            return profile(model, inputs, loss_fn, **how._asdict())
        finally:
            torch_s.disabled = was

    either = asked.fake is None and not is_fake(model)
    ways = [True, False] if either else [asked.fake is not False]
    refusals: list[Exception] = []
    for with_options in [True, False] if asked.options else [False]:
        for faking in ways:
            try:
                costs = seen(with_options, faking)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # what the next way may do
                if isinstance(error, SchedulerError) and not isinstance(error, UnsupportedModel):
                    raise  # of a setting
                refusals.append(error)
                continue
            left_out = asked.options and not with_options
            return costs, faking, ["options were left out"] if left_out else []
    refusal = refusals[-1]
    if isinstance(refusal, SchedulerError):
        raise refusal
    raise _no_step(model, refusal) from refusal


def _no_step(model: nn.Module, error: Exception) -> UnsupportedModel:
    """What there is to say of a step that a model does not run."""
    return UnsupportedModel(
        f"{type(model).__name__} does not run a step on this batch "
        f"({type(error).__name__}: {error}); give what the model is called with in training, "
        "as a tensor, a tuple of arguments or a dict of keyword arguments, and loss_fn"
    )


def _mode_notes(model: nn.Module, modes: list[tuple[nn.Module, bool]]) -> list[str]:
    """What there is to say of the modes that a model's modules were in."""
    kind = type(model).__name__
    if not all(mode for part, mode in modes if part is model):
        return [
            f"{kind} is in eval mode, as from_pretrained leaves it, and is planned in train mode; "
            "call model.train() before training"
        ]
    still = [name for name, part in model.named_modules() if not part.training]
    if not still:
        return []
    return [
        f"{still[0]!r} of {kind} is in eval mode, and is planned so; where it is to train, call "
        "model.train() and auto_checkpoint again"
    ]


def _check_taken(model: nn.Module, inputs: Any) -> None:
    """Raise `UnsupportedModel` where a model's forward has no such arguments."""
    args, kwargs = arguments_of(inputs)
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UnsupportedModel(
            f"{type(model).__name__} does not take this batch: {error}; give the arguments that "
            "its forward has, as a tensor, a tuple, or a dict of keyword arguments"
        ) from error


def _budget(budget_gb: object, budget: object, device: torch.device) -> int:
    if budget_gb is not None or budget is not None:
        return resolve_budget(budget_gb, budget)
    if device.type != "cuda":
        raise InvalidBudget(
            f"no CUDA and no budget: the model is on {device.type!r}; pass budget_gb=80, for "
            "instance, or move the model to the GPU first"
        )
    return int(torch.cuda.mem_get_info(device)[1])


def _margin(margin: object, budget: int, device: torch.device) -> int:
    if margin is not None:
        return parse_bytes(margin, what="margin", allow_zero=True)
    share = percent_of(budget, FRAGMENTATION)
    if device.type != "cuda":
        return share
    free, total = torch.cuda.mem_get_info(device)
    others = int(total - free - torch.cuda.memory_reserved(device))
    return max(default_margin(budget), others + share)


def _smaller_moments(model: nn.Module, moments: int, idle: set[str]) -> int | None:
    return named_moments(model, "adam-8bit", idle) if moments else None


def _has_buckets(model: nn.Module) -> bool:
    """Whether gradients are copied to buckets: where it is not known, it is assumed."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return False
    return isinstance(model, nn.parallel.DistributedDataParallel) or dist.get_world_size() > 1


def is_another_rank() -> bool:
    """Whether another process of a distributed run says what there is to say."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_rank() > 0
