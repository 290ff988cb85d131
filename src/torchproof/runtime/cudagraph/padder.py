"""Which calls of a graphed step are padded, to which size, and what that wastes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.records import UserError, one_line
from torchproof.runtime.cudagraph import bucket_planner, padding
from torchproof.runtime.cudagraph.bucket_planner import Bucket, Buckets, Size
from torchproof.runtime.cudagraph.call_inputs import Call
from torchproof.runtime.cudagraph.padding import Padding, Shapes, Sizes


@dataclass(frozen=True)
class Fit:
    """A call that goes to a bucket, and the call of that size."""

    own: Sizes
    bucket: Sizes
    grown: Call

    @property
    def size(self) -> Size:
        return tuple(self.own.values())

    @property
    def padded(self) -> bool:
        return self.own != self.bucket


class Padder:
    """Knows the sizes that calls had, and the buckets they go to."""

    def __init__(self, padding: Padding, sizes: Buckets | Iterable[int | Size]) -> None:
        self.padding = padding
        self.observed: Counter[Size] = Counter()
        self.served: Counter[Size] = Counter()  # of those, by a replay of a bucket
        self.bytes: dict[Size, int] = {}  # of recordings, by their size
        self.use(sizes)

    @classmethod
    def parse(
        cls, step: Callable[..., Any], pad: Any, unpad: Any, sizes: Any
    ) -> Padder | None:
        """From the arguments of `torchproof.graph`."""
        if pad is None:
            if unpad is not None or sizes is not None:
                raise UserError("unpad and buckets need pad: say what may be padded")
            return None
        for name, given in {"pad": pad, "unpad": unpad or {}}.items():
            if not isinstance(given, Mapping):
                kind = type(given).__name__
                raise UserError(f"{name}: give a dict of dimensions, not a {kind}")
        return cls(Padding.parse(pad, unpad, step), () if sizes is None else sizes)

    def use(self, sizes: Buckets | Iterable[int | Size]) -> None:
        """From here on, these are the buckets."""
        if not isinstance(sizes, Buckets):
            every = _sizes(sizes)
            if any(len(size) != len(self.padding.names) for size in every):
                names = ", ".join(self.padding.names)
                raise UserError(f"buckets: each needs a number for each of {names}")
            ordered = sorted(every, key=lambda size: (math.prod(size), size))
            sizes = Buckets(tuple(map(Bucket, ordered)), self.padding.names)
        self.buckets = sizes

    def fit(self, call: Call) -> Fit | None:
        """None where no bucket takes the call, and for an empty one."""
        own = self.padding.sizes(*call)
        if own is None or not all(own.values()):
            return None
        size = tuple(own.values())
        self.observed[size] += 1
        bucket = self.buckets.bucket_for(size)
        if bucket is None:
            return None
        if bucket == size:
            return Fit(own, own, call)
        wanted = dict(zip(self.padding.names, bucket, strict=True))
        return Fit(own, wanted, self.padding.padded(*call, wanted))

    def cut(self, output: Any, fit: Fit, shapes: Shapes) -> Any:
        """The output for the call's own size."""
        if self.padding.outputs is not None:
            return self.padding.cut(output, fit.own, fit.bucket)
        return padding.cut_to(output, shapes)

    def counted(self) -> Buckets:
        """The buckets with the calls that they have answered."""
        return self.buckets.counted(self.served)

    def learn(self, call: Call, pool_bytes: int | None) -> None:
        """How much memory a recording of this call took."""
        own = self.padding.sizes(*call)
        if own is not None and pool_bytes:
            self.bytes[tuple(own.values())] = pool_bytes

    def plan(self, **limits: Any) -> Buckets:
        """Buckets for the sizes that were observed."""
        if not self.observed:
            raise UserError("no call has been observed yet: plan after some calls")
        memory = bucket_planner.Memory(self.bytes) if self.bytes else None
        return bucket_planner.plan(
            self.observed, names=self.padding.names, memory=memory, **limits
        )


def _sizes(given: Any) -> list[Size]:
    """Buckets as people write them: numbers, or a tuple of numbers for each."""
    try:
        every = [(each,) if isinstance(each, int) else tuple(each) for each in given]
    except TypeError:
        every = [()]
    numbers = [number for size in every for number in size]
    if not all(every) or any(type(n) is not int or n < 1 for n in numbers):
        shown = one_line(repr(given), 80)
        raise UserError(f"buckets={shown}: give sizes, each a whole number above 0")
    return every
