"""Decides which calls are padded to which bucket, and counts the waste."""

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
    """A call, its bucket, and the call padded to the size of the bucket."""

    sizes: Sizes
    bucket: Sizes
    padded_call: Call

    @property
    def size(self) -> Size:
        return tuple(self.sizes.values())

    @property
    def padded(self) -> bool:
        return self.sizes != self.bucket


class Padder:
    """Keeps the sizes of all calls, and maps a size to its bucket."""

    def __init__(self, padding: Padding, sizes: Buckets | Iterable[int | Size]) -> None:
        self.padding = padding
        self.observed: Counter[Size] = Counter()
        self.served: Counter[Size] = Counter()  # calls that a bucket's replay answered
        self.bytes: dict[Size, int] = {}  # memory of the recordings, by size
        self.use(sizes)

    @classmethod
    def parse(
        cls, step: Callable[..., Any], pad: Any, unpad: Any, sizes: Any
    ) -> Padder | None:
        """The padder for the arguments of `torchproof.graph`; None without padding."""
        if pad is None:
            if unpad is not None or sizes is not None:
                raise UserError(
                    "unpad and buckets need pad, which names the dimensions to pad"
                )
            return None
        for name, value in {"pad": pad, "unpad": unpad or {}}.items():
            if not isinstance(value, Mapping):
                kind = type(value).__name__
                raise UserError(f"{name}: must be a dict of dimensions, not a {kind}")
        return cls(Padding.parse(pad, unpad, step), () if sizes is None else sizes)

    def use(self, sizes: Buckets | Iterable[int | Size]) -> None:
        """Replaces the buckets."""
        if not isinstance(sizes, Buckets):
            every = _sizes(sizes)
            if any(len(size) != len(self.padding.names) for size in every):
                names = ", ".join(self.padding.names)
                raise UserError(f"buckets: each needs one number for each of {names}")
            ordered = sorted(every, key=lambda size: (math.prod(size), size))
            sizes = Buckets(tuple(map(Bucket, ordered)), self.padding.names)
        self.buckets = sizes

    def fit(self, call: Call) -> Fit | None:
        """The bucket and the padded call; None if no bucket fits."""
        sizes = self.padding.sizes(*call)
        if sizes is None or not all(sizes.values()):
            return None
        size = tuple(sizes.values())
        self.observed[size] += 1
        bucket = self.buckets.bucket_for(size)
        if bucket is None:
            return None
        if bucket == size:
            return Fit(sizes, sizes, call)
        bucket_sizes = dict(zip(self.padding.names, bucket, strict=True))
        padded_call = self.padding.padded(*call, bucket_sizes)
        return Fit(sizes, bucket_sizes, padded_call)

    def cut(self, output: Any, fit: Fit, shapes: Shapes) -> Any:
        """Cuts the output to the size of the call."""
        if self.padding.outputs is not None:
            return self.padding.cut(output, fit.sizes, fit.bucket)
        return padding.cut_to(output, shapes)

    def counted(self) -> Buckets:
        """The buckets with the counts of the calls that they answered."""
        return self.buckets.counted(self.served)

    def learn(self, call: Call, pool_bytes: int | None) -> None:
        """Stores how much memory the recording of this call took."""
        sizes = self.padding.sizes(*call)
        if sizes is not None and pool_bytes:
            self.bytes[tuple(sizes.values())] = pool_bytes

    def plan(self, **limits: Any) -> Buckets:
        """Plans buckets for the observed sizes."""
        if not self.observed:
            raise UserError(
                "no call was observed yet: call the step before planning buckets"
            )
        memory = bucket_planner.Memory(self.bytes) if self.bytes else None
        return bucket_planner.plan(
            self.observed, names=self.padding.names, memory=memory, **limits
        )


def _sizes(buckets: Any) -> list[Size]:
    """Normalises the buckets: each is a number or a tuple of numbers."""
    try:
        every = [(each,) if isinstance(each, int) else tuple(each) for each in buckets]
    except TypeError:
        every = [()]
    numbers = [number for size in every for number in size]
    if not all(every) or any(type(n) is not int or n < 1 for n in numbers):
        text = one_line(repr(buckets), 80)
        raise UserError(f"buckets={text}: sizes must be positive integers")
    return every
