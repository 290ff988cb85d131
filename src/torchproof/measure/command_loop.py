"""The loop of a worker process: a command comes in, a reply goes out."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from typing import Any

from torchproof.measure.replies import USER_ERRORS
from torchproof.process import Channel, Ended, Message
from torchproof.records import RaisedError, UserError, whose
from torchproof.torch_private import compile_phase


def run_commands(worker: Any) -> int:
    """Runs each command as the method of that name, until the parent is gone."""
    channel = Channel.to_parent()
    with contextlib.suppress(Ended):
        while True:
            command = channel.receive()
            channel.send(_reply(worker, command.pop("do"), command))
    return 0


def _reply(worker: Any, name: str, values: Message) -> Message:
    """Runs a command; returns its reply, or the error as one line."""
    try:
        within = getattr(worker, "command", contextlib.nullcontext)
        with within(name):
            reply = getattr(worker, name)(**values)
        # Not `to_json`: the error of an output may be infinite.
        return {"reply": {} if reply is None else dataclasses.asdict(reply)}
    except UserError as error:
        kind = next(kind for kind in USER_ERRORS if isinstance(error, kind)).__name__
        return {"error": str(error), "details": error.details, "kind": kind}
    except Exception as error:
        message = traceback.format_exception_only(error)[-1].strip()
        frames = traceback.extract_tb(error.__traceback__)
        outside_torch = [f for f in frames if whose(f.filename) in {"user", "library"}]
        if outside_torch:
            message = (
                f"{outside_torch[-1].filename}:{outside_torch[-1].lineno}: {message}"
            )
        raised = RaisedError.of(error, compile_phase(error)).to_json()
        return {"error": message, "raised": raised}
