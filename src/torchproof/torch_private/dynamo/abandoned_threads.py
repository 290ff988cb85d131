"""Takes from a compiling thread that cannot be stopped what it holds for all threads.

A thread in a call into C that does not return keeps torch's compile lock, counts as a
compilation in progress (`torch._dynamo.reset` raises as long as there is one), and
leaves FX and Inductor as they are in the middle of a compilation.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from torchproof.torch_private.dynamo import thread_state

# Compilations that torch counts as in progress, with the thread of each.
_in_progress: dict[contextlib.ExitStack, int] = {}


@functools.cache
def install() -> None:
    """Patches torch for good, to know which thread each compilation belongs to."""
    from torch._dynamo.callback import CompilationCallbackHandler

    original = CompilationCallbackHandler.install_callbacks

    @functools.wraps(original)
    @contextlib.contextmanager
    def install_callbacks(self: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(original(self, *args, **kwargs))
            _in_progress[stack] = threading.get_ident()
            stack.callback(_in_progress.pop, stack, None)
            yield

    handler: Any = CompilationCallbackHandler
    handler.install_callbacks = install_callbacks
    os.register_at_fork(after_in_child=_forget_in_fork)


def _forget_in_fork() -> None:
    """A fork has none of the threads that compiled in the parent."""
    from torch._dynamo.callback import callback_handler

    if threading.get_ident() in _in_progress.values():
        return  # the forking thread itself compiles
    _in_progress.clear()
    handler: Any = callback_handler
    callbacks = handler.start_callbacks, handler.end_callbacks
    vars(handler).clear()  # the count of compilations, and its lock
    handler.__init__(*callbacks)


def abandon(thread_id: int) -> None:
    """Lets other threads compile, and `torch._dynamo.reset` work, beside the thread.

    If it returns from C after all, it ends with an error, and nobody waits for it.
    """
    for stack, owner in reversed(list(_in_progress.items())):
        if owner == thread_id:
            with contextlib.suppress(Exception):  # of a callback of the user's
                stack.close()
    if thread_state.holds_compile_lock(thread_id):
        thread_state.reset_compiler()
        thread_state.free_compile_lock()
