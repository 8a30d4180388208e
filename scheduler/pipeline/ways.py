"""What people set by hand in a pipeline, each as cuts and plans that are replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scheduler.export.targets.megatron import flag_settings, selective_options
from scheduler.plans.settings import Setting, blocks_of, singles, stages_of
from solvers.chain.problem import Chain
from solvers.methods import Limits
from solvers.pipeline import solve as solver
from solvers.pipeline.problem import Pipeline
from solvers.pipeline.replay import replay
from solvers.schedule import Item

Cuts = tuple[int, ...]


@dataclass(frozen=True)
class Way:
    """Cuts and plans, replayed.

    Attributes
    ----------
    time
        Of a step, in the problem's unit.
    peaks, lacking
        Bytes that each device needs at most, and by how many that is over its budget.
    setting
        Of the first stage, where one is set.
    """

    name: str
    time: float
    peaks: tuple[int, ...]
    lacking: tuple[int, ...]
    setting: Setting | None = None

    @property
    def fits(self) -> bool:
        """Whether each stage is within its budget."""
        return max(self.lacking) <= 0


def way_of(
    pipeline: Pipeline,
    name: str,
    cuts: Cuts,
    plans: Sequence[Sequence[Item]],
    setting: Setting | None = None,
) -> Way:
    """Replay them."""
    done = replay(pipeline, cuts, plans)
    end = max(each.runs[-1].end for each in done)
    peaks = tuple(each.peak_bytes for each in done)
    over = tuple(peak - room for peak, room in zip(peaks, pipeline.budgets, strict=True))
    return Way(name, end, peaks, over, setting)


def even_cuts(chain: Chain, stages: int, less: int = 0) -> Cuts | None:
    """As many blocks in each stage, what is before and behind them in the first and the last.

    `less`: what is before, and what is behind, count as so many blocks, as torchtitan's
    ``pipeline_parallel_first_stage_less_layers`` and its twin of the last stage have it. None
    where a stage would have no layer.
    """
    blocks = blocks_of(chain)
    units = stages_of(range(-less, len(blocks) + less), stages)
    starts = [blocks[run[0]] for run in units[1:] if 0 < run[0] < len(blocks)]
    cuts = (0, *starts, len(chain))
    return cuts if len(cuts) == stages + 1 else None


def with_cuts(pipeline: Pipeline, name: str, cuts: Cuts, limits: Limits) -> Way | None:
    """The best plan of each stage, which together are the best for these cuts.

    None where one has no plan: with the cuts given a step never takes less when a stage does more.
    """
    try:
        found = solver.solve(pipeline, limits, cuts)
    except solver.Infeasible:
        return None
    return way_of(pipeline, name, cuts, found.plans)


def by_setting(
    pipeline: Pipeline, cuts: Cuts, families: Iterable[Sequence[Setting]]
) -> Iterator[Way]:
    """What the same setting does on all stages, for settings that have one for each."""
    chains = _chains(pipeline, cuts)
    for settings in families:
        plans = [each.items(chain)[:-1] for each, chain in zip(settings, chains, strict=True)]
        yield way_of(pipeline, settings[0].text, cuts, plans, settings[0])


def full(pipeline: Pipeline, cuts: Cuts) -> Way:
    """Every layer that can be recomputed is, alone."""
    plans = []
    for chain in _chains(pipeline, cuts):
        free = singles(i for i, layer in enumerate(chain.layers) if layer.recomputable)
        plans.append(Setting("", free).items(chain)[:-1])
    return way_of(pipeline, "full recomputation, even cuts", cuts, plans)


def megatron_settings(pipeline: Pipeline, cuts: Cuts) -> list[tuple[Setting, ...]]:
    """Megatron's recompute flags, each once for all stages."""
    options = selective_options(pipeline.chain)
    blocks = [_blocks(chain) for chain in _chains(pipeline, cuts)]
    most = max(map(len, blocks))
    families = [list(flag_settings(options, each, most)) for each in blocks]
    # A stage without blocks, such as the head alone, has nothing to set.
    nothing = [Setting(each.text, ()) for each in families[0]]
    return list(
        zip(
            *(family if each else nothing for family, each in zip(families, blocks, strict=True)),
            strict=True,
        )
    )


def best_of(ways: Iterable[Way]) -> Way:
    """The fastest that fits, else that which lacks least."""
    return min(ways, key=lambda way: (max(*way.lacking, 0), way.time, max(way.peaks)))


def _blocks(chain: Chain) -> tuple[int, ...]:
    return blocks_of(chain) if any(layer.recomputable for layer in chain.layers) else ()


def _chains(pipeline: Pipeline, cuts: Cuts) -> list[Chain]:
    """Each stage's layers, and one behind them: each of them may be recomputed."""
    return [pipeline.stage_chain(first, end - 1) for first, end in pairwise(cuts)]
