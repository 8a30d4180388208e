"""A pipeline of torch's schedules: cut and checkpointed by one plan, a stage for each process.

Run: torchrun --standalone --nproc-per-node 2 examples/pipeline.py     # or 4
"""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler import solve_pipeline
from scheduler.pytorch import pipeline_stage, profile, with_output

MICROBATCHES, SEQUENCES = 4, 2
CONFIG = LlamaConfig(hidden_size=64, intermediate_size=176, num_hidden_layers=6, vocab_size=256)


def made() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    stages, rank = dist.get_world_size(), dist.get_rank()
    tokens = torch.randint(0, 256, (MICROBATCHES * SEQUENCES, 64))
    dist.broadcast(tokens, 0)
    one = tokens[:SEQUENCES]
    held = with_output(lambda out: loss_of(out.logits, torch.zeros_like(one)))
    costs = profile(made(), {"input_ids": one}, held, fake=True)
    plan = solve_pipeline(costs, stages=stages, microbatches=MICROBATCHES, budget="5MiB")

    stage = pipeline_stage(made(), plan)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    given = (tokens,) if stage.is_first else ()
    target = tokens if stage.is_last else None
    schedule.step(*given, target=target, return_outputs=False)

    whole = made()
    for part in tokens.chunk(MICROBATCHES):
        loss_of(whole(part).logits, part).backward()  # type: ignore
    expected = {name: p.grad / MICROBATCHES for name, p in whole.named_parameters()}  # type: ignore
    found = stage.submod.model.named_parameters()  # type: ignore
    same = all(torch.equal(p.grad, expected[name]) for name, p in found)  # type: ignore
    print(f"rank {rank}: gradients equal those without the plan: {same}\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
