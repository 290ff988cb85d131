"""The child process of `deploy`: builds the artifact, or loads it as a service does.

Runs as `python -m torchproof.packs.deploy JOB`, where JOB is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import NoReturn

from torchproof.packs.deploy import PackJob, Progress, entry_of
from torchproof.process import Stream, hold
from torchproof.records import JsonObject, UserError, schema
from torchproof.runtime import Refused


def main(arguments: list[str]) -> int:
    job, stream = PackJob.from_json(json.loads(arguments[0])), Stream()
    # torch reads these variables once, when it is imported.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.cache
    os.environ.pop("TRITON_CACHE_DIR", None)
    os.makedirs(job.cache, mode=0o700)
    work = {"build": _build, "verify": _verify}[job.role]

    def progress(text: str) -> None:
        if job.rank == 0:
            stream.write("progress", text=text)

    def end(error: Exception) -> NoReturn:
        """Ends the process from another thread, while this one may wait in C++."""
        code = _reported(error, stream)
        sys.stderr.flush()
        os._exit(code)

    try:
        if job.ranks == 1:
            facts = work(job, progress)
        else:
            from torchproof.packs.deploy import rank_jobs

            facts = rank_jobs.run(job, lambda each: work(each, progress), end)
        stream.write("facts", **facts)
    except Exception as error:
        code = _reported(error, stream)
        if not isinstance(error, Refused | UserError):
            raise
        return code
    return 0


def _reported(error: Exception, stream: Stream) -> int:
    """Reports an error; returns the exit code of this process."""
    entry = entry_of(error)
    stream.write(**entry)
    return 1 if entry["kind"] == "unverified" else 2


def _build(job: PackJob, progress: Progress) -> JsonObject:
    """Fill the stage; return the manifest's details and the environment."""
    from torchproof.packs.deploy import caches, packages, rank_jobs
    from torchproof.targets import calls
    from torchproof.torch_private import environment

    job = dataclasses.replace(job, run=calls.resolved(job.run))
    loaded = rank_jobs.fresh(job.run)
    if calls.compiles_itself(loaded.fn, job.run):
        raise UserError(
            f"{job.run.target.text} compiles itself: a deploy pack needs the model"
            " before it is compiled"
        )
    if job.artifact == "caches":
        details = schema.to_plain(caches.build(loaded, job, progress))
    else:
        details = schema.to_plain(packages.build(loaded, job))
    return {"details": details, "environment": environment.describe(job.run)}


def _verify(job: PackJob, progress: Progress) -> JsonObject:
    """Load the artifact and compare its outputs with eager's; return the result."""
    from torchproof.packs.deploy import caches, packages

    if job.artifact == "caches":
        return caches.verify(job, progress)
    return packages.verify(job)


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
