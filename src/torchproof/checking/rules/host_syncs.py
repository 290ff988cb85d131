"""HS9xx: lines at which a program with CUDA graphs waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchproof.checking.rules.rule import EventGroup, Facts, Rule, plural
from torchproof.records import Severity, place_of

_OFTEN = 3  # the first calls compile, tune and record, and wait while they do


class HostSync(Rule):
    """Base of the rules about waits of a program that asks for CUDA graphs."""

    kind = "host_sync"

    def wants(self, wait: Mapping[str, Any]) -> bool:
        raise AssertionError(f"{type(self).__name__} does not say what it is about")

    def event_groups(self, facts: Facts) -> Iterator[EventGroup]:
        if not facts.events("cudagraph", "cudagraph_skip"):
            return
        for event in facts.events("host_sync"):
            where = place_of(event.frames)
            if where.frame and event.data["calls"] >= _OFTEN and self.wants(event.data):
                yield EventGroup((event,), where, facts, event.data["count"])

    def severity(self, group: EventGroup) -> Severity:
        """Low where the graph breaks as well: that finding says how to mend it."""
        broken = {
            (frame.file, frame.line)
            for event in group.facts.events("graph_break")
            for frame in event.frames
        }
        frame = group.frame
        return "low" if frame and (frame.file, frame.line) in broken else "medium"

    def message(self, group: EventGroup) -> str:
        return f"`{group.expression}` waits for the device inside a compiled call"

    def evidence(self, group: EventGroup) -> Iterable[str]:
        data = group.data
        yield (
            f"waited {'in' if data['inside'] else 'after'} {data['calls']} of"
            f" {plural(data['of'], 'compiled call')}, {plural(data['count'], 'time')}"
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

    def wants(self, wait: Mapping[str, Any]) -> bool:
        return bool(wait["inside"] and not wait["explicit"])

    def cause(self, group: EventGroup) -> str:
        return "the host needs a value, or memory, that the device is still working on"

    def fix(self, group: EventGroup) -> str:
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

    def wants(self, wait: Mapping[str, Any]) -> bool:
        return bool(wait["inside"] and wait["explicit"])

    def cause(self, group: EventGroup) -> str:
        return "torch.cuda.synchronize() waits until all work of the device is done"

    def fix(self, group: EventGroup) -> str:
        return "leave it out; to time the device, record events around the call"


class WaitBetweenCalls(HostSync):
    """The program waits for the device after each compiled call.

    ## Why
    A replayed graph costs the host next to nothing, so the host could run ahead and
    have the next step ready. Where it reads a value after each call, the device idles
    from then until the next launch.

    ## Bad
        for batch in batches:
            total += step(batch).item()

    ## Good
        for batch in batches:
            total += step(batch).detach()        # a tensor on the device
        print(total.item())

    ## Fix safety
    The value is known later. To read a loss every hundred steps costs nothing to speak
    of.
    """

    code = "HS903"

    def wants(self, wait: Mapping[str, Any]) -> bool:
        return not wait["inside"]

    def message(self, group: EventGroup) -> str:
        return f"`{group.expression}` waits for the device after each compiled call"

    def cause(self, group: EventGroup) -> str:
        return "the host launches nothing until the device has done what there is"

    def fix(self, group: EventGroup) -> str:
        return (
            "read values every so many steps, or sum them up on the device and read"
            " them at the end; copy inputs from pinned memory with non_blocking=True"
        )

    def severity(self, group: EventGroup) -> Severity:
        return "low"


SYNCS: tuple[HostSync, ...] = (ValueRead(), ExplicitWait(), WaitBetweenCalls())
