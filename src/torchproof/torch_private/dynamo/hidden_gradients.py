"""Keeps the compiler from reading `.grad` while another thread trains the model.

For every tensor that it traces, the compiler also describes its gradient. A thread
that reads `.grad` while another one runs a backward pass or sets `.grad` to None can
end the process: autograd writes `.grad` without the GIL. The description is not needed:
if a model uses `.grad` itself, Dynamo traces that as a tensor of its own. Code that
models share must not depend on it either.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torchproof.torch_private.replacements import Place, Replacement

_is_hidden = contextvars.ContextVar("torchproof_hidden_gradients", default=False)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """The compiler finds no gradients inside, in this context."""
    token = _is_hidden.set(True)
    try:
        with _replacement.active():
            yield
    finally:
        _is_hidden.reset(token)


def _places() -> Iterator[Place]:
    from torch._dynamo.variables import builder
    from torch._subclasses import meta_utils

    none = functools.partial(_unless_hidden, otherwise=None)
    yield meta_utils, "safe_grad", none
    yield builder, "safe_grad", none
    # It reads the gradient to know.
    yield builder, "safe_has_grad", functools.partial(_unless_hidden, otherwise=False)


def _unless_hidden(read: Callable[[Any], Any], otherwise: Any) -> Callable[[Any], Any]:
    @functools.wraps(read)
    def reading(tensor: Any) -> Any:
        return otherwise if _is_hidden.get() else read(tensor)

    return reading


_replacement = Replacement(_places)
