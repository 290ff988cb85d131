"""Compiled code that needs more memory than eager."""

from __future__ import annotations

import json
import os
import resource

import torch

from torchproof.repro.judges.prelude import (
    NONE,
    OTHER,
    SAME,
    call_all,
    compiled,
    made,
    one_line,
)

SHARE, LEAST_BYTES = 0.1, 2**24  # less is no difference


def judge(make, settings, expected, before_call=None):
    """Expected: `ratio`, compiled to eager, of the largest amounts in use."""
    found = []
    for wrap in (False, True):
        peak, error = in_fork(make, settings, before_call, wrap)
        if error:
            how = "compiled it raises" if wrap else "it fails in eager:"
            return OTHER, f"{how} {error}"
        found.append(peak)
    eager, other = found
    told = f"{other / 2**20:.0f} MiB compiled, {eager / 2**20:.0f} MiB in eager"
    more = other - eager
    if more > SHARE * eager and more > LEAST_BYTES:
        half = 1 + (expected["ratio"] - 1) / 2
        if eager and other / eager < half:
            return OTHER, f"{told}: much less than is stated"
        return SAME, told
    return NONE, told


def in_fork(make, settings, before_call, wrap):
    """The peak of a process of its own, or the error it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            told = {"peak": peak_of(make, settings, before_call, wrap)}
        except Exception as error:
            told = {"error": one_line(error)}
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    told = json.loads(text) if text else {"error": "the process was killed"}
    return told.get("peak"), told.get("error")


def peak_of(make, settings, before_call, wrap):
    """Of the second pass over the calls: what compiling itself needs is not counted."""
    stance = "default" if wrap else "force_eager"
    fn, calls = made(make, settings)
    called = compiled(fn, settings) if wrap else fn
    with torch.compiler.set_stance(stance):
        on_cuda = settings["device"] != "cpu"
        if on_cuda:
            call_all(called, fn, calls, settings, before_call)
            torch.cuda.reset_peak_memory_stats()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        call_all(called, fn, calls, settings, before_call)
        if on_cuda:
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
