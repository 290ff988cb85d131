"""The process that runs repros: `python THIS_FILE PRELOAD`; `repro_runner` starts it.

It imports torch once and runs each job in a fork. A job names the `folder` of a
`repro.py` and the environment `variables`.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from typing import Any

from torchproof.process import hold, serve
from torchproof.records import JsonObject

PROGRAM = "repro.py"
OUTPUT = "output.txt"
_OWN_VARIABLES = ("PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_COMPILE_THREADS")


def main(preload: str) -> None:
    hold()
    _preload(preload)
    serve(_run)


def _preload(preload: str) -> None:
    """Imports torch and warms a backend; CUDA must not be initialised before a fork."""
    # Makes torch ask NVML instead of CUDA, which does not work after a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no threads before a fork
    import torch

    if preload in ("eager", "inductor"):
        # No backward pass: the threads of autograd would be missing after a fork.
        compiled = torch.compile(_example, backend=preload)
        for size in (2, 3):
            compiled(torch.ones(size))
        torch.compiler.reset()
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gc.collect()
    gc.freeze()  # else a collection in a child would copy every page it touches


def _example(x: Any) -> Any:
    return (x * 2).relu() + 1


def _run(job: JsonObject) -> int:
    _isolate(job)
    try:
        runpy.run_path(os.path.abspath(PROGRAM), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _isolate(job: JsonObject) -> None:
    """Sets the directory, streams, variables and modules as `python -I` would."""
    os.chdir(job["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    for stream in (sys.stdout, sys.stderr):  # keeps the order of printed lines
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.closerange(3, 4096)
    variables = {k: os.environ[k] for k in _OWN_VARIABLES if k in os.environ}
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    added_paths = {os.path.abspath(path) for path in added if path}
    os.environ.clear()
    os.environ.update(variables | job["variables"])
    sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) not in added_paths]
    for name in [n for n in sys.modules if n.split(".")[0] == "torchproof"]:
        del sys.modules[name]
    sys.modules["torchproof"] = None  # type: ignore[assignment]
    sys.argv[:] = [PROGRAM]


if __name__ == "__main__":
    main(sys.argv[1])
