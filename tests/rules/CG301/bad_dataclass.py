"""An output hides in a record, in a list, in an object."""
import dataclasses
import os

import torch

DEVICE = os.environ.get("TARGET_DEVICE", "cpu")


def compiled():
    return torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")


def inputs(count=4):
    return [torch.full((8, 8), i + 1.0, device=DEVICE) for i in range(count)]


@dataclasses.dataclass
class Entry:
    number: int
    scores: torch.Tensor


class Log:
    def __init__(self):
        self.entries = []


def make():
    f, log = compiled(), Log()

    def driver(x):
        with torch.no_grad():
            log.entries.append(Entry(len(log.entries), f(x)))
            return log.entries[0].scores.sum()

    return driver, [(x,) for x in inputs()]


AS_WRITTEN = True
EXPECT = [{"code": "CG301", "kind": "cudagraph_lifetime", "severity": "high", "line": "log.entries.append(Entry(len(log.entries), f(x)))", "fix": ["clone"], "holder": "log.entries[0].scores"}]
