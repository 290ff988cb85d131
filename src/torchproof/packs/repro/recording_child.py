"""The child process that runs a target once and writes the graphs that Dynamo captures.

Runs as `python -m` with a job (JSON) and the path of a stream. Captured graphs run
uncompiled, so nothing fails or hangs in a backend here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.target_recording import RecordingJob
from torchproof.process import Stream, hold
from torchproof.records import UserError, one_line
from torchproof.targets import Job, calls, script
from torchproof.torch_private import environment


def main(arguments: list[str]) -> int:
    job, stream = RecordingJob.from_json(json.loads(arguments[0])), Stream()
    run = job.run
    with contextlib.ExitStack() as stack:
        try:
            if run.target.kind == "script":
                script.when_imported(
                    "torch", lambda: stack.enter_context(_recording(stream, job))
                )
                return script.run(run.target, stream)
            with _recording(stream, job):
                run = calls.resolved(run)
                _run_calls(run, stream)
            return 0
        except UserError as error:
            stream.write("unusable", message=str(error), details=error.details)
            return 2
        finally:
            stream.write("environment", **environment.describe(run))
            _write_configs(stream)


@contextlib.contextmanager
def _recording(stream: Stream, job: RecordingJob) -> Iterator[None]:
    from torchproof.packs.repro.graphs.graph_recorder import recorder

    def write(candidate: Candidate) -> None:
        stream.write("candidate", **dataclasses.asdict(candidate))

    with recorder(
        write,
        Path(job.folder),
        weights=job.weights,
        refuse=lambda why: stream.write("refused", why=why),
    ):
        yield


def _run_calls(run: Job, stream: Stream) -> None:
    import torch

    loaded = calls.fresh(run)
    fn: Any = loaded.fn
    if not calls.compiles_itself(fn, run):
        fn = torch.compile(fn, **run.compile)
    train = calls.trains(loaded, run)
    stream.write("plan", calls=len(loaded.calls), train=train)
    for index, call in calls.each(loaded, train=train):
        try:
            calls.invoke(fn, call, train=train)
        except UserError:
            raise
        except Exception as error:  # probably the failure that the pack is about
            message = one_line(f"{type(error).__name__}: {error}", 200)
            stream.write("call_error", call=index, error=message)


def _write_configs(stream: Stream) -> None:
    if "torch" in sys.modules:
        from torchproof.torch_private import configs

        stream.write("configs", **configs.changed())


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
