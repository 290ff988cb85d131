"""The child process of a proof: observes an edited target and compares it.

The first proof of a target has no edits. It records the reference: what the original
shows in eager, in float64, and compiled. A later one has an overlay and compares what
the edited target shows with the reference.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchproof import torch_private
from torchproof.fixing.equality import Reference, equality
from torchproof.fixing.proof_job import Equality, ProofJob
from torchproof.fixing.witness import Witness, witness
from torchproof.measure import numerics
from torchproof.observe import observe_job
from torchproof.process import Stream, hold
from torchproof.records import UserError, whose
from torchproof.targets import Job, Loaded, calls

SEARCH_BACKENDS = ("aot_eager", "eager")


def main(arguments: list[str]) -> int:
    return prove(ProofJob.from_json(json.loads(arguments[0])), Stream())


def prove(job: ProofJob, stream: Stream) -> int:
    """Runs one proof; returns an exit code."""
    if code := observe_job(job.run, stream):
        return code
    torch.compiler.reset()
    run = calls.resolved(job.run)
    try:
        if job.run.overlay is None:
            torch.save(_reference(run), job.reference)
            stream.write("libraries", modules=_libraries())
        else:
            stream.write("equality", **_equality(run, job).to_json())
    except UserError as error:
        stream.write("unusable", message=str(error))
        return 2
    return 0


def _libraries() -> dict[str, str]:
    """The imported modules of installed packages and their files, in order."""
    return {
        name: file
        for name, module in list(sys.modules.items())
        if isinstance(file := getattr(module, "__file__", None), str)
        and whose(file) == "library"
    }


def _reference(run: Job) -> Reference:
    loaded = calls.fresh(run)
    state = loaded.fn.state_dict() if isinstance(loaded.fn, torch.nn.Module) else None
    state = state and {name: value.detach().clone() for name, value in state.items()}
    train = calls.trains(loaded, run)
    with torch.compiler.set_stance("force_eager"):
        eager = witness(loaded, loaded.fn, train=train)
    known = numerics.reference(
        lambda: calls.fresh(run),
        lambda built: calls.answers(built, built.fn, train=train),
    )
    perturbed = [] if known.exact is not None else list(known.perturbed())
    compiled, backend = None, SEARCH_BACKENDS[-1]
    for backend in SEARCH_BACKENDS:
        compiled = _compiled(run, backend, state)
        found = known.compare(compiled.answers) if compiled else None
        if found is not None and found.verdict in {"same", "rounding"}:
            break
    return Reference(eager, known.exact, perturbed, compiled, backend, state)


def _equality(run: Job, job: ProofJob) -> Equality:
    reference: Reference = torch.load(job.reference, weights_only=False)
    backend = job.backend or reference.backend
    loaded = _loaded(run, reference.state)
    with torch.compiler.set_stance("force_eager"):
        eager = witness(loaded, loaded.fn, train=calls.trains(loaded, run))
    compiled = _compiled(run, backend, reference.state)
    return equality(reference, eager, compiled, backend)


def _loaded(run: Job, state: dict[str, Any] | None) -> Loaded:
    """A fresh target with the state of the original."""
    loaded = calls.fresh(run)
    if state is not None and isinstance(loaded.fn, torch.nn.Module):
        with contextlib.suppress(RuntimeError):  # an edit may add a buffer
            loaded.fn.load_state_dict(state, strict=False)
    return loaded


def _compiled(run: Job, backend: str, state: dict[str, Any] | None) -> Witness | None:
    """What the compiled target shows; None if compiled code fails."""
    torch.compiler.reset()
    loaded = _loaded(run, state)
    fn = loaded.fn
    with _generating(backend):
        if not calls.compiles_itself(fn, run):
            others = {"backend", "mode", "options"}
            given = {k: v for k, v in run.compile.items() if k not in others}
            fn = torch.compile(fn, backend=backend, **given)
        try:
            return witness(loaded, fn, train=calls.trains(loaded, run))
        except UserError:
            raise
        except Exception:
            return None


@contextlib.contextmanager
def _generating(backend: str) -> Iterator[None]:
    """Generates code only if the proof is about generated code."""
    with contextlib.ExitStack() as stack:
        if backend != "inductor":
            stack.enter_context(torch_private.no_code_generation())
        yield


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
