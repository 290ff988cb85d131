"""The child process that generates code; `codegen_worker` starts it.

It reads requests from a socket and writes answers to it. It ends after some time
without a request. When its parent ends, it ends at once, with all its descendants.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from torchproof.runtime import channel, child_processes
from torchproof.runtime.channel import IDLE_EXIT, Answer, Request

_IDLE_S = 60.0
_PARENT_CHECK_MS = 500
# A child whose GIL is held cannot watch its parent: a timer ends it.
_GRACE_S = 30.0
_LONGEST_S = 1e9  # the longest time that the timer takes


def main() -> None:
    socket_, stacks, parent = (int(argument) for argument in sys.argv[1:4])
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.set_inheritable(socket_, False)
    os.set_inheritable(stacks, False)
    threading.Thread(target=_end_with, args=(parent, socket_), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        _serve(socket.socket(fileno=socket_))
    _leave(0)


def _serve(to_parent: socket.socket) -> None:
    from torchproof.torch_private import remote_codegen

    remote_codegen.prepare()
    channel.write(to_parent, b"ready", lambda: None)
    while True:
        request: Request = pickle.loads(channel.read(to_parent, _Idleness().check))
        patience_s = min(request.seconds_left + _GRACE_S, _LONGEST_S)
        faulthandler.dump_traceback_later(patience_s, exit=True)
        try:
            answer = Answer(
                remote_codegen.generate(request.payload, request.environment)
            )
        except Exception as error:
            answer = Answer(None, f"{type(error).__name__}: {error}")
        faulthandler.cancel_dump_traceback_later()
        channel.write(to_parent, pickle.dumps(answer), lambda: None)


class _Idleness:
    def __init__(self) -> None:
        self._since = time.monotonic()

    def check(self) -> None:
        if time.monotonic() - self._since > _IDLE_S:
            _leave(IDLE_EXIT)


def _end_with(parent: int, socket_: int) -> None:
    """Ends this process when the parent ends.

    Its socket closes, unless a fork of the parent keeps it open. Then the parent's
    process id changes.
    """
    hangup = select.poll()
    hangup.register(socket_, select.POLLRDHUP)
    while not hangup.poll(_PARENT_CHECK_MS) and os.getppid() == parent:
        pass
    _leave(1)


def _leave(code: int) -> NoReturn:
    """Ends without sys.exit, where torch would wait for its worker pool."""
    child_processes.kill_tree(os.getpid(), os.environ[child_processes.MARK_VARIABLE])
    os._exit(code)


if __name__ == "__main__":
    main()
