"""The child process of `deploy`: builds the artifact, or loads it as a service does.

Runs as `python -m torchproof.packs.deploy JOB`, where JOB is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

from torchproof.packs.deploy import PackJob, Progress
from torchproof.process import Stream, hold
from torchproof.records import UserError, one_line, schema
from torchproof.runtime import Refused, Unverified


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

    try:
        if job.ranks == 1:
            facts = work(job, progress)
        else:
            from torchproof.packs.deploy import rank_jobs

            facts = rank_jobs.run(job, lambda each: work(each, progress))
        if job.rank == 0:
            stream.write("facts", **facts)
    except (Refused, Unverified) as error:
        stream.write("unverified", message=str(error))
        return 1
    except UserError as error:
        stream.write("unusable", message=str(error), details=error.details)
        return 2
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        stream.write("unusable", message=f"the pack could not be built: {reason}")
        raise
    return 0


def _build(job: PackJob, progress: Progress) -> dict[str, Any]:
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


def _verify(job: PackJob, progress: Progress) -> dict[str, Any]:
    """Load the artifact and compare its outputs with eager's; return the result."""
    from torchproof.packs.deploy import caches, packages

    if job.artifact == "caches":
        return caches.verify(job, progress)
    return packages.verify(job)


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
