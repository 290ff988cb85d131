"""HS90x: lines where a program with CUDA graphs waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from torchproof.checking.rules import torch_pages
from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural
from torchproof.records import (
    BreakEvent,
    GraphSkipEvent,
    RecordingEvent,
    Severity,
    SyncEvent,
    place_of,
)

_OFTEN = 3  # the first calls compile, tune and record, which waits anyway


SyncGroup = EventGroup[SyncEvent]


class HostSync(Rule[SyncGroup]):
    """Base class of the rules for host syncs of a program that asks for CUDA graphs."""

    kind = "host_sync"
    parts = ("lifetimes",)
    reference = torch_pages.TUNING
    placed = True
    run_severity: ClassVar[Severity] = "medium"
    message_text = "`{at.expression}` waits for the device inside a compiled call"

    @classmethod
    def groups(cls, facts: Facts) -> Iterator[SyncGroup]:
        if not facts.of(RecordingEvent, GraphSkipEvent):
            return
        for event in facts.of(SyncEvent):
            where = place_of(event.frames)
            if where.frame and event.calls >= _OFTEN:
                yield SyncGroup((event,), where, facts, count=event.count)

    def severity(self, group: SyncGroup) -> Severity:
        """Low if the graph also breaks there: that finding has the fix."""
        broken = {
            (frame.file, frame.line)
            for event in group.facts.of(BreakEvent)
            for frame in event.frames
        }
        frame = group.frame
        return (
            "low" if frame and (frame.file, frame.line) in broken else self.run_severity
        )

    def evidence(self, group: SyncGroup) -> Iterable[str]:
        sync = group.first
        yield (
            f"waited {'in' if sync.inside else 'after'} {sync.calls} of"
            f" {plural(sync.of, 'compiled call')}, {plural(sync.count, 'time')}"
        )


class ValueRead(HostSync):
    """A value is read from the device inside a compiled call.

    ## Why
    `.item()`, `.cpu()`, `nonzero`, printing a tensor and copies from pageable memory
    wait until the device has finished its work. Meanwhile the host launches nothing,
    and a CUDA graph cannot contain the wait.

    ## Bad
        @torch.compile(mode="reduce-overhead")
        def step(x):
            loss = model(x)
            history.append(float(loss))
            return loss

    ## Good
        loss = step(x)
        history.append(loss.detach().clone())        # read all of them at the end

    ## Fix safety
    The value is available later. Code that needs it at once must stay.
    """

    code = "HS901"
    cause_text = (
        "the host needs a value, or memory, that the device is still working on"
    )
    advice_text = "read the value after the compiled call, and not at every step"

    def matches(self, group: SyncGroup) -> bool:
        return bool(group.first.inside and not group.first.explicit)


class ExplicitWait(HostSync):
    """`torch.cuda.synchronize()` is called inside a compiled call.

    ## Why
    The host waits for all work of the device and launches nothing meanwhile. A CUDA
    graph cannot contain the wait.

    ## Bad
        def forward(self, x):
            y = self.layer(x)
            torch.cuda.synchronize()        # left over from timing

    ## Good
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    ## Fix safety
    Streams that depended on the synchronisation must wait for each other with events.
    """

    code = "HS902"
    cause_text = "torch.cuda.synchronize() waits until all work of the device is done"
    advice_text = "remove it: torch.cuda.Event around the call measures without a wait"

    def matches(self, group: SyncGroup) -> bool:
        return bool(group.first.inside and group.first.explicit)


class WaitBetweenCalls(HostSync):
    """The program waits for the device after each compiled call.

    ## Why
    Replaying a graph costs the host almost nothing, so the host could prepare the next
    step meanwhile. If it reads a value after each call, the device is idle from then
    until the next launch.

    ## Bad
        for batch in batches:
            total += step(batch).item()

    ## Good
        for batch in batches:
            total += step(batch).detach()        # a tensor on the device
        print(total.item())

    ## Fix safety
    The value is available later. Reading a loss every hundred steps costs almost
    nothing.
    """

    code = "HS903"
    message_text = "`{at.expression}` waits for the device after each compiled call"
    cause_text = "the host launches nothing until the device has done what there is"
    advice_text = "sum the values on the device, and read the sum every hundred steps"
    run_severity = "low"

    def matches(self, group: SyncGroup) -> bool:
        return not group.first.inside
