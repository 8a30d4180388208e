"""Lightning: a callback with the plan."""

from __future__ import annotations

from scheduler.export.exported import Exported, Source
from scheduler.export.targets.torch import python_file

__all__ = ["to_lightning"]

_TAIL = '''\
class ApplyPlan(lightning.Callback):
    """Give it to the Trainer: ``lightning.Trainer(callbacks=[ApplyPlan("model")])``.

    `where` names the attribute of your module that is the model of the plan; "" is the module
    itself. Leave activation_checkpointing_policy of FSDPStrategy, and any checkpointing of the
    model itself, off.
    """

    def __init__(self, where=""):
        self.where = where
        self.applied = None

    def on_fit_start(self, trainer, pl_module):
        self.applied = apply_plan(pl_module.get_submodule(self.where))

    def on_fit_end(self, trainer, pl_module):
        self.applied.remove()
'''


def to_lightning(source: Source) -> Exported:
    """A callback that applies the plan when fitting begins."""
    title = "The plan below for Lightning: ApplyPlan is a callback for its Trainer."
    text = python_file("lightning", title, source, imports=("import lightning",), tail=_TAIL)
    return Exported("lightning", text)
