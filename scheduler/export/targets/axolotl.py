"""Axolotl: the best of its flags for checkpoints and tiles (ALST), which are the same for all.

``gradient_checkpointing`` is for every block or none, ``tiled_mlp`` for every MLP, and a loss
without logits is a plugin's. The option of the costs that a flag stands for is one of their tiles:
a block's, which may have its norms in tiles too, and of the head's the finest.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.options.tiles import tiled_alone
from scheduler.export.exported import Exported, Source, as_comment
from scheduler.plans.settings import Setting, best, blocks_of, singles
from solvers.chain.problem import Chain

_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def to_axolotl(source: Source) -> Exported:
    """Lines of its YAML within the plan's budget, and what they lose against the plan."""
    chain = source.chain
    assert source.costs is not None
    tiles = {i: tiled_alone(layer) for i, layer in enumerate(source.costs.layers)}
    reserved = source.plan.reserved_bytes
    settings = _settings(source.costs, chain, tiles)
    outcome = best(chain, settings, source.room, family="axolotl", reserved=reserved)
    setting, blocks = outcome.setting, blocks_of(chain)
    inside = next((tiles[i][name] for i, name in setting.kept if i in blocks), 0)
    head = next((tiles[i][name] for i, name in setting.kept if i not in blocks), 0)
    notes = [
        f"Axolotl's flags are the same for {source.stack()}. In place of the plan: "
        f"{setting.text}; {source.loss(outcome)}."
    ]
    lines = [f"gradient_checkpointing: {'true' if setting.segments else 'false'}"]
    if inside:
        lines += ["tiled_mlp: true", f"tiled_mlp_num_shards: {inside}"]
        notes.append("Its tiles are of MLPs alone; the costs' may have norms in them, too.")
    if head:
        lines += ["plugins:", f"  - {_PLUGIN}", "cut_cross_entropy: true"]
        notes.append(f"Its loss is taken to need what the head needs in {head} tiles.")
    text = as_comment([*source.summary(), "", *notes]) + "\n" + "\n".join(lines) + "\n"
    return Exported("axolotl", text, tuple(notes), outcome)


def _settings(
    costs: CostGraph, chain: Chain, tiles: dict[int, dict[str, int]]
) -> Iterator[Setting]:
    """Every setting, the simpler ones first."""
    blocks = blocks_of(chain)
    shared = [name for name in tiles[blocks[0]] if all(name in tiles[i] for i in blocks)]
    last = len(costs) - 1
    finest = max(tiles[last], key=lambda name: tiles[last][name], default=None)
    heads = [(), ((last, finest),)] if finest is not None and last not in blocks else [()]
    for segments, said in (((), "no checkpoints"), (singles(blocks), "every block checkpointed")):
        for name in (None, *shared):
            inside = () if name is None else tuple((i, name) for i in blocks)
            for head in heads:
                number = 0 if name is None else tiles[blocks[0]][name]
                words = [said, *([f"MLPs in {number} tiles"] if number else [])]
                words += ["the loss without logits"] if head else []
                yield Setting(", ".join(words), segments, kept=(*inside, *head))
