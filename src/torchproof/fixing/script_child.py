"""The child process of a proof that runs a whole script.

The first run records what the script shows, the second one what varies from run to run.
The later ones have an overlay, and are compared. torch is imported only when the script
imports it.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.fixing import written_files
from torchproof.fixing.printed import collected_text
from torchproof.fixing.proof_job import Equality, ProofJob
from torchproof.observe import Observer
from torchproof.observe.entry_calls import entry_arguments, entry_frame
from torchproof.process import Stream, hold
from torchproof.records import Namespace, UserError
from torchproof.targets import calls, live_state, overlay, script
from torchproof.torch_private import environment

if TYPE_CHECKING:
    from torchproof.fixing.behaviour import Behaviour
    from torchproof.fixing.equality import Reference

_ELEMENTS = 2**14  # of a tensor that are compared
_BYTES = 2**28  # of all values that are kept
_MODULES, _VALUES = 16, 2000  # of the program, compared at its end
_MISSING = object()


class _Recorder(Observer):
    """Observes, and keeps what calls of compiled functions get and return."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, calls_are_wrapper_calls=True)
        self.answers: Namespace = {}
        self.random: list[str] = []
        self.first_calls: list[str] = []  # of each compiled function
        self.compiled: list[Any] = []
        self._bytes = 0

    def _register(self, model: Any = None, **kwargs: Any) -> Any:
        if model is not None and len(self.compiled) < _MODULES:
            self.compiled.append(model)
        return super()._register(model, **kwargs)

    def _enter(self, wrapper: Any) -> Callable[[], None]:
        is_outermost = not getattr(self._local, "depth", 0)
        leave = super()._enter(wrapper)
        where = f"call {self.call}: "
        if is_outermost and wrapper.calls == 1:
            self.first_calls.append(where)

        def leave_and_record() -> None:
            leave()
            if is_outermost and self._bytes < _BYTES:
                self._record(where)

        return leave_and_record

    def _record(self, where: str) -> None:
        from torchproof.fixing.behaviour import random_digest
        from torchproof.torch_private import compile_contexts

        output = compile_contexts.result(entry_frame(), _MISSING)
        if output is not _MISSING:
            found = calls.of_call(where, output, entry_arguments())
            self._bytes += sum(getattr(each, "nbytes", 0) for each in found.values())
            self.answers |= found
        self.random.append(random_digest())


def main(arguments: list[str]) -> int:
    job, stream = ProofJob.from_json(json.loads(arguments[0])), Stream()
    try:
        return _prove(job, stream)
    except UserError as error:
        stream.write("unusable", message=str(error))
        return 2


def _prove(job: ProofJob, stream: Stream) -> int:
    import numpy

    if job.run.overlay:
        overlay.install(job.run.overlay)
    recorder = _Recorder(stream)
    recorder.generates_code = job.run.generates_code
    random.seed(0)
    numpy.random.seed(0)
    calls.compare_at_most(_ELEMENTS)
    script.when_imported("torch", lambda: _begin(job, recorder))
    is_first = not Path(job.reference).exists()
    notes = written_files.Notes(job.run.target) if is_first else None
    with collected_text() as text:
        code = script.run(job.run.target, stream)
    if notes is not None:
        stream.write("written", files=notes.files())
    recorder.detach()
    stream.write("environment", **environment.describe(job.run))
    if code == 0:
        _compare(job, recorder, _shown(recorder, text), stream)
    return code


def _begin(job: ProofJob, recorder: _Recorder) -> None:
    import torch

    from torchproof import torch_private

    torch.manual_seed(0)
    for message in torch_private.contract.missing("results of compiled functions"):
        recorder.stream.write("unusable", message=f"there is no proof: {message}")
    if job.patches is not None:
        from torchproof.runtime import apply_patches

        for name, why in apply_patches(job.patches).left_alone.items():
            message = f"{name} is not patched: {why}"
            recorder.stream.write("unusable", message=message)
    if job.run.generates_code:  # draws the random numbers that eager draws
        torch_private.set_config("inductor", "fallback_random", True)
    recorder.attach()


def _shown(recorder: _Recorder, text: list[str]) -> Behaviour:
    """What the run showed: of calls, what it printed, and the state at its end."""
    from torchproof.fixing import behaviour

    answers, kept = dict(recorder.answers), dict(_globals())
    for prefix, module in _modules(recorder.compiled):
        state = {f"parameter {n}": p for n, p in module.named_parameters()}
        state |= {f"gradient of {n}": p.grad for n, p in module.named_parameters()}
        for name, value in state.items():
            answers |= calls.comparable(f"{prefix}{name}", value)
        for name, value in calls.buffers(module):
            answers |= calls.comparable(f"buffer {prefix}{name}", value)
        found = behaviour.attributes_of(module)
        kept |= {prefix + name: value for name, value in found.items()}
    return behaviour.Behaviour(answers, tuple(recorder.random), tuple(text), kept)


def _modules(compiled: list[Any]) -> Iterator[tuple[str, Any]]:
    """The modules that compiled functions reach, without those inside of others."""
    import torch

    found: dict[int, Any] = {}
    for fn in compiled:
        with suppress(Exception):  # a function of any kind
            for each in live_state.reached(fn):
                if isinstance(each, torch.nn.Module):
                    found.setdefault(id(each), each)
    inner = {id(m) for e in found.values() for m in e.modules() if m is not e}
    roots = [each for key, each in found.items() if key not in inner]
    yield from ((f"module {i}: ", each) for i, each in enumerate(roots[:_MODULES]))


def _globals() -> Iterator[tuple[str, Any]]:
    """The plain values and tensors among the global variables of the script."""
    import torch

    from torchproof import torch_private

    names = {n: v for n, v in vars(sys.modules["__main__"]).items() if n[:2] != "__"}
    leaves = torch_private.trees.leaves(names, "globals")
    for name, value in itertools.islice(leaves, _VALUES):
        if isinstance(value, (torch.Tensor, bool, int, float, complex, str)):
            yield from calls.comparable(name, value)


# -- comparing -------------------------------------------------------------------------


def _compare(
    job: ProofJob, recorder: _Recorder, shown: Behaviour, stream: Stream
) -> None:
    """Keeps what the original shows, or writes how an edited script differs."""
    import torch

    from torchproof.fixing.equality import Reference

    if not Path(job.reference).exists():
        torch.save(Reference(shown, None, [], None), job.reference)
        return
    # This user's own file, in a folder that nobody else can enter.
    reference: Reference = torch.load(job.reference, weights_only=False)
    if job.run.overlay is None and job.patches is None:
        reference = _repeated(reference, shown)
        torch.save(reference, job.reference)
        found = Equality(
            "eager", "same", None, 0, 0, 0, undecided=reference.unrepeatable
        )
    elif job.run.generates_code:
        # Rounding adds up over the steps of a training: the first calls have none.
        first = tuple(recorder.first_calls)
        found = _equality(_only(reference, first), _without_state(shown, first), job)
    else:
        found = _equality(reference, shown, job)
    stream.write("equality", **found.to_json())


def _repeated(reference: Reference, again: Behaviour) -> Reference:
    """The reference without the state that varies from run to run."""
    from torchproof.fixing.equality import compared
    from torchproof.torch_private import comparison

    first = reference.eager
    kept = {
        name: value
        for name, value in first.attributes.items()
        if name in again.attributes
        and comparison.compare_value(value, again.attributes[name]).verdict == "same"
    }
    reference = replace(reference, eager=replace(first, attributes=kept))
    found = compared(again.answers, reference)
    varies = None if found.verdict != "wrong" else f"{found.where or 'a value'} differs"
    if varies is None and not any(map(_is_of_call, first.answers)):
        varies = "no call of a compiled function shows what it returns"
    if varies is None and first.random != again.random:
        varies = "it draws other random numbers"
    return replace(
        reference,
        compiled_text=again.text,
        unrepeatable=varies,
    )


def _is_of_call(label: str) -> bool:
    return label.startswith("call ")


def _only(reference: Reference, calls_: tuple[str, ...]) -> Reference:
    return replace(reference, eager=_without_state(reference.eager, calls_))


def _without_state(shown: Behaviour, calls_: tuple[str, ...]) -> Behaviour:
    """What these calls show, by the beginnings of their labels."""
    starts = (*calls_, *(f"form of {each}" for each in calls_))
    answers = {k: v for k, v in shown.answers.items() if k.startswith(starts)}
    return replace(shown, answers=answers, attributes={})


def _equality(reference: Reference, shown: Behaviour, job: ProofJob) -> Equality:
    from torchproof.fixing.equality import compared, differences
    from torchproof.torch_private import comparison

    generates = job.run.generates_code
    known = reference.eager.attributes
    shown = replace(
        shown, attributes={k: v for k, v in shown.attributes.items() if k in known}
    )
    how = "with generated code" if generates else "when the script runs"
    found, values = compared(shown.answers, reference), shown.answers.values()
    unsafe = []
    if shown.random != reference.eager.random:
        unsafe.append("it draws other random numbers")
    if not _prints_same(reference, shown, exactly=not generates):
        unsafe.append("it prints or logs other text")
    return Equality(
        backend="generated code" if generates else "eager",
        verdict=found.verdict or "unknown",
        max_rel_error=found.max_rel_error,
        compared=sum(not isinstance(each, comparison.Form) for each in values),
        unseen=0,
        exceptions=0,
        problems=tuple(differences(how, reference, shown)),
        unsafe=tuple(unsafe),
    )


def _prints_same(reference: Reference, shown: Behaviour, *, exactly: bool) -> bool:
    """Whether both print the lines that do not vary from run to run."""
    from torchproof.fixing.equality import lines_without_values

    runs = [reference.eager.text, reference.compiled_text or ()]
    plain = [lines_without_values(text) for text in (*runs, shown.text)]
    if (plain[0] & plain[1]) - plain[2] or plain[2] - (plain[0] | plain[1]):
        return False
    first, again, now = map(Counter, (*runs, shown.text))
    return not exactly or not (first & again) - now


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
