"""The part of an exported Python file that keeps chosen results inside a block.

What `scheduler.pytorch.checkpointing.selective` does, in short.
"""

from __future__ import annotations

__all__ = ["KEEPS"]

KEEPS = '''\
class _Selection:
    """Results that one forward of a block keeps, and that are handed back when it runs again."""

    def __init__(self, name, keeps):
        self.name, self.keeps, self.ran = name, keeps, []
        self.calls = calls = Counter()

        def policy(context, operation, *args, **kwargs):  # not to hold self: it holds the results
            call = (context.is_recompute, str(operation))
            calls[call] += 1
            kept = calls[call] - 1 in keeps.get(str(operation), ())
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        kept = [_operation(operation) for operation in keeps]
        self.contexts = of_torch.create_selective_checkpoint_contexts(
            policy, allow_cache_entry_mutation=any(_changes(each) for each in kept)
        )
        # Where a random result is kept, what is drawn later must be drawn from its own state.
        self.draws = any(_is_random(each) for each in kept)

    @contextmanager
    def forward(self):
        with self.contexts[0], _Noting(self):
            yield
        for operation, calls in self.keeps.items():
            if self.calls[False, operation] <= max(calls):
                raise RuntimeError(
                    f"{self.name!r} runs {operation} {self.calls[False, operation]} times, and the "
                    f"plan keeps the result of number {max(calls) + 1}: it is one of another model"
                )

    @contextmanager
    def again(self):
        with self.contexts[1], _Repeated(self):
            yield


class _Noting(TorchDispatchMode):
    """Writes down a block's operations, and the random states of those that draw."""

    def __init__(self, selection):
        super().__init__()
        self.selection = selection

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in of_torch.SAC_IGNORED_OPS:
            self.see(func, args, kwargs)
        return func(*args, **kwargs)

    def see(self, func, args, kwargs):
        states = ()
        if self.selection.draws and _is_random(func):
            tensors = [leaf for leaf in tree_leaves(args) if torch.is_tensor(leaf)]
            own = tensors[0].device if tensors else "cpu"
            states = _states(torch.device(kwargs.get("device") or own))
        self.selection.ran.append((func, states))


class _Repeated(_Noting):
    """Checks that they are the same, as results are handed back by their number."""

    def __init__(self, selection):
        super().__init__(selection)
        self.rest = iter(selection.ran)

    def see(self, func, args, kwargs):
        before, states = next(self.rest, (None, ()))
        if func is not before:
            name = self.selection.name
            raise RuntimeError(f"{name!r} runs {func} again where it ran {before}: keep it whole")
        _put_states(states)


def _operation(name):
    operation = torch.ops
    for part in name.split("."):
        operation = getattr(operation, part, None)
    return operation


def _is_random(operation):
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


def _changes(operation):
    return operation is None or operation._schema.is_mutable
'''
