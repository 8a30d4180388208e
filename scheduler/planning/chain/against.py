"""Settings that people have, in words, as plans: to see how far they are from the optimum."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from scheduler.common.errors import SchedulerError
from scheduler.common.text import did_you_mean, shown
from scheduler.plans.settings import (
    TRACED_SELECTIVE,
    Setting,
    block_settings,
    blocks_of,
    even_settings,
    every_settings,
    option_blocks,
    option_settings,
    uniform_settings,
)
from solvers.chain.problem import Chain

__all__ = ["FORMS", "describe", "hand_made", "read_setting", "read_settings"]

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
"""The forms that exist, and what each means. `flags.blocks_of` says what a block is."""

_Reader = Callable[[str, Chain], Setting]

_OF_A_CURVE = re.compile(r"save-\d+(\.\d+)?%\+*")
"""Options that come from a block's Pareto set, not from people."""


def read_settings(given: object, chain: Chain) -> list[Setting]:
    """Settings from a text or several.

    Raises
    ------
    SchedulerError
        One is no text, has no form that exists, or does not suit the chain.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable):
        raise SchedulerError(f"a setting is a text such as 'every 4', got {shown(given)}")
    found = [read_setting(text, chain) for text in texts]
    return list({setting.text: setting for setting in found}.values())


def read_setting(text: object, chain: Chain) -> Setting:
    """The setting that a text names, as segments of `chain`.

    Raises
    ------
    SchedulerError
        It has no form that exists, or its number, layers or option are not the chain's.
    """
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
    return next(every_settings("", blocks_of(chain), [1]))


def _none(_: str, chain: Chain) -> Setting:
    return Setting("", ())


def _every(number: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    return next(every_settings("", blocks, [_count(number, blocks)]))


def _every_last(number: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    return next(every_settings("", blocks, [_count(number, blocks)], start=-1))


def _stride(number: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    return next(uniform_settings("", [blocks], [_count(number, blocks)]))


def _first(number: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    return next(block_settings("", [blocks], [_count(number, blocks)]))


def _even(number: str, chain: Chain) -> Setting:
    blocks = blocks_of(chain)
    return next(even_settings("", blocks, [_count(number, blocks)]))


def _sequential(number: str, chain: Chain) -> Setting:
    # torch.utils.checkpoint.checkpoint_sequential: equal segments, and what is left over is kept.
    blocks = blocks_of(chain)
    parts = _count(number, blocks)
    length = len(blocks) // parts
    run = blocks[: length * (parts - 1)]
    if not run:
        return Setting("", ())
    return next(uniform_settings("", [run], [length]))


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
    return Setting("", tuple((i, i) for i in sorted(chosen)))


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
    return _option(name, chain)


def _count(number: str, blocks: Sequence[int]) -> int:
    if not 1 <= int(number) <= len(blocks):
        raise SchedulerError(
            f"{number} is no number of the {len(blocks)} blocks of these costs; give 1 to "
            f"{len(blocks)}"
        )
    return int(number)


_READERS: tuple[tuple[str, _Reader], ...] = (
    ("all", _all),
    ("none", _none),
    (r"every (\d{1,9})", _every),
    (r"stride (\d{1,9})", _stride),
    (r"layers: (.+)", _layers),
    (r"option: (.+)", _option),
    (r"checkpoint_sequential (\d{1,9})", _sequential),
    (r"transformers: (?:gradient|activation)_checkpointing", _all),
    (r"transformers: every_n_layers (\d{1,9})", _every),
    (r"megatron: full block (\d{1,9})", _first),
    (r"megatron: full uniform (\d{1,9})", _stride),
    (r"megatron: selective(.*)", _selective),
    (r"deepspeed: number_checkpoints (\d{1,9})", _even),
    (r"torchtitan: full", _all),
    (r"torchtitan: selective (\d{1,9})", _every_last),
)
