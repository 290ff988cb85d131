"""Turns a failure of a saved run into the data that an oracle compares.

Takes a run of `check` and optional selectors, returns one `FailureSignature`. Its texts
come from torch: they contain no paths, values or names of the user's program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torchproof.packs.repro.oracles.error_text import (
    innermost,
    kind_of_guard,
    names_in,
    without_values,
)
from torchproof.records import SEVERITIES, Finding, Measurement, Run, Symptom, UserError
from torchproof.records.mappings import JsonObject

HANG_S = 60.0  # after this time a repro calls a compilation hung
_MAX_TIMES = 3  # recompiles or recordings that a repro has to show at most
_ADVICE = re.compile(r"\s*Set TORCHDYNAMO_VERBOSE=1|\s*from user code:", re.IGNORECASE)
# Errors raised after Dynamo, which need a backend that generates code.
_BACKENDS = ("BackendCompilerFailed", "InductorError", "LoweringException")
# Codes of findings where the program calls compiled code, but eager code runs.
_CALLED = frozenset({"NC804", "NC805"})
_NO_GAIN, _GUARD_COST = "SP502", "SP541"
_SWEPT, _NUMPY_SEED, _RANDOM_STREAM = "SP531", "NM413", "NM404"
_AGAIN = "an earlier version of torchproof wrote the run: run check again"
_STATIC_KINDS = frozenset({"config", "hazard"})


@dataclass(frozen=True)
class FailureSignature:
    """One failure of one target.

    `oracle` names the file of `repro/oracles` that recognises it. The oracle compares
    `expected`: JSON without paths or names of the user's program.
    """

    oracle: str
    headline: str  # one sentence: the title of the bug report
    kind: str = "compile_error"  # a kind of finding, or "hang"
    expected: JsonObject = field(default_factory=dict, hash=False)
    ids: tuple[str, ...] = ()  # torch's own, such as GB0170
    search: str = ""  # search terms for existing reports
    finding: Finding | None = None


_Reading: TypeAlias = FailureSignature | str  # or why a finding has no signature


def choose_failure(run: Run, select: Sequence[str] = ()) -> FailureSignature:
    """Returns the selected failure, or else the most severe one of the report."""
    if run.ending == "timeout" and not select:
        return hang_signature(min(float(run.options.get("timeout_s") or 1e9), HANG_S))
    refusals = []
    for finding in _open(run, select):
        signature = _signature_of(finding, run)
        if isinstance(signature, FailureSignature):
            return signature
        refusals.append(f"{finding.code}: {signature}")
    if not select and (failed := _failed(run)) is not None:
        return _error_signature(*_class_and_message(failed.error or ""))
    if refusals:
        raise UserError(f"run {run.id} cannot be reproduced: {refusals[0]}")
    what = f" with {', '.join(select)}" if select else ""
    codes = ", ".join(dict.fromkeys(f.code for f in _open(run, ())))
    hint = f"; it has {codes}" if codes and select else ""
    raise UserError(
        f"run {run.id} has no open finding{what}{hint}: there is nothing to reproduce"
    )


def _signature_of(finding: Finding, run: Run) -> _Reading:
    """Returns the signature of a finding, or the reason why it has none."""
    if finding.kind in _STATIC_KINDS or finding.origin == "static":
        return (
            "static analysis of the source found it, and no run confirmed it; run check"
            " with calls that reach it"
        )
    reading = _READERS[finding.kind](finding, run)
    if isinstance(reading, str):
        return reading
    return replace(reading, kind=finding.kind, ids=_ids(finding), finding=finding)


def _open(run: Run, select: Sequence[str]) -> list[Finding]:
    findings = [f for f in run.findings if f.status == "open"]
    if select:
        findings = [f for f in findings if any(_matches(f, each) for each in select)]
    return sorted(findings, key=lambda f: SEVERITIES.index(f.severity))


def _matches(finding: Finding, selector: str) -> bool:
    """Whether a selector matches: CODE, the start of one, or CODE@file.py:LINE."""
    code, _, place = selector.partition("@")
    file, _, line = place.rpartition(":")
    if place and not line.isdigit():
        file, line = place, ""
    return (
        finding.code.startswith(code.upper())
        and (not file or (finding.file or "").endswith(file))
        and (not line or finding.line == int(line))
    )


# -- findings about behaviour ----------------------------------------------------------


def _break(finding: Finding, run: Run) -> _Reading:
    if finding.symptom is None:
        return _AGAIN
    kind, gb_id = finding.symptom.type, finding.symptom.gb_id
    names = names_in(finding.symptom.text)
    skips = finding.kind == "skipped_frame"
    what = "skipped frame" if skips else "graph break"
    about = f" ({', '.join(names)})" if names else ""
    return FailureSignature(
        oracle="breaks",
        headline=f"torch.compile: {what}, {' '.join([*_ids(finding), kind])}{about}",
        search=" ".join([f'"{kind}"', *names]),
        expected={"type": kind, "id": gb_id, "names": names, "skips": skips},
    )


def _recompile(finding: Finding, run: Run) -> _Reading:
    if finding.code == _SWEPT:
        return "it occurred at sizes that torchproof chose: add calls of those sizes"
    if finding.symptom is None:
        return _AGAIN
    kind = kind_of_guard(finding.symptom.text)
    return FailureSignature(
        oracle="recompiles",
        headline=f"torch.compile recompiles at each change of: {kind}",
        search=f"torch.compile recompiles {kind}",
        expected={"kind": kind, "times": min(finding.count or 1, _MAX_TIMES)},
    )


def _limit(finding: Finding, run: Run) -> _Reading:
    last = finding.symptom.text if finding.symptom else ""
    kind = kind_of_guard(last) if last else None
    because = f" because of: {kind}" if kind else ""
    return FailureSignature(
        oracle="recompiles",
        headline=f"torch.compile hits the recompile limit{because}",
        search=f"recompile limit {kind or ''}".strip(),
        expected={"limit": True, "kind": kind},
    )


def _specialization(finding: Finding, run: Run) -> _Reading:
    if finding.symptom is not None:  # of the error that torch raised
        return _error(finding, run)
    return FailureSignature(
        oracle="recompiles",
        headline="torch.compile turns a dynamic size into a constant",
        search="dynamic shape specialized constant mark_dynamic",
        expected={"specialized": True},
    )


def _error(finding: Finding, run: Run) -> _Reading:
    symptom = finding.symptom
    if symptom is None:
        return _AGAIN
    signature = _error_signature(symptom.type, symptom.text, symptom.gb_id)
    if symptom.type in _BACKENDS:
        return signature
    # It occurred before code generation.
    expected = {**signature.expected, "backend": "eager"}
    return replace(signature, expected=expected)


def _error_signature(
    name: str, message: str, gb_id: str | None = None
) -> FailureSignature:
    message = _ADVICE.split(message)[0].removesuffix("...").strip()
    # The last line of a traceback repeats the class.
    message = re.sub(rf"^(?:[\w.]+\.)?{re.escape(name)}: ", "", message)
    core = without_values(innermost(message))
    explained = re.search(r"Explanation: (.*?)(?=\s+Hint:|\Z)", message, re.DOTALL)
    return FailureSignature(
        oracle="errors",
        headline=f"torch.compile raises {name}: {core}",
        search=f"{name} {_searchable(core)}".strip(),
        expected={
            "error": name,
            "message": core,
            "id": gb_id,
            "names": names_in(explained[1] if explained else ""),
        },
    )


def _class_and_message(error: str) -> tuple[str, str]:
    """Splits `torch._inductor.exc.InductorError: text` into `InductorError`, `text`.

    It is the last line of a traceback, with the line of code that raised it.
    """
    error = re.sub(r"^\S+\.py:\d+: ", "", error)
    name, _, message = error.partition(": ")
    return name.rsplit(".", 1)[-1], message


def _searchable(core: str) -> str:
    words = re.sub(r"\b(?:N|NAME|PATH)\b|[^\w\s.:']", " ", core).split()
    return " ".join(words[:10])


def _no_op(finding: Finding, run: Run) -> _Reading:
    if finding.code == "NC806":
        return f"nothing was compiled, so there is no failure to show; {finding.fix}"
    because = finding.symptom.type if finding.symptom else None
    return FailureSignature(
        oracle="no_ops",
        headline="torch.compile compiles nothing"
        + (f", because of: {because}" if because else ""),
        search=f'"{because}"' if because else "torch.compile no graph compiled",
        expected={"because": because, "called": finding.code in _CALLED},
    )


def _numerics(finding: Finding, run: Run) -> _Reading:
    if finding.code == "NM406":
        return (
            "a repro compares values, and the values of this output agree; write to the"
            " output, or use its strides, in the target and run check again"
        )
    symptom = finding.symptom or Symptom()
    numerics = symptom.numerics or {"verdict": "wrong"}
    operations = [symptom.operation] if symptom.operation else []
    expected = {
        "how": numerics.get("how") or "value",
        "error": numerics.get("max_rel_error"),
    }
    if finding.code == _RANDOM_STREAM:
        expected["random"] = True
    return FailureSignature(
        oracle="answers",
        headline="torch.compile gives wrong results"
        + "".join(f" for {name}" for name in operations)
        + (f", first in {symptom.layer}" if symptom.layer else ""),
        search=" ".join(["torch.compile wrong result", *operations]),
        expected=expected,
    )


def _stale(finding: Finding, run: Run) -> _Reading:
    every = finding.symptom is not None and finding.symptom.in_first_call
    seeds = finding.code == _NUMPY_SEED
    return FailureSignature(
        oracle="answers",
        headline="compiled code ignores a change that eager sees",
        search="torch.compile stale value not guarded",
        expected={
            "how": "value",
            "error": None,
            "later": not (every or seeds),
            "random": seeds,
        },
    )


def _skip(finding: Finding, run: Run) -> _Reading:
    if finding.symptom is None:
        return _recording(finding, run)
    cause = finding.symptom.text.splitlines()[0].split(" Found from")[0]
    reason = without_values(f"skipping cudagraphs due to {cause}")
    return FailureSignature(
        oracle="skips",
        headline=f"torch.compile: {reason}",
        search=_searchable(reason),
        expected={"reason": reason},
    )


def _recording(finding: Finding, run: Run) -> _Reading:
    return FailureSignature(
        oracle="skips",
        headline="CUDA graphs are re-recorded",
        search="cudagraph trees re-record",
        expected={"recordings": min((finding.count or 1) + 1, _MAX_TIMES)},
    )


# -- findings about cost ---------------------------------------------------------------


def _slowdown(finding: Finding, run: Run) -> _Reading:
    if finding.code == _GUARD_COST:
        return "the cost of guards depends on the machine and cannot be reproduced"
    ratios = [row.vs_eager for row in _compiled(run) if row.vs_eager]
    if not ratios:
        return "its speed was not measured"
    ratio, slower = min(ratios), finding.code != _NO_GAIN
    times = f"{1 / ratio:.1f} times as slow as" if slower else "no faster than"
    return FailureSignature(
        oracle="slowdown",
        headline=f"compiled code is {times} eager",
        search="torch.compile slower than eager",
        expected={"what": "slower" if slower else "no gain", "ratio": ratio},
    )


def _compile_time(finding: Finding, run: Run) -> _Reading:
    spent = [(row.compile_s or {}).get("total", 0.0) for row in _compiled(run)]
    first_calls = [row.first_call_s or 0.0 for row in _compiled(run)]
    seconds = max(spent, default=0.0) or max(first_calls, default=0.0)
    if not seconds:
        return "its compile time was not measured"
    return FailureSignature(
        oracle="compile_time",
        headline=f"torch.compile takes {seconds:.0f} s",
        search="torch.compile compile time slow",
        expected={"seconds": seconds},
    )


def _memory(finding: Finding, run: Run) -> _Reading:
    eager = next((m.peak_bytes for m in run.measurements if _is_eager(m)), None)
    most = max((row.peak_bytes or 0 for row in _compiled(run)), default=0)
    if not eager or not most:
        return "its memory was not measured"
    ratio = most / eager
    return FailureSignature(
        oracle="memory",
        headline=f"compiled code uses {ratio:.1f} times the memory of eager",
        search="torch.compile memory higher than eager",
        expected={"ratio": ratio},
    )


def _is_eager(measurement: Measurement) -> bool:
    return measurement.strategy == "eager"


def _compiled(run: Run) -> list[Measurement]:
    return [row for row in run.measurements if not _is_eager(row)]


_READERS: Mapping[str, Callable[[Finding, Run], _Reading]] = {
    "graph_break": _break,
    "skipped_frame": _break,
    "recompile": _recompile,
    "recompile_limit": _limit,
    "specialization": _specialization,
    "compile_error": _error,
    "no_op": _no_op,
    "numerics": _numerics,
    "stale_state": _stale,
    "slowdown": _slowdown,
    "compile_time": _compile_time,
    "memory": _memory,
    "cudagraph_skip": _skip,
    "cudagraph_rerecord": _recording,
    "cudagraph_lifetime": lambda *_: FailureSignature(
        oracle="lifetimes",
        headline="a later call overwrites an output of CUDA graphs",
        search="accessing tensor output of CUDAGraphs that has been overwritten",
    ),
    "host_sync": lambda *_: FailureSignature(
        oracle="syncs",
        headline="the host waits for the device in a compiled call",
        search="torch.compile host device synchronization",
    ),
}


def _ids(finding: Finding) -> tuple[str, ...]:
    gb_id = finding.symptom and finding.symptom.gb_id
    return (gb_id,) if gb_id else ()


# -- failures without a finding --------------------------------------------------------


def hang_signature(seconds: float) -> FailureSignature:
    return FailureSignature(
        kind="hang",
        oracle="hang",
        headline=f"torch.compile does not end within {seconds:.0f} s",
        search="torch.compile hangs",
        expected={"seconds": seconds, "place": None},
    )


def _failed(run: Run) -> Measurement | None:
    """Returns a strategy that raised although eager did not."""
    eager = next(filter(_is_eager, run.measurements), None)
    if eager is None or eager.error:
        return None
    return next((m for m in run.measurements if m.error), None)
