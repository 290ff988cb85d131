"""Keeps the compiler from reading `.grad` while another thread trains the model.

For every tensor that it traces, the compiler also describes its gradient. A thread
that reads `.grad` while another one runs a backward pass or sets `.grad` to None can
end the process: autograd writes `.grad` without the GIL. The description is not needed:
if a model uses `.grad` itself, Dynamo traces that as a tensor of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchproof.torch_private.dynamo.tracing_flags import ThreadFlag

_flag = ThreadFlag()
hidden = _flag.held  # a context; gradients are hidden from this thread only


@functools.cache
def install() -> None:
    """Patches torch for good."""
    from torch._dynamo.variables import builder
    from torch._subclasses import meta_utils

    for module, name, otherwise in (
        (meta_utils, "safe_grad", None),
        (builder, "safe_grad", None),
        (builder, "safe_has_grad", False),  # it reads the gradient to know
    ):
        setattr(module, name, _unless_hidden(getattr(module, name), otherwise))


def _unless_hidden(read: Callable[[Any], Any], otherwise: Any) -> Callable[[Any], Any]:
    @functools.wraps(read)
    def reading(tensor: Any) -> Any:
        return otherwise if _flag.is_set else read(tensor)

    return reading
