"""Ways to make compiling go wrong, from outside torchproof.

Each is prepared before anything is compiled and does nothing until it is armed: so a
first compilation can go well and a later one cannot. `fired` says that it was reached.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch._inductor.config

Operator = Callable[[torch.Tensor], torch.Tensor]
HEALTHY: Operator = torch.sin


class CannotInject(Exception):
    """This machine does not allow the fault; the message says why."""


class Injection:
    """`op` is what the model calls once the fault is armed; `arguments` are those
    that torchproof.compile gets in addition, `options` are Inductor's."""

    op: Operator = HEALTHY
    arguments: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    needs_pool = False  # of Inductor's processes, in which Triton compiles kernels
    gives_example = False  # to torchproof.compile, after the fault was armed
    fills_cache = False  # the same graphs are compiled once before anything else

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = folder / "fired"

    def prepare(self) -> None:
        """Waits until it can be armed at once."""

    def arm(self) -> None:
        pass

    def disarm(self) -> None:
        """What torch.compile itself cannot do with the fault in place comes after."""

    def after_forward(self) -> None:
        """Called between a training step's forward and its backward."""

    def wrong_afterwards(self) -> list[str]:
        """What does not hold after the fault, beyond what every cell checks."""
        return []

    @property
    def fired(self) -> bool:
        return self.mark.exists()

    def was_reached(self, status: Any) -> bool:
        """Whether the fault was met; a slow machine may not come that far in time."""
        return self.fired


# -- custom operators, whose fake kernels torch calls while it compiles ----------------

deeds: dict[str, Callable[[], None]] = {}


@torch.library.custom_op("faults::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    deeds.get("fake kernel", lambda: None)()
    return torch.empty_like(x)


def _double_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


double.register_autograd(_double_backward)


class FakeKernel(Injection):
    """The fake kernel of an operator of the model's does the deed."""

    op = staticmethod(double)
    within = ""  # the deed is done below a file whose path has this part

    def arm(self) -> None:
        deeds["fake kernel"] = self._run

    def _run(self) -> None:
        if self.within and not _is_below(self.within):
            return
        self.mark.touch()
        self.deed()

    def deed(self) -> None: ...


def _is_below(part: str) -> bool:
    frame = sys._getframe()
    while frame is not None:
        if part in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class LoopsInPython(FakeKernel):
    def deed(self) -> None:
        while True:
            pass


class RaisesInTracing(FakeKernel):
    def deed(self) -> None:
        raise ValueError("planted in a fake kernel")


class RaisesInAutograd(RaisesInTracing):
    within = "/torch/_functorch/"


class LoopsInAutograd(LoopsInPython):
    within = "/torch/_functorch/"


class ClockJumps(LoopsInPython):
    """The time of day is another at each look, as where it is being set."""

    def arm(self) -> None:
        super().arm()
        make_clock_jump()

    def disarm(self) -> None:
        time.time = _REAL_TIME


_REAL_TIME = time.time


def make_clock_jump() -> None:
    jumps = itertools.cycle((3600.0, -3600.0, 86400.0))
    time.time = lambda: _REAL_TIME() + next(jumps)


# -- the C++ compiler ------------------------------------------------------------------


def _real_compiler() -> str:
    program, *arguments = shlex.split(os.environ.get("CXX") or "g++")
    found = shutil.which(program)
    assert found, f"there is no C++ compiler: {program}"
    return shlex.join([found, *arguments])


class Compiler(Injection):
    """What goes by the compiler's name is a program that runs a script once armed."""

    script = "exec sleep 1000"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = folder / "armed"
        program = folder / "bin" / "g++"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\n[ -e {self.gate} ] || exec {_real_compiler()} "$@"\n'
            f"touch {self.mark}\n{self.script}\n"
        )
        program.chmod(0o755)
        # Torch takes CXX where it is set, which a process that has loaded Inductor no
        # longer reads, and otherwise the first g++.
        os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        os.environ["CXX"] = str(program)
        torch._inductor.config.cpp.cxx = (None, str(program))

    def arm(self) -> None:
        self.gate.touch()

    def was_reached(self, status: Any) -> bool:
        """A compiler that starts after the deadline is not what took too long."""
        is_late = any(item.phase == "worker pool" for item in status.fallbacks)
        return self.fired and not is_late


class KeptCompiler(Compiler):
    """The same in this process, as no child takes a graph with a custom operator."""

    op = staticmethod(double)


class BackwardCompiler(Compiler):
    """The compiler of the forward is well."""

    def arm(self) -> None:
        pass

    def after_forward(self) -> None:
        self.gate.touch()


# -- the child that generates code -----------------------------------------------------

_PATCH = """
import importlib.abc, importlib.util, os, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch._inductor.graph":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            codegen = module.GraphLowering.codegen
            def patched(self):
                if os.path.exists({deed!r}):
                    exec(compile(open({deed!r}).read(), "planted.py", "exec"), {{}})
                return codegen(self)
            module.GraphLowering.codegen = patched
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())

from importlib.machinery import PathFinder

rest = [entry for entry in sys.path if entry != {folder!r}]
spec = PathFinder.find_spec("typing_extensions", rest)
spec.loader.exec_module(sys.modules["typing_extensions"])
"""


_MARKED = "open('MARK', 'w').close()\n"


class InChild(Injection):
    """Python code that the child runs when it is about to generate code."""

    code = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._deed = folder / "deed.py"
        # Torch imports a module of this name early. `sitecustomize` would be simpler,
        # but some systems have one in their standard library, which comes first.
        text = _PATCH.format(deed=str(self._deed), folder=str(folder))
        (folder / "typing_extensions.py").write_text(text)
        sys.path.insert(0, str(folder))

    def arm(self) -> None:
        self._deed.write_text(self.code.replace("MARK", str(self.mark)))


def in_child(code: str, *, marked: bool = True) -> type[InChild]:
    """An injection of this code; `marked`: it is reached before the code runs."""
    return type("InChild", (InChild,), {"code": (_MARKED if marked else "") + code})


_SIGNAL = "import os, signal; os.kill(os.getpid(), signal."
CHILD_KILLED = in_child(f"{_SIGNAL}SIGKILL)")
CHILD_CRASHES = in_child(f"{_SIGNAL}SIGSEGV)")
CHILD_STOPPED = in_child(f"{_SIGNAL}SIGSTOP)")
CHILD_LOOPS = in_child("while True: pass")
CHILD_RAISES = in_child("raise ValueError('planted in code generation')")
CHILD_STOPPED_FOR_A_WHILE = in_child(
    "import os, signal, subprocess\n"
    "command = f'sleep 2; kill -CONT {os.getpid()}'\n"
    "helper = subprocess.Popen(['sh', '-c', command])\n"
    "os.kill(os.getpid(), signal.SIGSTOP)\n"
    "helper.wait()"
)
# The pool that runs compilers has taken the work and does not do it.
CHILD_WAITS_FOR_POOL = in_child(
    "import concurrent.futures\n"
    "from torch._inductor.async_compile import AsyncCompile\n"
    "def lose(cls, task):\n"
    "    open('MARK', 'w').close()\n"
    "    return concurrent.futures.Future()\n"
    "AsyncCompile.submit = classmethod(lose)",
    marked=False,
)


class ChildEatsMemory(InChild):
    code = (
        _MARKED + "import time\nheld = []\n"
        "while True:\n    held.append(b'x' * (64 << 20))\n    time.sleep(0.05)"
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ["TORCHPROOF_CHILD_MEMORY_MB"] = "2000"


# -- this process ----------------------------------------------------------------------


class Patch(Injection):
    """A function of torch's is replaced when the fault is armed."""

    place = ""

    def arm(self) -> None:
        module, _, path = self.place.partition(":")
        owner: Any = importlib.import_module(module)
        *parts, name = path.split(".")
        for part in parts:
            owner = getattr(owner, part)
        self.original = getattr(owner, name)
        setattr(owner, name, self.replacement())

    def replacement(self) -> Callable[..., Any]:
        raise NotImplementedError


class KeptRaises(Patch):
    """Code generation in this process, of a graph that no child can take."""

    op = staticmethod(double)
    place = "torch._inductor.graph:GraphLowering.codegen"

    def replacement(self) -> Callable[..., Any]:
        def codegen(graph: Any) -> Any:
            self.mark.touch()
            raise ValueError("planted in code generation")

        return codegen


class FirstRunFails(Patch):
    """The compiled graph does its work, changes and draws included, and then fails."""

    place = "torch._inductor.output_code:CompiledFxGraph.__call__"

    def replacement(self) -> Callable[..., Any]:
        original = self.original

        def call(graph: Any, inputs: Any) -> Any:
            answer = original(graph, inputs)
            if self.mark.exists():
                return answer
            self.mark.touch()
            del answer
            raise torch.OutOfMemoryError("planted in a first run")

        return call


class BackwardFails(Patch):
    """A kernel that the code of the backward calls has done its work, and fails."""

    place = "torch._inductor.select_algorithm:extern_kernels.mm"

    def arm(self) -> None:
        pass

    def after_forward(self) -> None:
        super().arm()

    def replacement(self) -> Callable[..., Any]:
        original = self.original

        def mm(*args: Any, **kwargs: Any) -> Any:
            original(*args, **kwargs)
            if not self.mark.exists():
                self.mark.touch()
                raise torch.OutOfMemoryError("planted in a first run")

        return mm
