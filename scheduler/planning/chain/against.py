"""Settings that people have, in words, as plans: to see how far they are from the optimum."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from scheduler.common.errors import SchedulerError
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.options.tiles import tiled_alone
from scheduler.plans.settings import (
    TRACED_SELECTIVE,
    Cut,
    Setting,
    blocks_of,
    even,
    every,
    every_last,
    first,
    option_blocks,
    option_settings,
    singles,
    uniform,
)
from solvers.chain.problem import Chain
from solvers.chain.segments import Segments

FORMS = {
    "all": "every block, a checkpoint each",
    "none": "keep everything",
    "every N": "one block in N, a checkpoint each, from the first on",
    "stride N": "checkpoints of N blocks, one after the other",
    "layers: 0,3,7-9": "these, a checkpoint each: numbers of blocks, or names of layers",
    "option: NAME": "every block that has options kept under this one of the costs",
    "checkpoint_sequential N": "torch's: N segments, the last of which is kept",
    "transformers: gradient_checkpointing": "every block (activation_checkpointing too)",
    "transformers: every_n_layers N": "as every N",
    "megatron: full block N": "the first N blocks, a checkpoint each",
    "megatron: full uniform N": "as stride N",
    "megatron: selective MODULE+MODULE": "every block kept under the option of this name",
    "deepspeed: number_checkpoints N": "the blocks in N checkpoints of about equal length",
    "torchtitan: full": "every block",
    "torchtitan: selective N": "one block in N, a checkpoint each, from the Nth on",
}
"""The forms that exist, and what each means. `settings.blocks_of` says what a block is."""

_Reader = Callable[[str, Chain], Setting]

_TRACED_ATTENTION = "save-attention"  # of blocks that were looked into
_OF_A_CURVE = re.compile(r"save-\d+(\.\d+)?%\+*|(.*-)?tiles-\d+")
"""Options that come from a block's Pareto set or its tiles, not from people."""


def read_settings(given: object, chain: Chain) -> list[Setting]:
    """Settings from a text or several, each once."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable):
        raise SchedulerError(f"a setting is a text such as 'every 4', got {shown(given)}")
    found = [read_setting(text, chain) for text in texts]
    return list({setting.text: setting for setting in found}.values())


def read_setting(text: object, chain: Chain) -> Setting:
    """The setting that a text names, as segments of `chain`."""
    if not isinstance(text, str):
        raise SchedulerError(f"a setting is a text such as 'every 4', got {shown(text)}")
    words = re.sub(r"\s*:\s*", ": ", " ".join(text.split()))
    for pattern, reader in _READERS:
        if match := re.fullmatch(pattern, words, re.IGNORECASE):
            setting = reader(match.group(1) if match.groups() else "", chain)
            return Setting(words, setting.segments, setting.number, setting.option)
    forms = "; ".join(FORMS)
    hint = did_you_mean(words, FORMS)
    raise SchedulerError(f"unknown setting {shown(text)}; the forms are: {forms}{hint}")


def hand_made(chain: Chain) -> list[Setting]:
    """The policies that people choose by hand, of those that every block with options has."""
    if not any(layer.recomputable and layer.options for layer in chain.layers):
        return []
    return [
        setting
        for setting in option_settings("option:", chain)
        if not _OF_A_CURVE.fullmatch(setting.option or "")
    ]


def tiled_by_hand(costs: CostGraph, chain: Chain) -> list[Setting]:
    """ALST's recipe, where the costs have tiles: each block a checkpoint, all in finest tiles."""
    tiles = {i: tiled_alone(layer) for i, layer in enumerate(costs.layers)}
    finest = {i: max(mine, key=lambda name: mine[name]) for i, mine in tiles.items() if mine}
    if not finest:
        return []
    inside = any(costs.layers[i].recomputable for i in finest)
    what = "MLP and loss" if inside else "loss"
    text = f"ALST: checkpoints, {what} tiled"
    kept = tuple(finest.items())
    return [Setting(text, singles(blocks_of(chain)), kept=kept)]


def describe(setting: Setting, chain: Chain) -> str:
    """What a setting does to a chain, as a sentence."""
    every = blocks_of(chain)
    blocks = [chain.layers[i].name for i in every]
    stack = f"{len(blocks)} blocks {blocks[0]!r} to {blocks[-1]!r}"
    if setting.option is not None:
        inside = len(option_blocks(chain))
        which = f"the {stack}" if inside == len(every) else f"of the {stack}, {inside}"
        return f"{which} {'is' if inside == 1 else 'are'} kept under option {setting.option!r}."
    inside = sum(last - first + 1 for first, last in setting.segments)
    if not inside:
        return f"the {stack} are kept."
    count = len(setting.segments)
    verb, several = "is" if inside == 1 else "are", "s" if count > 1 else ""
    return f"of the {stack}, {inside} {verb} recomputed, in {count} checkpoint{several}."


def _all(_: str, chain: Chain) -> Setting:
    return Setting("", singles(blocks_of(chain)))


def _none(_: str, chain: Chain) -> Setting:
    return Setting("", ())


def _cut(cut: Cut) -> _Reader:
    """The reader of a number by which blocks are cut."""

    def read(number: str, chain: Chain) -> Setting:
        blocks = blocks_of(chain)
        if not 1 <= int(number) <= len(blocks):
            raise SchedulerError(
                f"{number} is no number of the {len(blocks)} blocks of these costs; give 1 to "
                f"{len(blocks)}"
            )
        return Setting("", cut(blocks, int(number)), int(number))

    return read


def _sequential(blocks: Sequence[int], parts: int) -> Segments:
    # torch.utils.checkpoint.checkpoint_sequential: equal segments, and what is left over is kept.
    length = len(blocks) // parts
    return uniform(blocks[: length * (parts - 1)], length)


def _layers(listed: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    names = {layer.name: i for i, layer in enumerate(chain.layers)}
    chosen: set[int] = set()
    for part in (part.strip() for part in listed.split(",")):
        if span := re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part):
            first, last = int(span[1]), int(span[2] or span[1])
            if not first <= last < len(blocks):
                raise SchedulerError(
                    f"there are no layers {part!r}: the {len(blocks)} blocks of these costs have "
                    f"the numbers 0 to {len(blocks) - 1}"
                )
            chosen.update(blocks[first : last + 1])
        elif part in names:
            if not chain.layers[names[part]].recomputable:
                raise SchedulerError(f"layer {part!r} must be kept; leave it out")
            chosen.add(names[part])
        else:
            raise SchedulerError(
                f"there is no layer {shown(part)}{did_you_mean(part, names)}; give numbers of "
                f"blocks, 0 to {len(blocks) - 1}, or names of layers"
            )
    return Setting("", singles(sorted(chosen)))


def _option(name: str, chain: Chain) -> Setting:
    for i in option_blocks(chain) or blocks_of(chain):
        layer = chain.layers[i]
        if name not in {option.name for option in layer.options}:
            known = ", ".join(repr(option.name) for option in layer.options) or "none"
            raise SchedulerError(
                f"layer {layer.name!r} has no option {name!r} (it has: {known}); describe what it "
                "saves and recomputes as an option of the costs"
            )
    return Setting("", (), option=name)


def _selective(modules: str, chain: Chain) -> Setting:
    name = "+".join(re.split(r"[+,\s]+", modules.strip())) or "core_attn"
    known = {option.name for i in option_blocks(chain) for option in chain.layers[i].options}
    if name == "core_attn" and name not in known and TRACED_SELECTIVE in known:
        name = TRACED_SELECTIVE
    if name == "core_attn" and name not in known and _TRACED_ATTENTION in known:
        raise SchedulerError(
            "'megatron: selective core_attn' saves nothing in these blocks, which keep no more of "
            "their attention than it reads (fused attention keeps no scores): there it is 'none', "
            "which can be compared in its place"
        )
    return _option(name, chain)


_READERS: tuple[tuple[str, _Reader], ...] = (
    ("all", _all),
    ("none", _none),
    (r"every (\d{1,9})", _cut(every)),
    (r"stride (\d{1,9})", _cut(uniform)),
    (r"layers: (.+)", _layers),
    (r"option: (.+)", _option),
    (r"checkpoint_sequential (\d{1,9})", _cut(_sequential)),
    (r"transformers: (?:gradient|activation)_checkpointing", _all),
    (r"transformers: every_n_layers (\d{1,9})", _cut(every)),
    (r"megatron: full block (\d{1,9})", _cut(first)),
    (r"megatron: full uniform (\d{1,9})", _cut(uniform)),
    (r"megatron: selective(.*)", _selective),
    (r"deepspeed: number_checkpoints (\d{1,9})", _cut(even)),
    (r"torchtitan: full", _all),
    (r"torchtitan: selective (\d{1,9})", _cut(every_last)),
)
