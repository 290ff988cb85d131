"""The process of torch's launcher, tied to the process that started it."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

from torchproof.process import Stream, hold

MODULE = "torchproof.observe.ranks.launcher"


def main(arguments: list[str]) -> int:
    """Runs `torch.distributed.run`; the ranks themselves record how they end."""
    import torch
    import torch.distributed as dist

    stream = Stream()
    if not dist.is_available() or not (
        dist.is_gloo_available() or torch.cuda.is_available()
    ):
        message = "--ranks: the installed torch has no gloo, so ranks cannot talk"
        stream.write("unusable", message=message)
        return 2
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    torchrun: Any = run  # torch gives it no types
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = torchrun.parse_args(arguments)
    except SystemExit:  # of argparse, after its usage and one line on the error
        why = said.getvalue().strip().rpartition("error: ")[2] or "not understood"
        stream.write("unusable", message=f"--launcher: {why}")
        return 2
    try:
        torchrun.run(options)
    except ChildFailedError:
        return 1
    except ValueError as error:
        stream.write("unusable", message=f"--launcher: {error}")
        return 2
    return 0


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
