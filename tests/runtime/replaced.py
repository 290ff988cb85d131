"""Prints what differs in this process from before torchproof was imported.

    python replaced.py CASE ... BACKEND

Torch compiles first, so that what it loads and replaces itself does not count.
"""

from __future__ import annotations

import copyreg
import gc
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._inductor.compile_fx_ext
from torch import Tensor, nn

LIBRARIES = {"torch", "numpy", "sympy"}  # and the standard library
CONFIGS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.compiler")
# Torch makes them anew for each compilation.
GENERATED = ("torch._inductor.runtime.compile_tasks.", "torch.fx.graph_module.")


def attributes() -> dict[str, Any]:
    """Each attribute of each module, and of each class that it defines."""
    found: dict[str, Any] = {}
    roots = LIBRARIES | set(sys.stdlib_module_names)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in roots or name.startswith(GENERATED):
            continue
        found[f"{name} itself"] = type(module)
        for key, value in list(vars(module).items()):
            if not callable(value):
                continue
            found[f"{name}.{key}"] = value
            if isinstance(value, types.FunctionType):
                found[f"{name}.{key}.__code__"] = value.__code__
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{k}": v for k, v in vars(value).items()}
    return {k: v for k, v in found.items() if _is_code(v)}


def _is_code(value: Any) -> bool:
    kinds = (staticmethod, classmethod, property, types.CodeType)
    return callable(value) or isinstance(value, kinds)


def settings() -> dict[str, Any]:
    """What a process has one of."""
    found: dict[str, Any] = {
        "switch interval": sys.getswitchinterval(),
        "threads": sorted(each.name for each in threading.enumerate()),
        "pickled types": sorted(map(str, copyreg.dispatch_table)),
        "garbage collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "trace function": sys.gettrace(),
        "exception hook": sys.excepthook,
        "finders": list(map(type, sys.meta_path)),
        "search path": list(sys.path),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "grad mode": torch.is_grad_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
    }
    for name in CONFIGS:
        config = sys.modules[f"{name}.config"].get_config_copy()  # type: ignore[attr-defined]
        found |= {f"{name}.config.{key}": repr(value) for key, value in config.items()}
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).relu()
        torch._dynamo.graph_break()
        return y + 1


def endless(x: Tensor) -> Tensor:
    if torch.compiler.is_dynamo_compiling():
        for _ in range(10**9):
            x = x + 1
    return x


def train(model: Any) -> None:
    for rows in (2, 3):
        model(torch.ones(rows, 4, requires_grad=True)).sum().backward()


def fails(gm: Any, inputs: Any) -> Any:
    raise RuntimeError("planted")


def interrupts(gm: Any, inputs: Any) -> Any:
    raise KeyboardInterrupt


def interrupted(compile_it: Callable[..., Any]) -> None:
    try:
        train(compile_it(Net(), backend=interrupts))
    except KeyboardInterrupt:
        return
    raise AssertionError("Ctrl-C does not reach the caller")


def in_background(compile_it: Callable[..., Any]) -> None:
    import torchproof

    model = compile_it(Net(), backend="aot_eager", wait=False)
    for _ in range(4):
        train(model)
        while torchproof.status(model).pending:
            torch.ones(1) + 1
    assert torchproof.status(model).compiled_calls, torchproof.status(model)


CASES: dict[str, Callable[[Callable[..., Any]], None]] = {
    "deadline": lambda compile_it: train(
        compile_it(endless, backend="eager", deadline=0.5)
    ),
    "backend raises": lambda compile_it: train(compile_it(Net(), backend=fails)),
    "interrupted": interrupted,
    "wait=False": in_background,
    "aot_eager": lambda compile_it: train(compile_it(Net(), backend="aot_eager")),
    "inductor": lambda compile_it: train(compile_it(Net())),
}


def main(cases: list[str]) -> None:
    warnings.simplefilter("ignore")
    train(torch.compile(Net(), backend=cases[-1]))
    torch.manual_seed(0)
    before, before_settings = attributes(), settings()
    random = torch.get_rng_state()
    import torchproof

    for case in cases:
        CASES[case](torchproof.compile)
        torch.set_rng_state(random)
        after, after_settings = attributes(), settings()
        for name, value in before.items():
            if after.get(name) is not value:
                print(case, name, sep=": ")
        for name, value in before_settings.items():
            if after_settings[name] != value:
                print(case, name, value, after_settings[name], sep=": ")


if __name__ == "__main__":
    main(sys.argv[1:])
