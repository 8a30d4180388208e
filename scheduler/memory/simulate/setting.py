"""How a model is trained, as far as its activations depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from scheduler.memory.errors import Argument, InvalidRecipe, NoFormula, check_choice, check_count
from scheduler.memory.recipe import Lora, Recipe
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.parallel.divided import divided
from scheduler.memory.state.sizes import DTYPES

# Families whose modules join several linear layers in one.
_FUSED_QKV = ("gpt2", "gpt_neox", "phi3")
KV_DOWN = "kv_a_proj_with_mqa"
_FUSED_GATE = ("glm", "glm4", "phi3")
_HF = Argument("loss", "hf")

MLP = "mlp"
_TWO = ("input_layernorm", "post_attention_layernorm", MLP)
_TILED = dict.fromkeys(("llama", "mistral", "qwen2", "gemma", "phi3", "glm"), _TWO) | {
    "qwen3": ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm", *_TWO[1:]),
    "gemma2": (*_TWO[:2], "pre_feedforward_layernorm", MLP, "post_feedforward_layernorm"),
    "glm4": (_TWO[0], "post_self_attn_layernorm", *_TWO[1:], "post_mlp_layernorm"),
    "gpt2": (MLP,),
    "gpt_neox": (MLP,),
}
"""Families whose blocks are known in tiles, and what of them may run so."""

HEAD = "lm_head"
"""The head, as a target of LoRA: PEFT's "all-linear" leaves it out, and "all" does here."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A shape with everything else that its activations depend on; checked by `setting`.

    Attributes
    ----------
    shape
        What of it is on one GPU: see `divided`.
    batch, sequence
        Of the tokens that one GPU's attention has queries of.
    tensor, context, expert
        GPUs that share a layer's features, its tokens, its experts.
    scattered
        Between what is divided by features, the first of these divide the tokens.
    runtime
        Whose these are.
    load
        Rows that experts get, over those of an even load.
    stream
        Bytes of one element of the residual stream.
    compute
        Bytes of one element that a linear layer makes.
    trained
        The model's own weights get gradients.
    targets
        Linear layers with an adapter, the head among them; empty without LoRA.
    last
        Of a block in a stack: it is the last one, so that its backward is the first to give what
        all are handed a gradient.
    tiles
        Of a block: in how many its `tiled` modules run; 0: whole.
    one_tiled
        Of these the MLP alone does.
    """

    shape: Shape
    batch: int
    sequence: int
    stream: int
    compute: int
    autocast: bool
    eager: bool
    trained: bool
    lora: Lora | None
    targets: frozenset[str]
    padding_mask: bool
    cuda: bool
    experts: str
    tensor: int = 1
    scattered: bool = False
    runtime: str = "torch"
    context: int = 1
    expert: int = 1
    load: float = 1.0
    last: bool = False
    tiles: int = 0
    one_tiled: bool = False

    def of(self, kind: Shape) -> Setting:
        """The same for a block of this kind."""
        return replace(self, shape=kind, targets=self.targets & linears(kind).keys())

    @property
    def tokens(self) -> int:
        """Tokens in the batch, T = B·S."""
        return self.batch * self.sequence

    @property
    def gathers_again(self) -> bool:
        """Whether what is gathered from GPUs that divide tokens is not kept for the backward."""
        return self.scattered and self.runtime == "megatron"

    @property
    def own_experts(self) -> int:
        """Experts of a block that one GPU has."""
        return self.shape.experts // self.expert

    @property
    def features(self) -> int:
        """Elements of a block's input on one GPU."""
        return self.tokens * self.shape.width // (self.tensor if self.scattered else 1)

    @property
    def logits(self) -> int:
        """Numbers that the head makes: for each token, or for the class's alone, V."""
        made_from = self.batch if self.shape.head == "classes" else self.tokens
        return made_from * self.shape.vocabulary

    @property
    def upcast(self) -> bool:
        """Whether transformers' loss is in fp32, whatever the logits are."""
        return self.shape.head == "causal" or self.autocast

    @property
    def masked(self) -> bool:
        """Whether a fused attention gets a mask: causality alone needs none."""
        return self.padding_mask or 0 < self.shape.window <= self.sequence

    @property
    def tiled(self) -> tuple[str, ...]:
        """Modules of a block that treat tokens alone, and save more inside than they are handed.

        In the order in which they run, by their names in transformers; those of families that are
        known. A norm in fp32 without a gradient for its weight saves nothing inside.
        """
        shape = self.shape
        if self.autocast or self.tensor > 1 or shape.experts or shape.family not in _TILED:
            return ()
        norms = shape.norm != "layer" and (self.stream == 2 or self.trained)
        norms = norms and not self.one_tiled
        names = [name for name in _TILED[shape.family] if norms or name == MLP]
        dropped = shape.family == "gpt2" and shape.dropout
        dropped = dropped or (self.lora is not None and self.lora.dropout and bool(self._in_mlp))
        return tuple(name for name in names if name != MLP or not dropped)

    @property
    def _in_mlp(self) -> frozenset[str]:
        return self.targets & {"gate", "up", "down", "gate_up"}

    @property
    def probabilities(self) -> int:
        """Elements of a block's attention probabilities, A = B·H·S²."""
        return self.batch * self.shape.heads * self.sequence**2

    def mask_size(self, size: int) -> int:
        """Bytes of a dropout mask's element for data with elements of `size` bytes.

        One on CUDA, where ``native_dropout`` saves a mask of booleans. On the CPU dropout
        multiplies by noise in the data's own dtype and saves that.
        """
        return 1 if self.cuda else size


def setting(
    shape: Shape, batch: object, sequence: object, recipe: Recipe, *, inside: bool = True
) -> Setting:
    """What follows for the activations of a shape; arguments and errors are `block_activations`'s.

    Not `inside` a block but at the model's ends there are no attention and no experts, so that all
    recipes have a formula.
    """
    if shape.buckets:
        _check_stacks(recipe)
    if shape.head == "classes" and recipe.loss == "chunked":
        raise NoFormula("a classifier's loss has one row a sequence, no chunks; say ", _HF)
    if inside:
        for kind in shape.kinds:
            _check_formula(kind, recipe)
    autocast, lora = recipe.compute == "autocast", recipe.lora
    size = 2 if autocast else DTYPES[recipe.compute]
    return Setting(
        shape=divided(shape, recipe),
        batch=check_count(Argument("batch"), batch, InvalidRecipe),
        sequence=_divided_sequence(_sequence(shape, sequence), recipe),
        stream=4 if autocast else size,
        compute=size,
        autocast=autocast,
        eager=recipe.attention == "eager",
        trained=recipe.train == "full",
        lora=lora,
        targets=frozenset() if lora is None else lora_targets(shape, lora),
        padding_mask=recipe.padding_mask,
        cuda=recipe.device == "cuda",
        # Llama 4 has one way to run them, which is followed.
        experts="grouped" if shape.family == "llama4_text" else recipe.experts,
        tensor=recipe.tensor_parallel,
        scattered=recipe.sequence_parallel,
        runtime=recipe.runtime,
        context=recipe.context_parallel,
        expert=recipe.expert_parallel,
        load=recipe.load_factor,
    )


def _check_stacks(recipe: Recipe) -> None:
    elsewhere = ", or profile the model with scheduler.pytorch"
    if recipe.train != "full":
        raise NoFormula(
            f"of T5 only full training has a formula; train all of it{elsewhere}", argument="train"
        )
    if recipe.loss not in ("hf", "bf16"):
        raise NoFormula("of T5 there is a formula for transformers' own loss alone; say ", _HF)
    if recipe.compute not in ("bf16", "fp32"):
        raise NoFormula(
            "of T5 there is no formula for autocast, nor for fp16, which it clamps; say ",
            Argument("precision", "bf16-mixed"),
            elsewhere,
        )


def _sequence(shape: Shape, asked: object) -> int:
    """Tokens in a sequence, which need not be asked for where images make them."""
    fixed = shape.fixed_sequence
    if fixed and asked is None:
        return fixed
    sequence = check_count(Argument("sequence"), asked, InvalidRecipe)
    if fixed and sequence != fixed:
        raise InvalidRecipe(
            Argument("sequence"),
            f" of {shape.name} is {fixed}, its image's patches and the class's token, got "
            f"{sequence}; leave it out",
        )
    if shape.positions and sequence > shape.longest:
        raise InvalidRecipe(
            Argument("sequence"),
            f" must be at most the {shape.longest} positions that {shape.name} has learned, "
            f"got {sequence}",
        )
    return sequence


def _divided_sequence(sequence: int, recipe: Recipe) -> int:
    """Tokens of a sequence that one GPU's attention has."""
    # Each has two pieces, one from either end, so that a causal mask leaves all as much to do.
    pieces = 2 * recipe.context_parallel if recipe.context_parallel > 1 else 1
    parts = recipe.tensor_parallel if recipe.sequence_parallel else 1
    if sequence % (pieces * parts):
        names = [name for name, n in (("context", pieces), ("sequence", parts)) if n > 1]
        raise InvalidRecipe(
            Argument("sequence"),
            f" must be a multiple of {pieces * parts}, so that ",
            *[Argument(f"{name}_parallel") for name in names[:1]],
            *[part for name in names[1:] for part in (" and ", Argument(f"{name}_parallel"))],
            f" can divide it, got {sequence}",
        )
    return sequence // recipe.context_parallel


def _check_formula(shape: Shape, recipe: Recipe) -> None:
    autocast, eager = recipe.compute == "autocast", recipe.attention == "eager"
    if autocast and (recipe.lora is not None or eager or shape.experts):
        raise NoFormula(
            "there is no formula for autocast with LoRA, eager attention or experts; say ",
            Argument("precision", "bf16"),
            ", or profile the model with scheduler.pytorch",
        )
    if shape.family == "gemma2" and not eager:
        raise NoFormula(
            "Gemma 2 caps its attention scores, which sdpa does not do, and for fused attentions "
            "that do (flash, flex) there is no formula; say ",
            Argument("attention", "eager"),
        )
    if shape.sinks and not eager:
        raise NoFormula(
            "the heads of gpt-oss have sinks, which sdpa does not know, and for fused attentions "
            "that do (flash, flex) there is no formula; say ",
            Argument("attention", "eager"),
        )
    if autocast and recipe.device == "cpu" and shape.attention_dropout:
        raise NoFormula("there is no formula for attention dropout on the CPU in autocast")


def linears(shape: Shape) -> dict[str, tuple[int, int]]:
    """Input and output features of a block's linear layers, those of experts left out.

    Of several kinds of blocks: of the last one.
    """
    d, queries, keys = shape.width, shape.query_width, shape.kv_width
    if shape.kv_rank:
        found = _latent(shape)
    elif shape.family in _FUSED_QKV:
        found = {"qkv": (d, queries + 2 * keys)}
    else:
        found = {"q": (d, queries), "k": (d, keys), "v": (d, keys)}
    found["o"] = (shape.attended_width, d)
    if shape.crosses:
        found |= {f"cross_{name}": size for name, size in found.items()}
    if shape.experts:
        return found
    f = shape.mlp_width
    if shape.family in _FUSED_GATE:
        found["gate_up"] = (d, 2 * f)
    elif shape.gated:
        found |= {"gate": (d, f), "up": (d, f)}
    else:
        found["up"] = (d, f)
    return found | {"down": (f, d)}


def _latent(shape: Shape) -> dict[str, tuple[int, int]]:
    d, rank = shape.width, shape.query_rank
    straight = shape.heads * (shape.head_width - shape.turned_width)
    if rank:
        found = {"q_a": (d, rank), "q_b": (rank, shape.query_width)}
    else:
        found = {"q": (d, shape.query_width)}
    return found | {
        KV_DOWN: (d, shape.kv_rank + shape.turned_width),
        "kv_b": (shape.kv_rank, straight + shape.attended_width),
    }


def lora_targets(shape: Shape, lora: Lora) -> frozenset[str]:
    """Linear layers that get an adapter: any block's, as `linears` names them, and the head."""
    found = dict.fromkeys(name for kind in shape.kinds for name in linears(kind))
    # Adapters on these would sit in shared experts too, which is not followed.
    shared = any(kind.shared_expert_width for kind in shape.kinds)
    inside = tuple(name for name in found if not (shared and name in ("gate", "up", "down")))
    known = (*inside, HEAD) if shape.head == "causal" else inside
    error = partial(InvalidRecipe, argument="lora")
    named: Iterable[str] = (lora.targets,) if isinstance(lora.targets, str) else lora.targets
    chosen: set[str] = set()
    for name in named:
        if name == "all":
            chosen |= set(inside)
            continue
        short = name.removesuffix("_proj") if isinstance(name, str) else name
        what = f"a LoRA target of {shape.name}"
        chosen.add(check_choice(what, short, (*known, "all"), error))
    if not chosen:
        raise error(f"lora needs a target; choose from {', '.join(known)}, all")
    return frozenset(chosen)
