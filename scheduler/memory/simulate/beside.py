"""What is there beside layers while they run: inputs, tables, masks, what code still refers to."""

from __future__ import annotations

from scheduler.memory.simulate.attending.rotary import INTERLEAVED, table_bytes
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.step import Activations

_TWO_MASKS = ("gemma2", "gemma3_text", "gpt_oss", "qwen2_moe")


def held_bytes(at: Setting, loss_bytes: int) -> int:
    """What is there from the beginning to the end of a step."""
    if at.shape.pixels:
        inputs = at.batch * (at.shape.pixels * at.shape.channels * at.stream + 8)
    else:
        inputs = 8 * at.tokens * (3 if at.padding_mask else 2)
    return inputs + kept_bytes(at) + loss_bytes


def handed_bytes(at: Setting) -> int:
    """What every block is handed beside its input: position ids, rotary tables, masks."""
    ids = 8 * at.sequence * at.shape.causal
    masks = {kind.window: _mask(at.of(kind)) for kind in at.shape.kinds}
    return ids + kept_bytes(at) + sum(masks.values())


def kept_bytes(at: Setting) -> int:
    """What of that a kept block holds as well: tables that it turns by as they are."""
    return 0 if at.shape.family in INTERLEAVED else table_bytes(at)


def let_go_bytes(at: Setting, number: int) -> int:
    """What of the rest no block is handed after the one of that number.

    Position ids that the embedding looks up it has saved.
    """
    blocks = at.shape.blocks
    following = {kind.window for kind in blocks[number + 1 :]}
    masks = 0 if blocks[number].window in following else _mask(at.of(blocks[number]))
    if following:
        return masks
    saved = not at.shape.causal or (at.shape.positions and at.trained)
    return masks + (0 if saved else 8 * at.sequence) + table_bytes(at) - kept_bytes(at)


def _mask(at: Setting) -> int:
    """The mask that blocks of a kind are handed; one of a window alone is of no sequence."""
    size = at.sequence**2
    if not (at.shape.causal or at.masked):
        return 0
    if at.eager:
        return at.batch * size * at.stream
    # Llama 4's chunks begin where each sequence does.
    own = at.padding_mask or at.shape.family == "llama4_text"
    return size * (at.batch if own else 1) if at.masked else 0


def local_bytes(at: Setting) -> int:
    """What transformers' code refers to while blocks run forward for the first time.

    Beside their input: what the tables of tokens (where that is no leaf) and of positions gave.
    """
    if at.shape.family != "gpt2":
        return unused_bytes(at)
    rows = at.features * (at.lora is None) + at.sequence * at.shape.width
    return rows * at.stream + unused_bytes(at)


def first_input_bytes(at: Setting, kept: Activations) -> int:
    """The first block's input, which that code refers to until the last norm has run.

    Where positions are added it does not; nor does it matter where the block or a leaf holds it.
    """
    is_held = at.shape.family == "gpt2" or at.lora is not None or kept.input_saved
    return 0 if is_held else kept.input_bytes


def unused_bytes(at: Setting) -> int:
    """A mask that the code of some families makes, of a window or of none, and no block takes."""
    windows = {kind.window for kind in at.shape.kinds}
    if at.shape.family not in _TWO_MASKS or len(windows) > 1:
        return 0
    if windows != {0} and not (at.eager or at.padding_mask):
        return 0  # causality alone needs none
    each = at.batch * at.stream if at.eager else at.batch if at.padding_mask else 1
    return at.sequence**2 * each
