"""What a layer was seen to need while it ran by itself, and that as the cost model says it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.costs.layer import LayerCost, OptionCost


@dataclass(frozen=True)
class Peaks:
    """Bytes seen while a layer ran by itself; times in ms.

    `repeatable`: running its forward again changes nothing else. `again_peak`: bytes seen in a
    recomputation, beside the gradient that its backward is given and what that began with: it
    begins when the backward first needs what was saved, with what that has made by then, and ends
    with the last saved tensor.
    `early_bytes`: what that is, and stays while the layers before it in its segment run again.
    `left_bytes`: what a forward that keeps nothing leaves to others, in a container, on a module or
    as a leaf of its graph; while it runs again that may be there twice. `state_bytes`: of what its
    forward changes on its module, of which a checkpoint holds a copy; `copied_bytes`: of what it
    could change, of which a first forward in a checkpoint begins with a copy. `time_spread`: as of
    a `LayerCost`.
    """

    input_bytes: int
    output_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    forward_peak: int
    drop_peak: int | None
    backward_peak: int
    gradient_bytes: int
    forward_time: float = 0.0
    recompute_time: float = 0.0
    backward_time: float = 0.0
    repeatable: bool = True
    again_peak: int = 0
    early_bytes: int = 0
    state_bytes: int = 0
    left_bytes: int = 0
    copied_bytes: int = 0
    time_spread: float = 0.0

    def more_before(self, last: Peaks) -> int:
        """Bytes that a run again must be given more, in a segment that ends with `last`.

        What the backward of `last` has made by then is there. That matters where `last`, which ends
        with its last saved tensor, needs less when it runs after it, each with its input.
        """
        forward = self.input_bytes + max(self.forward_peak, self.drop_peak or 0)
        above = forward + last.early_bytes - last.again_peak - last.input_bytes
        return min(max(above, 0), last.early_bytes)

    def with_more_in_forward(self, size: int) -> Peaks:
        """The same with `size` bytes more live in every forward, and then let go."""
        drop = None if self.drop_peak is None else self.drop_peak + size
        return replace(self, forward_peak=self.forward_peak + size, drop_peak=drop)

    @property
    def drop_bytes(self) -> int | None:
        """Working memory of a forward that keeps nothing, above the output."""
        if self.drop_peak is None:
            return None
        return max(self.drop_peak - self.output_bytes, 0) + self.copied_bytes

    def ending_bytes(self, before: int, root: int) -> int:
        """Working memory of a forward that ends what runs again; the rest as of `cost`."""
        made = self.output_bytes + self.saved_bytes
        peak = self.again_peak or max(self.forward_peak, made) + before + self.copied_again
        return max(peak - made, 0) + root

    @property
    def copied_again(self) -> int:
        """Bytes that a forward which is run again begins with a copy of: of what it does change."""
        return min(self.copied_bytes, self.state_bytes)

    def cost(
        self,
        name: str,
        first: int = 0,
        before: int = 0,
        root: int = 0,
        *,
        is_first: bool = False,
        recomputable: bool = True,
    ) -> LayerCost:
        """The peaks as the cost model says them, as transients above what it counts.

        `first`: bytes that are live besides while the layer runs forward for the first time;
        `before`: while it runs again and does not end what does, see `more_before`; `root`: what
        the step's backward began with, which is there then. `is_first`: nothing comes before it
        and it never runs again, so that the gradient of its input need not be there.
        """
        x, w = self.output_bytes, self.saved_bytes
        held = w + x * (2 if self.output_saved else 1)
        made = self.input_bytes + self.gradient_bytes
        above = self.backward_peak - held - made
        transient, overlap = max(above, 0), max(-above, 0)
        return LayerCost(
            name,
            forward_time=self.forward_time,
            backward_time=self.backward_time,
            recompute_time=min(self.recompute_time, self.forward_time),
            output_bytes=x,
            saved_bytes=w,
            forward_transient_bytes=max(self.forward_peak - x - w, 0),
            ending_transient_bytes=self.ending_bytes(before, root),
            drop_transient_bytes=self.drop_bytes,
            backward_transient_bytes=transient,
            backward_overlap_bytes=min(overlap, held + self.input_bytes * is_first, made),
            gradient_bytes=self.gradient_bytes,
            first_transient_bytes=first,
            again_transient_bytes=before + root + self.copied_again,
            input_saved=self.input_saved,
            output_saved=self.output_saved,
            recomputable=recomputable and self.repeatable,
            time_spread=self.time_spread,
        )

    def option(self, name: str, seen: Peaks, recompute_time: float) -> OptionCost:
        """The layer kept in a cheaper way, in which it was `seen`, as the cost model says it."""
        x, w = self.output_bytes, seen.saved_bytes
        # What the replay counts during the backward, the whole saved set being live again.
        outputs = 2 if self.output_saved or seen.output_saved else 1
        held = self.saved_bytes + outputs * x
        again = max(self.saved_bytes - w, 0)
        again += x if self.output_saved and not seen.output_saved else 0
        made = self.input_bytes + self.gradient_bytes
        above = seen.backward_peak - held - made
        return OptionCost(
            name,
            w,
            recompute_time,
            forward_transient_bytes=max(seen.forward_peak - x - w, 0),
            backward_transient_bytes=max(above, 0),
            backward_overlap_bytes=min(max(-above, 0), held, again + made),
            input_saved=seen.input_saved,
            output_saved=seen.output_saved,
        )
