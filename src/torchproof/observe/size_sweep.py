"""Counts the recompiles of a target for other sizes of its inputs.

No code is generated: Dynamo decides from guards and shapes whether it recompiles.
`recompiles_by_size` runs this module as `python -m` with a job in JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchproof.observe import timeline
from torchproof.process import Conditions, Entry, Stream, follow, hold
from torchproof.records import Frame, RaisedError, Record, UserError, one_line
from torchproof.targets import Job, Loaded, Options, Target, calls

Sizes = Mapping[str, tuple[int, ...]]  # by keyword of the factory
_CODE_ARGUMENTS = {"backend", "mode", "options"}


@dataclass(frozen=True)
class SweepJob(Record):
    """A target, and the sizes that its factory is called with."""

    run: Job
    sizes: Sizes


@dataclass(frozen=True)
class Sweep:
    """Recompiles by size, in the order of the calls; or why there are none."""

    recompiles: tuple[tuple[int, int], ...] = ()
    error: str | None = None
    raised: RaisedError | None = None  # the exception behind `error`; eager has none
    function: Frame | None = None  # the target's


def recompiles_by_size(
    target: Target, options: Options, sizes: Sizes, progress: Callable[[str], None]
) -> dict[str, Sweep]:
    """Sweeps the sizes of each dimension in a child process."""

    count = sum(map(len, sizes.values()))
    starts: list[float] = []  # when each size began

    def notice(entry: Entry, seconds: float) -> None:
        if entry["kind"] == "size":
            starts.append(seconds)
            text = f"counting recompiles, {entry['dimension']} {entry['value']}"
            text += f", size {len(starts)} of {count}"
            if done := len(starts) - 1:
                left_s = (seconds - starts[0]) / done * (count - done)
                text += f", about {left_s:.0f} s left"
            progress(text)

    job = json.dumps(SweepJob(Job.of(target, options), sizes).to_json())
    conditions = Conditions(timeout_s=options.timeout_s, quiet=options.quiet)
    child = follow("torchproof.observe.size_sweep", job, notice, conditions)
    timeline.process_ended(child.pid)
    if child.ending == "interrupted":
        raise KeyboardInterrupt
    for entry in child.of("unusable"):
        raise UserError(entry["message"])
    found = {
        entry["dimension"]: Sweep(
            tuple((value, count) for value, count in entry["rows"]),
            entry["error"],
            RaisedError.from_json(entry["raised"]) if entry["raised"] else None,
            Frame(*entry["function"]),
        )
        for entry in child.of("sweep")
    }
    ended = Sweep(error=child.failure(script=False) or f"ended by {child.ending}")
    return {dimension: found.get(dimension, ended) for dimension in sizes}


# -- in the child ----------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    from torchproof import torch_private
    from torchproof.torch_private import compile_costs

    job, stream = SweepJob.from_json(json.loads(arguments[0])), Stream()
    timeline.start(" and ".join(job.sizes))
    try:
        compile_costs.import_compiler(inductor=False)
        compile_costs.keep_every_compilation()
        with contextlib.ExitStack() as hooks:
            hooks.enter_context(torch_private.no_code_generation())
            if not torch_private.contract.missing("compile errors"):
                hooks.enter_context(torch_private.marked_compile_errors())
            run = calls.resolved(job.run)
            for dimension, values in job.sizes.items():
                _sweep(run, dimension, values, stream)
    except UserError as error:
        stream.write("unusable", message=str(error))
        return 2
    return 0


def _sweep(run: Job, dimension: str, values: tuple[int, ...], stream: Stream) -> None:
    """Runs one target with inputs of several sizes, one after the other."""
    import torch

    from torchproof.torch_private import compile_phase

    torch.compiler.reset()
    rows: list[tuple[int, int]] = []
    error = raised = None
    loaded, fn = _compiled(replace(run, shape={dimension: values[0]}))
    for value in values:
        stream.write("size", dimension=dimension, value=value)
        sized = calls.fresh(replace(run, shape={dimension: value}))
        try:
            before = _recompiles()
            _run(replace(loaded, calls=sized.calls), fn, run)
            rows.append((value, _recompiles() - before))
        except UserError:
            raise
        except Exception as failure:
            own = _eager_error(replace(run, shape={dimension: value}))
            error = _in_one_line(own or failure)
            if own is None:
                raised = RaisedError.of(failure, compile_phase(failure)).to_json()
            else:
                error = f"the target fails in eager at {dimension} {value}: {error}"
            break
    place = calls.function_of(loaded)
    stream.write(
        "sweep",
        dimension=dimension,
        rows=rows,
        error=error,
        raised=raised,
        function=[place.file, place.line, place.function],
    )


def _compiled(run: Job) -> tuple[Loaded, Callable[..., Any]]:
    import torch

    from torchproof.torch_private import run_as_captured

    loaded = calls.fresh(run)
    if calls.compiles_itself(loaded.fn, run):
        return loaded, loaded.fn
    compile_arguments = {
        k: v for k, v in run.compile.items() if k not in _CODE_ARGUMENTS
    }
    return loaded, torch.compile(
        loaded.fn, backend=run_as_captured, **compile_arguments
    )


def _run(loaded: Loaded, fn: Callable[..., Any], run: Job) -> None:
    train = calls.trains(loaded, run)
    for _, call in calls.each(loaded, train=train):
        calls.invoke(fn, call, train=train)


def _in_one_line(error: Exception) -> str:
    return one_line(traceback.format_exception_only(error)[-1])


def _eager_error(run: Job) -> Exception | None:
    """What a fresh target raises without the compiler."""
    import torch

    loaded = calls.fresh(run)
    torch.compiler.set_stance("force_eager")
    try:
        _run(loaded, loaded.fn, run)
    except Exception as error:
        return error
    finally:
        torch.compiler.set_stance("default")
    return None


def _recompiles() -> int:
    from torchproof.torch_private import compile_costs

    return sum(each.again for each in compile_costs.compilations())


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
