"""Ways to make compiling and recording go wrong on a GPU, from outside torchproof."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from injections import (
    _MARKED,
    CannotInject,
    InChild,
    Injection,
    Patch,
    Program,
)
from surroundings import MARK

# -- ptxas, which Triton starts for each kernel ----------------------------------------


def _real_ptxas() -> Path:
    try:
        import triton
    except ImportError:
        raise CannotInject("there is no Triton") from None
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not path.exists():
        raise CannotInject("Triton has no ptxas of its own")
    return path


class Ptxas(Program):
    needs_pool = True
    # It waits without a process of its own, so that it is seen by its name.
    name, script = "ptxas", "read line <> FOLDER/never"
    passes = ' || [ "$1" = --version ]'

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, str(_real_ptxas()))
        os.mkfifo(folder / "never")
        os.environ["TRITON_PTXAS_PATH"] = str(self.program)


class PtxasCrashes(Ptxas):
    script = "kill -SEGV $$"


class PtxasFails(Ptxas):
    script = "echo 'ptxas fatal   : planted' >&2\nexit 1"


# -- memory of the device --------------------------------------------------------------

_LEFT_BYTES = 64 << 20  # for eager, and not enough for another process's context
_OCCUPANT = """
import sys, torch
torch.zeros(1, device="cuda")
print("ready", flush=True)
sys.stdin.readline()
held, size, left = [], 1 << 30, int(sys.argv[1])
while size >= 2 << 20:
    if torch.cuda.mem_get_info()[0] - size < left:
        size //= 2
        continue
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        size //= 2
print("taken", flush=True)
sys.stdin.readline()
"""


class OtherProcess(Injection):
    """Another process has taken the memory of the device."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._occupant = subprocess.Popen(
            [sys.executable, "-c", _OCCUPANT, str(_LEFT_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # It is no process of the cell's.
            env={name: v for name, v in os.environ.items() if name != MARK},
        )

    def prepare(self) -> None:
        assert self._occupant.stdout is not None
        assert self._occupant.stdout.readline() == "ready\n"

    def arm(self) -> None:
        self._tell()
        assert self._occupant.stdout is not None
        if self._occupant.stdout.readline() == "taken\n":
            self.mark.touch()

    def _tell(self) -> None:
        assert self._occupant.stdin is not None
        self._occupant.stdin.write("\n")
        self._occupant.stdin.flush()

    def disarm(self) -> None:
        self._tell()
        self._occupant.wait(30)


def take_all() -> list[torch.Tensor]:
    """All memory of the device that can be had, as tensors."""
    torch.cuda.empty_cache()
    held, size = [], 1 << 30
    while size >= 2 << 20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return held


def wide(x: torch.Tensor) -> torch.Tensor:
    """It needs some megabytes for a product that cannot be fused away."""
    rows = x.repeat(256, 64)
    return x + (rows @ rows.t()).mean() * 1e-3


class FirstRunOutOfMemory(Patch):
    """All memory of the device is in use while a compiled graph first runs."""

    op = staticmethod(wide)
    place = "torch._inductor.output_code:CompiledFxGraph.__call__"

    def instead(self, graph: Any, inputs: Any) -> Any:
        if self.mark.exists():
            return self.original(graph, inputs)
        self.mark.touch()
        held = take_all()
        try:
            return self.original(graph, inputs)
        finally:
            held.clear()
            torch.cuda.empty_cache()


class AutotuningOutOfMemory(InChild):
    """All memory of the device is in use while the child times kernels."""

    needs_pool = True
    options = MappingProxyType(
        {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    )
    code = _MARKED + (
        "import os, sys, threading, time\n"
        "from gpu_injections import take_all\n"
        "held = take_all()\n"
        "def release():\n"
        "    while not os.path.exists('MARK-over'):\n"
        "        time.sleep(0.05)\n"
        "    held.clear()\n"
        "threading.Thread(target=release, daemon=True).start()\n"
    )

    def disarm(self) -> None:
        Path(f"{self.mark}-over").touch()


# -- kernels that read and write where they may not ------------------------------------


def write_astray() -> None:
    """A kernel writes to an address that is nobody's; the device is lost for good."""
    from gpu_kernels import astray

    astray[(1,)](torch.zeros(8, device="cuda"), 1 << 44)
    torch.cuda.synchronize()


class LosesDevice(Injection):
    """A backend of the user's; before it is armed, it runs graphs as they are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_armed = False
        self.arguments = {"backend": self._compile}

    def arm(self) -> None:
        self.is_armed = True

    def _compile(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        plain: Callable[..., Any] = gm.forward
        if not self.is_armed:
            return plain
        self.mark.touch()

        def run(*args: Any) -> Any:
            write_astray()
            return plain(*args)

        return run


class LosesDeviceOfChild(LosesDevice):
    """`example=` lets a child try the model first."""

    gives_example = True


# -- captures --------------------------------------------------------------------------

_during_capture: dict[str, Callable[[], None]] = {}


@torch.library.custom_op("faults::recorded", mutates_args=())
def recorded(x: torch.Tensor) -> torch.Tensor:
    # Not the function of torch.cuda: a rehearsal shows what that one does.
    if x.is_cuda and torch._C._cuda_isCurrentStreamCapturing():
        _during_capture.get("deed", lambda: None)()
    return x * 2


@recorded.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _recorded_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


recorded.register_autograd(_recorded_backward)


class InCapture(Injection):
    """An operator of the model's does the deed while a stream is captured."""

    op = staticmethod(recorded)

    def arm(self) -> None:
        _during_capture["deed"] = self._run

    def _run(self) -> None:
        self.mark.touch()
        self.deed()

    def deed(self) -> None: ...


class Synchronizes(InCapture):
    def deed(self) -> None:
        torch.cuda.synchronize()


class _OtherThread(InCapture):
    """Another thread does something to the device while this one captures."""

    def deed(self) -> None:
        stream = torch.cuda.current_stream()
        other = threading.Thread(target=self._try, args=(stream,), name="other user")
        other.start()
        other.join(30)

    def _try(self, stream: torch.cuda.Stream) -> None:
        try:
            self.use_device(stream)
        except RuntimeError as error:
            # Its own answer to a capture, which torch documents.
            (self.folder / "other-thread.txt").write_text(str(error))

    def use_device(self, stream: torch.cuda.Stream) -> None: ...


class OtherThreadWaits(_OtherThread):
    """It waits for the stream that is captured, which makes the capture invalid."""

    def use_device(self, stream: torch.cuda.Stream) -> None:
        same = torch.cuda.ExternalStream(stream.cuda_stream)  # type: ignore[no-untyped-call]
        same.synchronize()


class OtherThreadWorks(_OtherThread):
    """It allocates memory, runs a kernel and waits for a stream of its own."""

    def use_device(self, stream: torch.cuda.Stream) -> None:
        own = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(own):
            torch.ones(48 << 20, device="cuda").sum()
            own.synchronize()
