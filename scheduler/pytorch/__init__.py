"""The torch adapter: profile a model, apply a plan to it, measure a step."""

from scheduler.pytorch.apply import Handle, apply
from scheduler.pytorch.clock import Roofline
from scheduler.pytorch.compilebudget import CompileBudget, CompiledPlan, compile_budget
from scheduler.pytorch.coverage import Coverage
from scheduler.pytorch.describe import Description, describe
from scheduler.pytorch.graph import TracedGraph
from scheduler.pytorch.graphprofile import profile_graph
from scheduler.pytorch.graphrun import GraphHandle, apply_graph
from scheduler.pytorch.graphtrace import trace
from scheduler.pytorch.insidegraph import block_graph
from scheduler.pytorch.measure import Measurement, measure
from scheduler.pytorch.profile import profile
from scheduler.pytorch.verification import Verification
from scheduler.pytorch.verify import verify

__all__ = ["GraphHandle", "Handle", "Measurement", "Roofline", "TracedGraph", "apply"]
__all__ += ["apply_graph", "block_graph", "measure", "profile", "profile_graph", "trace"]
__all__ += ["Coverage", "Description", "Verification", "describe", "verify"]
__all__ += ["CompileBudget", "CompiledPlan", "compile_budget"]
