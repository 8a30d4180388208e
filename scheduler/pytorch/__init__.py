"""The torch adapter: profile a model, apply a plan to it, measure a step."""

from scheduler.pytorch.checkpointing.apply import Handle
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.checkpointing.followed import FollowedModel
from scheduler.pytorch.compile.answer import CompiledPlan
from scheduler.pytorch.compile.budget import CompileBudget, compile_budget
from scheduler.pytorch.fitting.auto import AutoHandle, auto_checkpoint
from scheduler.pytorch.graph.apply import GraphHandle, apply_graph
from scheduler.pytorch.graph.profile import profile_graph
from scheduler.pytorch.graph.trace import trace
from scheduler.pytorch.graph.traced import TracedGraph
from scheduler.pytorch.kinds import apply
from scheduler.pytorch.observe.clock import Roofline
from scheduler.pytorch.pipelining.stage import pipeline_stage, with_output
from scheduler.pytorch.profiling.block_graph import block_graph
from scheduler.pytorch.profiling.describe import Description, describe
from scheduler.pytorch.profiling.lengths import profile_by_length
from scheduler.pytorch.profiling.profile import profile
from scheduler.pytorch.tiles.head import chunked_head
from scheduler.pytorch.verification.measure import Measurement, measure
from scheduler.pytorch.verification.verdict import Verification
from scheduler.pytorch.verification.verify import verify

__all__ = ["GraphHandle", "Handle", "Measurement", "Roofline", "TracedGraph", "apply"]
__all__ += ["apply_graph", "block_graph", "measure", "profile", "profile_graph", "trace"]
__all__ += ["Coverage", "Description", "Verification", "describe", "verify"]
__all__ += ["CompileBudget", "CompiledPlan", "compile_budget"]
__all__ += ["AutoHandle", "auto_checkpoint"]
__all__ += ["chunked_head", "profile_by_length"]
__all__ += ["FollowedModel"]
__all__ += ["pipeline_stage", "with_output"]
