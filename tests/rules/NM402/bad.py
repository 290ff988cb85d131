"""Dynamo traces through a cache: the value is computed anew, eager keeps the first."""
import functools

import torch

COMPILE = {"backend": "eager"}
settings = {"gain": 1.0}


@functools.lru_cache
def gain():
    return settings["gain"]


def make():
    def f(x):
        return x * gain()

    return f, [(torch.ones(3),)] * 2


def before_call(fn, index):
    settings["gain"] = 1.0 + index


EXPECT = [{"code": "NM402", "kind": "numerics", "severity": "high", "line": "def f(x)", "fix": ["disable", "report"]}]
