"""HS9xx: lines at which a compiled call makes the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchproof.places import place_of
from torchproof.records import Severity
from torchproof.rules._rule import Facts, Rule, Subject, plural

_OFTEN = 3  # the first calls compile, tune and record, and wait while they do


class HostSync(Rule):
    """Base of the rules about waits in calls that are to be CUDA graphs."""

    kind = "host_sync"
    explicit: bool

    def subjects(self, facts: Facts) -> Iterator[Subject]:
        """Not where the graph breaks: that finding says why, and how to mend it."""
        if not facts.events("cudagraph", "cudagraph_skip"):
            return
        broken = {
            (frame.file, frame.line)
            for event in facts.events("graph_break")
            for frame in event.frames
        }
        for event in facts.events("host_sync"):
            where = place_of(event.frames)
            data, frame = event.data, where.frame
            if frame is None or (frame.file, frame.line) in broken:
                continue
            if data["explicit"] == self.explicit and data["calls"] >= _OFTEN:
                yield Subject((event,), where, facts, data["count"])

    def severity(self, subject: Subject) -> Severity:
        return "medium"

    def evidence(self, subject: Subject) -> Iterable[str]:
        data = subject.data
        yield (
            f"waited in {data['calls']} of {plural(data['of'], 'compiled call')},"
            f" {plural(data['count'], 'time')}"
        )


class ValueRead(HostSync):
    """A value is read from the device inside a compiled call.

    ## Why
    `.item()`, `.cpu()`, `nonzero`, printing a tensor and copies of pageable memory wait
    until the device has done all its work. Nothing is launched meanwhile, and no CUDA
    graph can hold it.

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
    The value is known later: what depends on it at once must stay.
    """

    code = "HS901"
    explicit = False

    def message(self, subject: Subject) -> str:
        return f"`{subject.expression}` waits for the device inside a compiled call"

    def cause(self, subject: Subject) -> str:
        return "the host needs a value, or memory, that the device is still working on"

    def fix(self, subject: Subject) -> str:
        return (
            "read the value after the call, and not at every step; keep decisions on"
            " the device (torch.where); copy inputs from pinned memory with"
            " non_blocking=True"
        )


class ExplicitWait(HostSync):
    """`torch.cuda.synchronize()` is called inside a compiled call.

    ## Why
    The host waits for all work of the device, and launches nothing meanwhile. A CUDA
    graph cannot hold it.

    ## Bad
        def forward(self, x):
            y = self.layer(x)
            torch.cuda.synchronize()        # left over from timing

    ## Good
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    ## Fix safety
    Streams that the program orders by itself must wait for each other by events.
    """

    code = "HS902"
    explicit = True

    def message(self, subject: Subject) -> str:
        return f"`{subject.expression}` waits for the device inside a compiled call"

    def cause(self, subject: Subject) -> str:
        return "torch.cuda.synchronize() waits until all work of the device is done"

    def fix(self, subject: Subject) -> str:
        return "leave it out; to time the device, record events around the call"


SYNCS: tuple[HostSync, ...] = (ValueRead(), ExplicitWait())
