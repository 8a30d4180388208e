"""Plans to export, and a script that runs an exported file where there is nothing but torch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from scheduler import CostGraph, LayerCost, Plan, frontier, solve

MODEL = '''
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.drop = nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
        return self.drop(self.proj(y))


class Block(nn.Module):
    """Returns a tuple, as those of transformers did, and is given a mask by keyword."""

    def __init__(self, width):
        super().__init__()
        self.attn = Attention(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden_states, mask=None):
        x = hidden_states + self.attn(hidden_states, mask)
        return (x + self.mlp(x), None)


class GPT2(nn.Module):
    def __init__(self, depth, width=16, vocabulary=32):
        super().__init__()
        self.wte, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width) for _ in range(depth))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.drop(self.wte(tokens))
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        for block in self.h:
            x = block(x, mask=mask)[0]
        return self.head(self.ln_f(x)).float().pow(2).mean()


class Loss(nn.Module):
    def forward(self, x):
        return x.pow(2).mean()


def gpt2(depth):
    torch.manual_seed(0)
    return GPT2(depth).train(), torch.randint(0, 32, (2, 8))


def convolutions(depth):
    torch.manual_seed(0)
    parts = [
        nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.1), nn.ReLU(inplace=True)
        )
        for _ in range(depth)
    ]
    return nn.Sequential(*parts, Loss()).train(), torch.randn(2, 3, 8, 8)
'''
"""A module `tiny`: a GPT-2-like model and a Sequential, with torch alone."""

SCRIPT = """
import copy
import importlib
import json
import sys

for name in ("scheduler", "solvers", "transformers", "lightning", "accelerate", "networkx"):
    sys.modules[name] = None  # to import it is an error
sys.path.insert(0, sys.argv[1])
import torch

import tiny

torch.set_num_threads(1)


def step(plan, model, inputs):
    torch.manual_seed(1)
    counts = {}
    blocks = {id(m): n for n, m in model.named_modules() if n in plan.LAYERS}
    kinds = {type(m): type(m).forward for m in model.modules() if id(m) in blocks}

    def counting(own):
        def forward(self, *args, **kwargs):
            if id(self) in blocks:
                counts[blocks[id(self)]] = counts.get(blocks[id(self)], 0) + 1
            return own(self, *args, **kwargs)

        return forward

    for kind, own in kinds.items():
        kind.forward = counting(own)
    try:
        model(inputs).backward()
    finally:
        for kind, own in kinds.items():
            kind.forward = own
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {n: p.grad for n, p in model.named_parameters()}, state, counts


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def case(plan, make, depth):
    kept = step(plan, *make(depth))
    model, inputs = make(depth)
    applied = plan.apply_plan(model)
    run = step(plan, model, inputs)
    other = copy.deepcopy(model)
    in_copy = step(plan, other, inputs)
    try:
        plan.apply_plan(model)
        refused = False
    except ValueError:
        refused = True
    applied.remove()
    left = [name for name, module in model.named_modules() if "forward" in module.__dict__]
    return {
        "gradients": same(kept[0], run[0]),
        "state": same(kept[1], run[1]),
        "counts": run[2],
        "counts in a copy": in_copy[2],
        "refused twice": refused,
        "left": left,
        "counts after removal": step(plan, model, inputs)[2],
    }


for name, make, depth in json.loads(sys.argv[2]):
    print(json.dumps(case(importlib.import_module(name), getattr(tiny, make), depth)))
"""


def chain_costs(names: list[str], fixed: tuple[str, ...] = (), saved: int = 30) -> CostGraph:
    """Costs of layers of different times; `fixed` ones must be kept."""
    layers = [
        LayerCost(
            name=name,
            forward_time=1.0 + i % 3,
            backward_time=2.0 + i % 3,
            output_bytes=100,
            saved_bytes=saved * (1 + i % 2),
            recomputable=name not in fixed,
        )
        for i, name in enumerate(names)
    ]
    return CostGraph(tuple(layers), input_bytes=100)


def gpt2_plan(depth: int = 8, share: float = 0.0) -> Plan:
    """A plan of the GPT-2-like model: nested at share 0, keep-all at 1."""
    names = ["embedding", *(f"h.{i}" for i in range(depth)), "head"]
    return plan_at(chain_costs(names, ("embedding", "head")), share)


def sequential_plan(depth: int = 8, share: float = 0.0) -> Plan:
    """A plan of the Sequential, whose last child is the loss."""
    return plan_at(chain_costs([str(i) for i in range(depth + 1)]), share)


def plan_at(costs: CostGraph, share: float) -> Plan:
    """The optimum at a budget between the smallest that is feasible and keep-all's peak."""
    points = frontier(costs).points
    least, most = points[0][0], points[-1][0]
    return solve(costs, budget=round(least + share * (most - least)))


def loaded(folder: Path, text: str, name: str) -> ModuleType:
    """An exported file as a module."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_alone(folder: Path, cases: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """What `SCRIPT` prints of each text, model and depth.

    In an interpreter of its own that finds torch and nothing of ours.
    """
    (folder / "tiny.py").write_text(MODEL)
    (folder / "step.py").write_text(SCRIPT)
    for i, (text, _, _) in enumerate(cases):
        (folder / f"plan{i}.py").write_text(text)
    named = [(f"plan{i}", model, depth) for i, (_, model, depth) in enumerate(cases)]
    done = subprocess.run(
        [sys.executable, "-I", "step.py", str(folder), json.dumps(named)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(cases) :]]
