"""Plans by length, executed: random lengths, each step's peak held against the budget.

A Llama on the CPU, in steps of two sequences whose length is drawn anew for each: short ones often,
long ones seldom. Each step's peak is measured, and its gradients are compared bit by bit with those
without a plan. What a run loses is by the profile's times, which are a GPU's, estimated: under the
plans by length, and with the plan of the longest for all steps.

    python benchmarks/lengths.py [--steps 200] [--seed 0] [--longest 512]
"""

from __future__ import annotations

import argparse
import random
import sys

import torch
import transformers

from scheduler import PlansByLength, solve_by_length
from scheduler.common.text import format_bytes
from scheduler.pytorch import apply, measure, profile_by_length
from scheduler.report.tables import aligned, format_percent

VOCABULARY = 500
SHARES = ((False, 0.5), (False, 0.3), (True, 0.3))
"""With options or without, and the budget as a share of what the longest step needs."""


def llama(longest: int) -> torch.nn.Module:
    """Eight blocks."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=224,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model.train()


def batch(length: int) -> dict[str, torch.Tensor]:
    """Two sequences of token ids, which are their own labels."""
    ids = torch.randint(VOCABULARY, (2, length))
    return {"input_ids": ids, "labels": ids}


def gradients(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Those of one step."""
    model.zero_grad()
    model(**inputs).loss.backward()
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def row(plans: PlansByLength, lengths: list[int], name: str) -> list[str]:
    """The figures of one run; raises where a step is over the budget or its gradients differ."""
    budget = plans[plans.longest].budget_bytes or 0
    model, free = llama(plans.longest), llama(plans.longest)
    apply(plans, model)
    highest, used = 0, set()
    for i, length in enumerate(lengths):
        inputs, at = batch(length), plans.length_for(length, 2)
        for expected, found in zip(gradients(free, inputs), gradients(model, inputs), strict=True):
            assert torch.equal(expected, found), f"step {i}: other gradients at length {length}"
        peak = measure(model, inputs).peak_bytes
        assert peak <= plans[at].peak_bytes <= budget, f"step {i}: over at length {length}"
        highest = max(highest, peak)
        used.add(at)
        if sys.stderr.isatty():
            print(f"\r{name}: {i + 1} of {len(lengths)}", end="", file=sys.stderr)
    lost = map(format_percent, plans.run_overhead(lengths))
    return [name, format_bytes(budget), format_bytes(highest), str(len(used)), *lost]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    drawn, longest = random.Random(given.seed), given.longest
    lengths = [max(int(longest * drawn.random() ** 2), 1) for _ in range(given.steps)]
    grid = [longest * n // 8 for n in range(1, 9)]
    rows = [["", "budget", "highest step", "plans used", "by length", "of the longest"]]
    for options, share in SHARES:
        costs = profile_by_length(llama(longest), batch(longest), grid, options=options, fake=True)
        whole = solve_by_length(costs, budget="1TB")[longest].peak_bytes
        plans = solve_by_length(costs, budget=int(whole * share))
        name = f"{'options' if options else 'whole blocks'}, {share:.0%} of keep-all"
        rows.append(row(plans, lengths, name))
    print(f"{given.steps} steps, {min(lengths)} to {max(lengths)} tokens in each of 2 sequences:")
    print("no step above its plan's peak or the budget, all gradients bitwise equal.\n")
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
