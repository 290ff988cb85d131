"""asyncio.run inside the function: the coroutine is lost and the call fails, though eager copes."""
import asyncio

import torch


async def fetch(x):
    return x + 1


def gathered(x):
    x = x * 2
    y = asyncio.run(fetch(x))
    return y.relu()


def make():
    return gathered, [(torch.randn(4),)]


EXPECT = [{"code": "NM407", "kind": "numerics", "line": "asyncio.run(fetch(x))", "severity": "high", "fix": ["outside", "disable", "async"]}]
