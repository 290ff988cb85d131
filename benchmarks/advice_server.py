"""The process that runs programs in forks, for benchmarks/advice.py.

    python -c "from benchmarks import advice_server; advice_server.main()" [MODULE ...]

It imports torch and the modules once. Each job is a fork: it observes a program as
`check --effort quick` does, or records what its calls return.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from torchproof.fixing.proof_server import FileStream
from torchproof.observe.child import observe_job
from torchproof.process import hold, serve
from torchproof.records import JsonObject
from torchproof.targets import Job, calls

_COMPILED = {"dynamic", "fullgraph"}  # what a backend without code generation takes
_DEPTH = 8  # of nested objects in an output
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # for types of 16 bits


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in no file: above a program that is checked, there is no user's."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_filename="<advice>")
    return FunctionType(code, function.__globals__)


@_unseen
def main() -> None:
    hold()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # works after a fork
    torch.set_num_threads(1)
    # Imports what compiling needs. No backward pass: the threads of autograd would be
    # missing after a fork.
    torch.compile(_example, backend="aot_eager")(torch.ones(2))
    torch.compiler.reset()
    for name in ("torch._inductor.compile_fx", *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    serve(_run)


def _example(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


@_unseen
def _run(message: JsonObject) -> int:
    output = os.open(message["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    job = Job.from_json(message["job"])
    if message["records"]:
        return _record(job, message)
    return observe_job(job, FileStream(message["entries"]))


# -- what calls return -----------------------------------------------------------------


def _record(job: Job, message: JsonObject) -> int:
    """Writes what the calls return, or how that differs from what others returned."""
    shown = _shown(job, compiled=message["compiled"])
    if message["reference"] is None:
        Path(message["entries"]).write_bytes(pickle.dumps(shown))
        return 0
    reference = pickle.loads(Path(message["reference"]).read_bytes())
    why = next(differences(reference, shown, ""), None)
    calls_of = zip(reference["calls"], shown["calls"], strict=True)
    raises = any("raises" in new and "raises" not in old for old, new in calls_of)
    found = why and {"why": why, "raises": raises}
    Path(message["entries"]).write_text(json.dumps(found), "utf-8")
    return 0


def _shown(job: Job, *, compiled: bool) -> dict[str, Any]:
    """Outputs and exceptions of all calls; their arguments and the state afterwards."""
    job = calls.resolved(job)
    loaded = calls.fresh(job)
    fn = loaded.fn
    if compiled:
        kept = {k: v for k, v in job.compile.items() if k in _COMPILED}
        fn = torch.compile(fn, backend="eager", **kept)
    outcomes = []
    for number, call in enumerate(loaded.calls):
        calls.before(loaded, number)
        try:
            out = fn(**call) if isinstance(call, dict) else fn(*call)
        except Exception as error:
            outcomes.append({"raises": type(error).__name__})
        else:
            outcomes.append({"returns": plain(out)})
    state = loaded.fn.state_dict() if isinstance(loaded.fn, torch.nn.Module) else {}
    return {
        "calls": outcomes,
        "state": {name: plain(value) for name, value in state.items()},
        "arguments": plain(list(loaded.calls)),
    }


class Unseen(str):
    """The name of a type whose values are not compared."""


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """A value as containers of detached tensors, numbers and texts."""
    if isinstance(value, torch.Tensor):
        return _dense(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if not depth:
        return Unseen(type(value).__name__)
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(plain(each, depth - 1) for each in value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return plain(fields, depth - 1)
    if type(value).__module__ == "numpy":
        return plain(torch.as_tensor(value), depth)
    return Unseen(type(value).__name__)


def _dense(value: torch.Tensor) -> Any:
    value = value.detach()
    if value.is_nested:
        return [_dense(each) for each in value.unbind()]
    value = value.to_dense() if value.is_sparse else value
    return value.clone().as_subclass(torch.Tensor)


def differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """Where two values differ by more than rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if why := _tensors_differ(one, other):
            yield f"{path}: {why}"
    elif path.startswith("arguments") and Unseen in (type(one), type(other)):
        return  # a remedy may pass a list in place of an iterator
    elif type(one) is not type(other):
        yield f"{path}: {_brief(one)}, then {_brief(other)}"
    elif isinstance(one, dict):
        # An edit may add a buffer, but not to an output.
        missing, added = one.keys() - other.keys(), other.keys() - one.keys()
        if missing or (added and path != "state"):
            yield f"{path}: {_keys(one)}, then {_keys(other)}"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{path} {key}".strip())
    elif isinstance(one, list):
        if len(one) != len(other):
            yield f"{path}: {len(one)} values, then {len(other)}"
        for number, (a, b) in enumerate(zip(one, other, strict=False)):
            yield from differences(a, b, f"{path} {number}")
    elif isinstance(one, float) and abs(one - other) <= 1e-4 * max(1.0, abs(one)):
        return
    elif one != other and not (one != one and other != other):
        yield f"{path}: {_brief(one)}, then {_brief(other)}"


def _keys(value: Mapping[str, Any]) -> str:
    raised = value.get("raises")
    return f"raises {raised}" if raised else ", ".join(value)[:60]


def _brief(value: Any) -> str:
    shown = type(value).__name__ if isinstance(value, torch.Tensor) else repr(value)
    return shown[:60]


def _tensors_differ(one: torch.Tensor, other: torch.Tensor) -> str | None:
    forms = [(tuple(each.shape), each.dtype) for each in (one, other)]
    if forms[0] != forms[1]:
        return f"{forms[0]}, then {forms[1]}"
    if not (one.is_floating_point() or one.is_complex()):
        return None if torch.equal(one, other) else "other values"
    tolerance = _TOLERANCE.get(one.dtype, _COARSE)
    with contextlib.suppress(RuntimeError):
        if torch.allclose(one, other, tolerance, tolerance, equal_nan=True):
            return None
    return "other values"
