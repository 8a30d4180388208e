"""Blocks of transformers that GPUs share by torch's own DTensor, and what one of them keeps."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from scheduler.memory import Shape, load_shape
from scheduler.memory.activations import block_activations

torch: Any = import_module("torch")  # untyped here, as DTensor and transformers are
transformers: Any = import_module("transformers")
parallel: Any = import_module("torch.distributed.tensor.parallel")
BATCH, TOKENS = 2, 40

_SIZES = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 1, "vocab_size": 128}
CONFIGS = {
    "llama": {"model_type": "llama", "num_key_value_heads": 4, "intermediate_size": 176},
    "gpt_neox": {"model_type": "gpt_neox", "intermediate_size": 256, "rotary_pct": 0.25},
    "gpt_neox in turn": {
        "model_type": "gpt_neox",
        "intermediate_size": 256,
        "use_parallel_residual": False,
    },
}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "query_key_value")
_COLUMNS = (*_ATTENTION, "gate_proj", "up_proj", "dense_h_to_4h")
_ROWS = ("o_proj", "down_proj", "attention.dense", "dense_4h_to_h")
_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class Case:
    """A block of a kind, and how it is shared."""

    kind: str
    tensor: int
    scattered: bool = True
    data: int = 1
    precision: str = "bf16"

    @property
    def config(self) -> Any:
        """The config of its model."""
        given = _SIZES | CONFIGS[self.kind]
        kind = given.pop("model_type")
        return transformers.AutoConfig.for_model(kind, attn_implementation="sdpa", **given)

    @property
    def shape(self) -> Shape:
        """The shape of its model."""
        return load_shape(self.config.to_dict())

    @property
    def said(self) -> int:
        """Bytes that this package says one GPU keeps of it."""
        scattered = self.scattered and self.tensor > 1
        kept = block_activations(
            self.shape,
            BATCH,
            TOKENS,
            device="cpu",
            precision=self.precision,
            tensor_parallel=self.tensor,
            sequence_parallel=scattered,
        )
        return kept.total_bytes


def measured(case: Case, rank: int) -> int:
    """Bytes that torch keeps of it on one process of the default group."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(case.config).to(dtype)
    inside = model.base_model
    mesh = torch.distributed.init_device_mesh(
        "cpu", (case.data, case.tensor), mesh_dim_names=("data", "tensor")
    )
    x = torch.randn(BATCH, TOKENS, _SIZES["hidden_size"], dtype=dtype)
    places = torch.arange(TOKENS)[None]
    tables = inside.rotary_emb(x, places)
    block = inside.layers[0]
    parallel.parallelize_module(block, mesh["tensor"], _plan(block, case.scattered))
    if case.data > 1:
        import_module("torch.distributed.fsdp").fully_shard(block, mesh=mesh["data"])
    part = x.chunk(case.tensor, 1)[rank % case.tensor] if case.scattered else x
    taken = part.clone().requires_grad_()
    return _kept(block, taken, tables, position_embeddings=tables, position_ids=places)


def _plan(block: Any, scattered: bool) -> dict[str, Any]:
    """Who holds which features; between them, tokens."""
    tensors = import_module("torch.distributed.tensor")
    shard, whole = (tensors.Shard(1),), (tensors.Replicate(),)
    found: dict[str, Any] = {}
    for name, _ in block.named_modules():
        if name.endswith(_COLUMNS):
            found[name] = parallel.ColwiseParallel()
        elif name.endswith(_ROWS):
            given = {"output_layouts": shard[0]} if scattered else {}
            found[name] = parallel.RowwiseParallel(**given)
        elif scattered and name.endswith(_NORMS):
            found[name] = parallel.SequenceParallel()
        elif scattered and name in ("self_attn", "attention", "mlp"):
            given = {"input_layouts": shard, "desired_input_layouts": whole}
            if name == "self_attn":
                given = {
                    "input_kwarg_layouts": {"hidden_states": shard[0]},
                    "desired_input_kwarg_layouts": {"hidden_states": whole[0]},
                }
            found[name] = parallel.PrepareModuleInput(**given)
    return found


def _kept(block: Any, x: Any, outside: Any, **given: Any) -> int:
    own: set[int] = set()
    block.register_forward_pre_hook(lambda *_: own.update(map(_place, block.parameters())))
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        saved[_place(tensor)] = _local(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = block(x, attention_mask=None, **given)
    own |= {_place(tensor) for tensor in outside}
    del made
    return sum(
        tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in own
    )


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _place(tensor: Any) -> int:
    return int(_local(tensor).untyped_storage().data_ptr())
