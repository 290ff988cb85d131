"""The child process that runs a target once and writes candidates of it.

Runs as `python -m` with a job (JSON) and the path of a stream. Captured graphs run
uncompiled, so nothing fails or hangs in a backend here.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.process import Stream, hold
from torchproof.records import UserError, one_line
from torchproof.targets import Target, calls, script
from torchproof.torch_private import environment


def main(arguments: list[str]) -> int:
    job = json.loads(arguments[0])
    stream = Stream()
    target = Target(**{**job["target"], "arguments": tuple(job["target"]["arguments"])})
    with contextlib.ExitStack() as stack:
        try:
            if target.kind == "script":
                script.when_imported(
                    "torch", lambda: stack.enter_context(_recording(stream, job))
                )
                return script.run(target, stream)
            with _recording(stream, job):
                _run_calls(target, job, stream)
            _write_frames(target, job, stream)
            return 0
        except UserError as error:
            stream.write("unusable", message=str(error))
            return 2
        finally:
            stream.write("environment", **environment.describe(job))
            _write_configs(stream)


@contextlib.contextmanager
def _recording(stream: Stream, job: dict[str, Any]) -> Iterator[None]:
    from torchproof.packs.repro.graphs.graph_recorder import recorder

    def write(candidate: Candidate) -> None:
        stream.write("candidate", **candidate.to_json())

    with recorder(
        write,
        Path(job["folder"]),
        weights=job["weights"],
        refuse=lambda why: stream.write("refused", why=why),
    ):
        yield


def _run_calls(target: Target, job: dict[str, Any], stream: Stream) -> None:
    import torch

    from torchproof import torch_private

    loaded = calls.fresh(target, job)
    fn: Any = loaded.fn
    compiles_itself = job["as_written"] or calls.claims(fn, "compiles_itself")
    if not (compiles_itself or torch_private.is_compiled(fn)):
        fn = torch.compile(fn, **job["compile"])
    train = calls.trains(loaded, job)
    stream.write("plan", calls=len(loaded.calls), train=train)
    for index, call in enumerate(loaded.calls):
        calls.before(loaded, index)
        if train:
            calls.forget_gradients(loaded.fn, call)
        try:
            calls.invoke(fn, call, train=train)
        except UserError:
            raise
        except Exception as error:  # probably the failure that the pack is about
            message = one_line(f"{type(error).__name__}: {error}", 200)
            stream.write("call_error", call=index, error=message)


def _write_frames(target: Target, job: dict[str, Any], stream: Stream) -> None:
    """Writes candidates of the failing function and of its callers."""
    place = job["place"]
    if not place.get("file") or place.get("line") is None:
        return
    from torchproof.packs.repro.programs.frames import frame_candidates

    def run() -> None:
        loaded = calls.fresh(target, job)
        train = calls.trains(loaded, job)
        for index, call in enumerate(loaded.calls):
            calls.before(loaded, index)
            calls.invoke(loaded.fn, call, train=train)

    import torch

    torch.compiler.set_stance("force_eager")
    try:
        for candidate in frame_candidates(run, place["file"], place["line"]):
            stream.write("candidate", **candidate.to_json())
    except Exception as error:  # candidates of other forms remain
        message = one_line(f"{type(error).__name__}: {error}", 200)
        stream.write("refused", why=f"extracting the failing function: {message}")


def _write_configs(stream: Stream) -> None:
    if "torch" in sys.modules:
        from torchproof.torch_private import configs

        stream.write("configs", **configs.changed())


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
