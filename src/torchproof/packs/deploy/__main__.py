"""The child process of `deploy`: builds the artifact, or loads it as a service does.

Runs as `python -m torchproof.packs.deploy JOB`, where JOB is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from torchproof.process import Stream, hold
from torchproof.records import UserError, one_line
from torchproof.runtime import Refused, Unverified
from torchproof.targets import Target


def main(arguments: list[str]) -> int:
    job, stream = json.loads(arguments[0]), Stream()
    # torch reads these variables once, when it is imported.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = job["cache"]
    os.environ.pop("TRITON_CACHE_DIR", None)
    os.makedirs(job["cache"], mode=0o700)
    fields = job["target"]
    target = Target(**{**fields, "arguments": tuple(fields["arguments"])})
    try:
        stream.write("facts", **_carried_out(target, job, stream))
    except (Refused, Unverified) as error:
        stream.write("unverified", message=str(error))
        return 1
    except UserError as error:
        stream.write("unusable", message=str(error))
        return 2
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        stream.write("unusable", message=f"the pack could not be built: {reason}")
        raise
    return 0


def _carried_out(target: Target, job: dict[str, Any], stream: Stream) -> dict[str, Any]:
    from torchproof.packs.deploy import artifact_children

    def progress(text: str) -> None:
        stream.write("progress", text=text)

    work = {"build": artifact_children.build, "verify": artifact_children.verify}[
        job["role"]
    ]
    return work(target, job, progress)


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
