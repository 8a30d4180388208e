"""Pipelines: where to cut a chain into stages, and what each stage keeps, for the least time."""

from scheduler.pipeline.compare import compare_pipeline
from scheduler.pipeline.plan import PipelinePlan, Stage
from scheduler.pipeline.problem import RUNTIMES
from scheduler.pipeline.solve import solve_pipeline
from solvers.pipeline.problem import Runtime

__all__ = ["RUNTIMES", "PipelinePlan", "Runtime", "Stage", "compare_pipeline", "solve_pipeline"]
