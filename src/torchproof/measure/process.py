"""The child process of an arm, started with an environment of its own and asked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from torchproof import lifeline
from torchproof.records import UserError
from torchproof.strategies import NotApplicable

_ARM = "torchproof.arm"
# Caches on other machines would make a start warm that is called cold.
NO_REMOTE_CACHES = {
    f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "0"
    for name in ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE", "BUNDLED_AUTOTUNE")
}


class ArmError(Exception):
    """An arm that could not do what it was told, in one line."""


class Process:
    """The child process of an arm, asked one thing at a time."""

    def __init__(
        self,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        *,
        quiet: bool,
        layout: int = 0,
    ) -> None:
        read, write = os.pipe()
        told = json.dumps({**job, "replies": write})
        output = subprocess.DEVNULL if quiet else sys.stderr
        told_of = {**NO_REMOTE_CACHES, **environment, **lifeline.parent()}
        self._popen = lifeline.begun(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "torchproof.layout", str(layout), _ARM, told],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                env={**os.environ, **told_of},
                start_new_session=True,
            )
        )
        os.close(write)
        self._replies = os.fdopen(read, encoding="utf-8")
        self._unread = 0  # answers that nobody waited for

    def tell(self, do: str, **values: Any) -> None:
        """A command whose answer does not matter; the next question waits for it."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
            self._popen.stdin.flush()
        self._unread += 1

    def ask(self, do: str, limit_s: float | None, **values: Any) -> dict[str, Any]:
        """The answer to a command; `ArmError` where there is none."""
        self.tell(do, **values)
        while self._unread:
            answer = self._read(limit_s)
            self._unread -= 1
        if not answer.pop("ok"):
            if answer.get("skips"):
                raise NotApplicable(answer["error"])
            problem = UserError if answer["usage"] else ArmError
            raise problem(answer["error"])
        return answer

    def _read(self, limit_s: float | None) -> dict[str, Any]:
        ready, _, _ = select.select([self._replies], [], [], limit_s)
        if not ready:
            self.close()
            raise ArmError(f"no answer within {limit_s:.0f} s (--timeout)")
        line = self._replies.readline()
        if not line:
            raise ArmError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> str:
        code = self._popen.wait()
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def close(self) -> None:
        """Ends the process and everything it started."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self._popen.wait()
        self._replies.close()


def free_vram() -> int | None:
    """Bytes free on the first GPU, as the driver says; None where it is not known."""
    told = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            ["nvidia-smi", *told], capture_output=True, text=True, timeout=20
        )
        return int(answer.stdout.split()[0]) * 2**20
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None
