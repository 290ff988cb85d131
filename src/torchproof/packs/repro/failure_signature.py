"""Turns a failure of a saved run into the data that an oracle compares.

Takes a run of `check` and optional selectors, returns one `FailureSignature`. Its texts
come from torch: they contain no paths, values or names of the user's program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchproof.packs.repro.oracles.error_text import (
    innermost,
    kind_of_guard,
    names_in,
    without_values,
)
from torchproof.records import SEVERITIES, Finding, Measurement, Run, UserError

_HANG_S = 60.0
_MAX_TIMES = 3  # recompiles or recordings that a repro has to show at most
_GB_ID = re.compile(r"^GB\d{4}\b")
_ADVICE = re.compile(r"\s*Set TORCHDYNAMO_VERBOSE=1|\s*from user code:", re.IGNORECASE)
# Errors raised after Dynamo, which need a backend that generates code.
_BACKENDS = ("BackendCompilerFailed", "InductorError", "LoweringException")
# Codes of findings where the program calls compiled code, but eager code runs.
_CALLED = frozenset({"NC804", "NC805"})
_STATIC_KINDS = frozenset({"config", "hazard"})


@dataclass(frozen=True)
class FailureSignature:
    """One failure of one target.

    `oracle` names the file of `repro/oracles` that recognises it. The oracle compares
    `expected`: JSON without paths or names of the user's program.
    """

    kind: str  # a kind of finding, or "hang"
    oracle: str
    headline: str  # one sentence: the title of the bug report
    expected: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ids: tuple[str, ...] = ()  # torch's own, such as GB0170
    search: str = ""  # search terms for existing reports
    finding: Finding | None = None


def choose_failure(run: Run, select: Sequence[str] = ()) -> FailureSignature:
    """Returns the selected failure, or else the most severe one of the report."""
    if run.ending == "timeout" and not select:
        return _hang(run)
    refusals = []
    for finding in _open(run, select):
        signature = _signature_of(finding, run)
        if isinstance(signature, FailureSignature):
            return signature
        refusals.append(f"{finding.code}: {signature}")
    if not select and (failed := _failed(run)) is not None:
        return _measured_error(failed)
    if refusals:
        raise UserError(f"run {run.id} cannot be reproduced: {refusals[0]}")
    what = f" with {', '.join(select)}" if select else ""
    codes = ", ".join(dict.fromkeys(f.code for f in _open(run, ())))
    hint = f"; it has {codes}" if codes and select else ""
    raise UserError(
        f"run {run.id} has no open finding{what}{hint}: there is nothing to reproduce"
    )


def _signature_of(finding: Finding, run: Run) -> FailureSignature | str:
    """Returns the signature of a finding, or the reason why it has none."""
    if finding.kind in _STATIC_KINDS or finding.origin == "static":
        return (
            "static analysis of the source found it, and no run confirmed it; run check"
            " with calls that reach it"
        )
    return _READERS[finding.kind](finding, run)


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


def _break(finding: Finding, run: Run) -> FailureSignature | str:
    ids = _ids(finding)
    reason = _evidence_after(finding, "torch: ")
    if not reason:
        return "its evidence does not contain torch's reason"
    kind, _, explanation = reason.partition(": ")
    names = names_in(explanation)
    skips = finding.kind == "skipped_frame"
    what = "skipped frame" if skips else "graph break"
    about = f" ({', '.join(names)})" if names else ""
    number = f"{ids[0]} " if ids else ""
    expected = {
        "type": kind,
        "id": ids[0] if ids else None,
        "names": names,
        "skips": skips,
    }
    return FailureSignature(
        kind=finding.kind,
        oracle="breaks",
        headline=f"torch.compile: {what}, {number}{kind}{about}",
        expected=expected,
        ids=ids,
        search=" ".join([f'"{kind}"', *names]),
        finding=finding,
    )


def _recompile(finding: Finding, run: Run) -> FailureSignature | str:
    guards = [re.sub(r"^\d+\S*: ", "", line) for line in finding.evidence]
    guards = [g for g in guards if not g.startswith("and ") and g]
    if not guards or finding.code.startswith("SP"):
        return "it occurred at sizes that torchproof chose: add calls of those sizes"
    kind = kind_of_guard(guards[0])
    times = min(finding.count or 1, _MAX_TIMES)
    return FailureSignature(
        kind=finding.kind,
        oracle="recompiles",
        headline=f"torch.compile recompiles at each change of: {kind}",
        expected={"kind": kind, "times": times},
        search=f"torch.compile recompiles {kind}",
        finding=finding,
    )


def _limit(finding: Finding, run: Run) -> FailureSignature:
    last = _evidence_after(finding, "last guard to fail: ")
    kind = kind_of_guard(last) if last else None
    because = f" because of: {kind}" if kind else ""
    return FailureSignature(
        kind=finding.kind,
        oracle="recompiles",
        headline=f"torch.compile hits the recompile limit{because}",
        expected={"limit": True, "kind": kind},
        ids=_ids(finding),
        search=f"recompile limit {kind or ''}".strip(),
        finding=finding,
    )


def _specialization(finding: Finding, run: Run) -> FailureSignature | str:
    if finding.evidence and "Error: " in finding.evidence[0].partition(" ")[0] + " ":
        return _error(finding, run)
    return FailureSignature(
        kind=finding.kind,
        oracle="recompiles",
        headline="torch.compile turns a dynamic size into a constant",
        expected={"specialized": True},
        search="dynamic shape specialized constant mark_dynamic",
        finding=finding,
    )


def _error(finding: Finding, run: Run) -> FailureSignature | str:
    if not finding.evidence:
        return "its evidence does not contain the error"
    return _error_signature(finding.evidence[0], _ids(finding), finding)


def _error_signature(
    error: str, ids: tuple[str, ...] = (), finding: Finding | None = None
) -> FailureSignature:
    name, message = _class_and_message(error)
    core = without_values(innermost(message))
    expected: dict[str, Any] = {"error": name, "message": core}
    explained = re.search(r"Explanation: (.*?)(?=\s+Hint:|\Z)", message, re.DOTALL)
    expected["id"] = ids[0] if ids else None
    expected["names"] = names_in(explained[1] if explained else "")
    if name not in _BACKENDS and finding is not None:
        expected["backend"] = "eager"  # it occurred before code generation
    return FailureSignature(
        kind=finding.kind if finding else "compile_error",
        oracle="errors",
        headline=f"torch.compile raises {name}: {core}",
        expected=expected,
        ids=ids,
        search=f"{name} {_searchable(core)}".strip(),
        finding=finding,
    )


def _class_and_message(error: str) -> tuple[str, str]:
    """Splits `torch._inductor.exc.InductorError: text` into `InductorError`, `text`."""
    error = _ADVICE.split(error)[0].removesuffix("...").strip()
    error = re.sub(r"^\S+\.py:\d+: ", "", error)  # the line of a failed measurement
    name, _, message = error.partition(": ")
    short = name.rsplit(".", 1)[-1]
    # The last line of a traceback repeats the class.
    message = re.sub(rf"^(?:[\w.]+\.)?{re.escape(short)}: ", "", message)
    return short, message


def _searchable(core: str) -> str:
    words = re.sub(r"\b(?:N|NAME|PATH)\b|[^\w\s.:']", " ", core).split()
    return " ".join(words[:10])


def _no_op(finding: Finding, run: Run) -> FailureSignature:
    named = re.search(r"because of: (.+)$|nothing to compile: (.+)$", finding.cause)
    because = (named[1] or named[2]) if named else None
    return FailureSignature(
        kind=finding.kind,
        oracle="no_ops",
        headline="torch.compile compiles nothing"
        + (f", because of: {because}" if because else ""),
        expected={"because": because, "called": finding.code in _CALLED},
        search=f'"{because}"' if because else "torch.compile no graph compiled",
        finding=finding,
    )


def _numerics(finding: Finding, run: Run) -> FailureSignature:
    relative = _evidence_after(finding, "relative error ")
    error = float(relative.split(",")[0]) if relative else None
    operations = re.findall(r"\btorch(?:\.\w+)+", finding.cause)[:1]
    layer = _evidence_after(finding, "first wrong in ")
    expected = {"how": _how(finding.message), "error": error}
    if "random" in finding.cause.lower() and finding.severity == "low":
        expected["random"] = True
    return FailureSignature(
        kind=finding.kind,
        oracle="answers",
        headline="torch.compile gives wrong results"
        + "".join(f" for {name}" for name in operations)
        + (f", first in {layer}" if layer else ""),
        expected=expected,
        search=" ".join(["torch.compile wrong result", *operations]),
        finding=finding,
    )


def _how(message: str) -> str:
    if "NaN where eager has none" in message:
        return "nan"
    if "infinity on one side only" in message:
        return "infinity"
    form = r": (?:its (?:dtype|shape)|it is of type|only eager gives|eager gives none)"
    return "form" if re.search(form, message) else "value"


def _stale(finding: Finding, run: Run) -> FailureSignature | str:
    if any(line.startswith("the change was made by") for line in finding.evidence):
        return (
            "torchproof itself made the change between two calls; make it in"
            " `before_call(fn, index)` of the factory's file and run check again"
        )
    every = any("in every call" in line for line in finding.evidence)
    seeds = "draws from" in finding.message
    return FailureSignature(
        kind=finding.kind,
        oracle="answers",
        headline="compiled code ignores a change that eager sees",
        expected={
            "how": "value",
            "error": None,
            "later": not (every or seeds),
            "random": seeds,
        },
        search="torch.compile stale value not guarded",
        finding=finding,
    )


def _skip(finding: Finding, run: Run) -> FailureSignature | str:
    message = _evidence_after(finding, "torch says: ")
    if not message:
        return _recording(finding, run)
    reason = without_values(message.splitlines()[0].split(" Found from")[0])
    return FailureSignature(
        kind=finding.kind,
        oracle="skips",
        headline=f"torch.compile: {reason}",
        expected={"reason": reason},
        search=_searchable(reason),
        finding=finding,
    )


def _recording(finding: Finding, run: Run) -> FailureSignature:
    times = min((finding.count or 1) + 1, _MAX_TIMES)
    return FailureSignature(
        kind=finding.kind,
        oracle="skips",
        headline="CUDA graphs are re-recorded",
        expected={"recordings": times},
        search="cudagraph trees re-record",
        finding=finding,
    )


def _lifetime(finding: Finding, run: Run) -> FailureSignature:
    return FailureSignature(
        kind=finding.kind,
        oracle="lifetimes",
        headline="a later call overwrites an output of CUDA graphs",
        search="accessing tensor output of CUDAGraphs that has been overwritten",
        finding=finding,
    )


def _sync(finding: Finding, run: Run) -> FailureSignature:
    return FailureSignature(
        kind=finding.kind,
        oracle="syncs",
        headline="the host waits for the device in a compiled call",
        search="torch.compile host device synchronization",
        finding=finding,
    )


# -- findings about cost ---------------------------------------------------------------


def _slowdown(finding: Finding, run: Run) -> FailureSignature | str:
    measured = _evidence_after(finding, "eager/compiled ")
    if not measured:
        return "the cost of guards depends on the machine and cannot be reproduced"
    ratio = float(measured.split(",")[0])
    what = "no gain" if finding.code == "SP502" else "slower"
    times = (
        f"{1 / ratio:.1f} times as slow as" if what == "slower" else "no faster than"
    )
    return FailureSignature(
        kind=finding.kind,
        oracle="slowdown",
        headline=f"compiled code is {times} eager",
        expected={"what": what, "ratio": ratio},
        search="torch.compile slower than eager",
        finding=finding,
    )


def _compile_time(finding: Finding, run: Run) -> FailureSignature | str:
    each = [re.search(r"([\d.]+) s in the backend", line) for line in finding.evidence]
    seconds = sum(float(match[1]) for match in each if match)
    if not seconds:
        rows = [m for m in run.measurements if m.strategy != "eager" and m.first_call_s]
        if not rows:
            return "its compile time was not measured"
        seconds = max(m.first_call_s or 0.0 for m in rows)
    return FailureSignature(
        kind=finding.kind,
        oracle="compile_time",
        headline=f"torch.compile takes {seconds:.0f} s",
        expected={"seconds": seconds},
        search="torch.compile compile time slow",
        finding=finding,
    )


def _memory(finding: Finding, run: Run) -> FailureSignature | str:
    sizes = re.findall(r"(\d+) MiB", finding.message)
    if len(sizes) < 2 or not int(sizes[1]):
        return "its memory was not measured"
    ratio = int(sizes[0]) / int(sizes[1])
    return FailureSignature(
        kind=finding.kind,
        oracle="memory",
        headline=f"compiled code uses {ratio:.1f} times the memory of eager",
        expected={"ratio": ratio},
        search="torch.compile memory higher than eager",
        finding=finding,
    )


_READERS: Mapping[str, Callable[[Finding, Run], FailureSignature | str]] = {
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
    "cudagraph_lifetime": _lifetime,
    "host_sync": _sync,
}


def _evidence_after(finding: Finding, start: str) -> str:
    """Returns the rest of the evidence line that starts so; empty if none does."""
    lines = (line for line in finding.evidence if line.startswith(start))
    return next(lines, "").removeprefix(start)


def _ids(finding: Finding) -> tuple[str, ...]:
    matches = (_GB_ID.match(line) for line in finding.evidence)
    return tuple(match[0] for match in matches if match)


# -- failures without a finding --------------------------------------------------------


def _hang(run: Run) -> FailureSignature:
    seconds = min(float(run.options.get("timeout_s") or _HANG_S), _HANG_S)
    return FailureSignature(
        kind="hang",
        oracle="hang",
        headline=f"torch.compile does not end within {seconds:.0f} s",
        expected={"seconds": seconds, "place": None},
        search="torch.compile hangs",
    )


def _failed(run: Run) -> Measurement | None:
    """Returns a strategy that raised although eager did not."""
    rows = {m.strategy: m for m in run.measurements}
    eager = rows.get("eager")
    if eager is None or eager.error:
        return None
    return next((m for m in run.measurements if m.error), None)


def _measured_error(failed: Measurement) -> FailureSignature:
    return _error_signature(failed.error or "")
