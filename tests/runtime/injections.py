"""Ways to make compiling go wrong, from outside torchproof.

Each is prepared before anything is compiled and does nothing until it is armed: so a
first compilation can go well and a later one cannot. `fired` says that it was reached.
"""

from __future__ import annotations

import itertools
import os
import pkgutil
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
    within = ""

    def arm(self) -> None:
        deeds["fake kernel"] = self._run

    def _run(self) -> None:
        if self.within and not _is_below(self.within):
            return
        self.mark.touch()
        self.deed()

    @staticmethod
    def deed() -> None: ...


def _is_below(part: str) -> bool:
    frame = sys._getframe()
    while frame is not None:
        if part in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def in_fake_kernel(deed: Callable[[], None], within: str = "") -> type[FakeKernel]:
    """`within`: the deed is done below a file whose path has this part."""
    fields = {"deed": staticmethod(deed), "within": within}
    return type("FakeKernel", (FakeKernel,), fields)


def fail() -> None:
    raise ValueError("planted in a fake kernel")


def double_often(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = double(x) / 2
    return x


class SlowKernel(FakeKernel):
    """Each call of a fake kernel takes a second: no single step misses the deadline."""

    op = staticmethod(double_often)

    @staticmethod
    def deed() -> None:
        time.sleep(1.0)


AUTOGRAD = "/torch/_functorch/"
RAISES_IN_AUTOGRAD = in_fake_kernel(fail, AUTOGRAD)


class SlowInAutograd(SlowKernel):
    within = AUTOGRAD


def endless(x: torch.Tensor) -> torch.Tensor:
    """Nothing in eager; Dynamo traces it for ever."""
    if torch.compiler.is_dynamo_compiling():
        for _ in range(10**9):
            x = x + 1
    return x.sin()


class TracesForEver(Injection):
    """A loop that Dynamo unrolls."""

    op = staticmethod(endless)

    def was_reached(self, status: Any) -> bool:
        """Nothing else shows that it was traced."""
        return any(item.phase == "tracing" for item in status.fallbacks)


class ClockJumps(TracesForEver):
    """The time of day is another at each look, as where it is being set."""

    def arm(self) -> None:
        jumps = itertools.cycle((3600.0, -3600.0, 86400.0))
        time.time = lambda: _REAL_TIME() + next(jumps)

    def disarm(self) -> None:
        time.time = _REAL_TIME


_REAL_TIME = time.time


# -- the C++ compiler ------------------------------------------------------------------


def _real_compiler() -> str:
    program, *arguments = shlex.split(os.environ.get("CXX") or "g++")
    found = shutil.which(program)
    assert found, f"there is no C++ compiler: {program}"
    return shlex.join([found, *arguments])


class Program(Injection):
    """What goes by the name of a compiler runs a script once armed."""

    name, script = "", ""
    passes = ""  # a condition of the shell under which the real one runs

    def __init__(self, folder: Path, real: str) -> None:
        super().__init__(folder)
        self.gate = folder / "armed"
        self.program = folder / "bin" / self.name
        self.program.parent.mkdir()
        self.program.write_text(
            f"#!/bin/sh\nif [ ! -e {self.gate} ]{self.passes}; then\n"
            f'exec {real} "$@"\nfi\n'
            f"touch {self.mark}\n"
            f"{self.script.replace('FOLDER', str(folder)).replace('REAL', real)}\n"
        )
        self.program.chmod(0o755)

    def arm(self) -> None:
        self.gate.touch()


class Compiler(Program):
    name, script = "g++", "exec sleep 1000"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _real_compiler())
        # Torch takes CXX where it is set, which a process that has loaded Inductor no
        # longer reads, and otherwise the first g++.
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{self.program.parent}{os.pathsep}{path}"
        os.environ["CXX"] = str(self.program)
        torch._inductor.config.cpp.cxx = (None, str(self.program))

    def was_reached(self, status: Any) -> bool:
        """A compiler that starts after the deadline is not what took too long."""
        is_late = any(item.phase == "worker pool" for item in status.fallbacks)
        return self.fired and not is_late


class KeptCompiler(Compiler):
    """It is slow in this process, as no child takes a graph with a custom operator."""

    op, script = staticmethod(double), 'sleep 3\nexec REAL "$@"'


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
    """A function of torch's is replaced by `instead` when the fault is armed."""

    place = ""

    def arm(self) -> None:
        path, _, name = self.place.rpartition(".")
        owner = pkgutil.resolve_name(path)
        self.original = getattr(owner, name)
        # A function, which a class binds to its instances.
        setattr(owner, name, lambda *args, **named: self.instead(*args, **named))

    def instead(self, *args: Any) -> Any:
        raise NotImplementedError

    def fail_after(self, run: Callable[[], Any]) -> Any:
        """The first time, the result is dropped, and an error raised."""
        if self.mark.exists():
            return run()
        self.mark.touch()
        run()
        raise torch.OutOfMemoryError("planted in a first run")


class KeptRaises(Patch):
    """Code generation in this process, of a graph that no child can take."""

    op = staticmethod(double)
    place = "torch._inductor.graph:GraphLowering.codegen"

    def instead(self, graph: Any) -> Any:
        self.mark.touch()
        raise ValueError("planted in code generation")


class FirstRunFails(Patch):
    """The compiled graph does its work, changes and draws included, and then fails."""

    place = "torch._inductor.output_code:CompiledFxGraph.__call__"

    def instead(self, graph: Any, inputs: Any) -> Any:
        return self.fail_after(lambda: self.original(graph, inputs))


class BackwardFails(Patch):
    """A kernel that the code of the backward calls has done its work, and fails."""

    place = "torch._inductor.select_algorithm:extern_kernels.mm"

    def arm(self) -> None:
        pass

    def after_forward(self) -> None:
        super().arm()

    def instead(self, *args: Any, **kwargs: Any) -> Any:
        self.fail_after(lambda: self.original(*args, **kwargs))
