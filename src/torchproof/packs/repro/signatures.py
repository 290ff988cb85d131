"""Which failure of a saved run is meant, and what a judge is to expect of it.

Comes in: a run of `check`, and codes if somebody chose. Goes out: one `Symptom`, whose
words are torch's own: no path, value or name of the user's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchproof.packs.repro import cost_signatures
from torchproof.packs.repro.cost_signatures import evidence_after
from torchproof.packs.repro.failure_signature import Symptom
from torchproof.packs.repro.oracles.error_text import (
    innermost,
    kind_of_guard,
    names_in,
    without_values,
)
from torchproof.records import SEVERITIES, Finding, Measurement, Run, UserError

_HANG_S = 60.0
_STORM = 3  # recompiles from which on it is one
_GB_ID = re.compile(r"^GB\d{4}\b")
_ADVICE = re.compile(r"\s*Set TORCHDYNAMO_VERBOSE=1|\s*from user code:", re.IGNORECASE)
# Errors of what comes after Dynamo: only there is code generated.
_BACKENDS = ("BackendCompilerFailed", "InductorError", "LoweringException")
# What was compiled is called, and is not what runs.
_CALLED = frozenset({"NC804", "NC805"})
_NO_RUN = frozenset({"config", "hazard"})


def chosen(run: Run, select: Sequence[str] = ()) -> Symptom:
    """The selected failure, else the most severe one in the order of the report."""
    if run.ending == "timeout" and not select:
        return _hang(run)
    found = _open(run, select)
    refusals = []
    for finding in found:
        symptom = of_finding(finding, run)
        if isinstance(symptom, Symptom):
            return symptom
        refusals.append(f"{finding.code}: {symptom}")
    if not select and (failed := _failed(run)) is not None:
        return _measured_error(failed)
    if refusals:
        raise UserError(f"no repro can be made of run {run.id}: {refusals[0]}")
    what = f" with {', '.join(select)}" if select else ""
    known = ", ".join(dict.fromkeys(f.code for f in _open(run, ())))
    known = f"; it has {known}" if known and select else ""
    raise UserError(
        f"run {run.id} has no open finding{what}{known}: there is nothing to reproduce"
    )


def of_finding(finding: Finding, run: Run) -> Symptom | str:
    """Its symptom, or why there is none."""
    if finding.kind in _NO_RUN or finding.origin == "static":
        return (
            "it was read in the source and no run has shown it; check with calls that"
            " reach it"
        )
    return _READERS[finding.kind](finding, run)


def _open(run: Run, select: Sequence[str]) -> list[Finding]:
    found = [f for f in run.findings if f.status == "open"]
    if select:
        found = [f for f in found if any(_is_meant(f, each) for each in select)]
    return sorted(found, key=lambda f: SEVERITIES.index(f.severity))


def _is_meant(finding: Finding, selector: str) -> bool:
    """CODE, the beginning of one, or CODE@file.py:LINE."""
    code, _, place = selector.partition("@")
    file, _, line = place.rpartition(":")
    if place and not line.isdigit():
        file, line = place, ""
    return (
        finding.code.startswith(code.upper())
        and (not file or (finding.file or "").endswith(file))
        and (not line or finding.line == int(line))
    )


# -- from the words of a finding -------------------------------------------------------


def _break(finding: Finding, run: Run) -> Symptom | str:
    ids, told = _ids(finding), evidence_after(finding, "torch: ")
    if not told:
        return "its evidence does not hold torch's own reason"
    kind, _, explanation = told.partition(": ")
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
    return Symptom(
        finding.kind,
        "breaks",
        f"torch.compile: {what}, {number}{kind}{about}",
        expected,
        ids,
        " ".join([f'"{kind}"', *names]),
        finding,
    )


def _recompile(finding: Finding, run: Run) -> Symptom | str:
    guards = [re.sub(r"^\d+\S*: ", "", line) for line in finding.evidence]
    guards = [g for g in guards if not g.startswith("and ") and g]
    if not guards or finding.code.startswith("SP"):
        return "it came up at sizes that torchproof chose: give calls of those sizes"
    kind = kind_of_guard(guards[0])
    times = min(finding.count or 1, _STORM)
    return Symptom(
        finding.kind,
        "recompiles",
        f"torch.compile compiles again at each change of: {kind}",
        {"kind": kind, "times": times},
        search=f"torch.compile recompiles {kind}",
        finding=finding,
    )


def _limit(finding: Finding, run: Run) -> Symptom:
    last = evidence_after(finding, "last guard to fail: ")
    kind = kind_of_guard(last) if last else None
    because = f" because of: {kind}" if kind else ""
    return Symptom(
        finding.kind,
        "recompiles",
        f"torch.compile hits the recompile limit{because}",
        {"limit": True, "kind": kind},
        _ids(finding),
        f"recompile limit {kind or ''}".strip(),
        finding,
    )


def _specialization(finding: Finding, run: Run) -> Symptom | str:
    if finding.evidence and "Error: " in finding.evidence[0].partition(" ")[0] + " ":
        return _error(finding, run)
    return Symptom(
        finding.kind,
        "recompiles",
        "torch.compile turns a dynamic size into a constant",
        {"specialized": True},
        search="dynamic shape specialized constant mark_dynamic",
        finding=finding,
    )


def _error(finding: Finding, run: Run) -> Symptom | str:
    if not finding.evidence:
        return "its evidence does not hold the error"
    return _error_symptom(finding.evidence[0], _ids(finding), finding)


def _error_symptom(
    told: str, ids: tuple[str, ...] = (), finding: Finding | None = None
) -> Symptom:
    name, message = _class_and_message(told)
    core = without_values(innermost(message))
    expected: dict[str, Any] = {"error": name, "message": core}
    explained = re.search(r"Explanation: (.*?)(?=\s+Hint:|\Z)", message, re.DOTALL)
    expected["id"] = ids[0] if ids else None
    expected["names"] = names_in(explained[1] if explained else "")
    if name not in _BACKENDS and finding is not None:
        expected["backend"] = "eager"  # it was seen where no code is generated
    return Symptom(
        finding.kind if finding else "compile_error",
        "errors",
        f"torch.compile raises {name}: {core}",
        expected,
        ids,
        f"{name} {_searchable(core)}".strip(),
        finding,
    )


def _class_and_message(told: str) -> tuple[str, str]:
    """`InductorError`, `no working compiler` of torch._inductor.exc.InductorError."""
    told = _ADVICE.split(told)[0].removesuffix("...").strip()
    told = re.sub(r"^\S+\.py:\d+: ", "", told)  # where a measurement failed
    name, _, message = told.partition(": ")
    short = name.rsplit(".", 1)[-1]
    # The last line of a traceback repeats the class.
    message = re.sub(rf"^(?:[\w.]+\.)?{re.escape(short)}: ", "", message)
    return short, message


def _searchable(core: str) -> str:
    words = re.sub(r"\b(?:N|NAME|PATH)\b|[^\w\s.:']", " ", core).split()
    return " ".join(words[:10])


def _no_op(finding: Finding, run: Run) -> Symptom:
    named = re.search(r"because of: (.+)$|nothing to compile: (.+)$", finding.cause)
    because = (named[1] or named[2]) if named else None
    return Symptom(
        finding.kind,
        "no_ops",
        "torch.compile compiles nothing"
        + (f", because of: {because}" if because else ""),
        {"because": because, "called": finding.code in _CALLED},
        search=f'"{because}"' if because else "torch.compile no graph compiled",
        finding=finding,
    )


def _numerics(finding: Finding, run: Run) -> Symptom:
    relative = evidence_after(finding, "relative error ")
    error = float(relative.split(",")[0]) if relative else None
    operations = re.findall(r"\btorch(?:\.\w+)+", finding.cause)[:1]
    layer = evidence_after(finding, "first wrong in ")
    expected = {"how": _how(finding.message), "error": error}
    if "random" in finding.cause.lower() and finding.severity == "low":
        expected["random"] = True
    return Symptom(
        finding.kind,
        "answers",
        "torch.compile gives wrong answers"
        + "".join(f" for {name}" for name in operations)
        + (f", first in {layer}" if layer else ""),
        expected,
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


def _stale(finding: Finding, run: Run) -> Symptom | str:
    if any(line.startswith("the change was made by") for line in finding.evidence):
        return (
            "torchproof itself made the change between two calls; make it in a"
            " `before_call(fn, index)` of the factory's file and check again"
        )
    every = any("in every call" in line for line in finding.evidence)
    seeds = "draws from" in finding.message
    return Symptom(
        finding.kind,
        "answers",
        "compiled code ignores a change that eager sees",
        {"how": "value", "error": None, "later": not (every or seeds), "random": seeds},
        search="torch.compile stale value not guarded",
        finding=finding,
    )


def _skip(finding: Finding, run: Run) -> Symptom | str:
    told = evidence_after(finding, "torch says: ")
    if not told:
        return _recording(finding, run)
    reason = without_values(told.splitlines()[0].split(" Found from")[0])
    return Symptom(
        finding.kind,
        "skips",
        f"torch.compile: {reason}",
        {"reason": reason},
        search=_searchable(reason),
        finding=finding,
    )


def _recording(finding: Finding, run: Run) -> Symptom:
    times = min((finding.count or 1) + 1, _STORM)
    return Symptom(
        finding.kind,
        "skips",
        "CUDA graphs are recorded again and again",
        {"recordings": times},
        search="cudagraph trees re-record",
        finding=finding,
    )


def _lifetime(finding: Finding, run: Run) -> Symptom:
    return Symptom(
        finding.kind,
        "lifetimes",
        "an output of CUDA graphs is overwritten by a later call",
        search="accessing tensor output of CUDAGraphs that has been overwritten",
        finding=finding,
    )


def _sync(finding: Finding, run: Run) -> Symptom:
    return Symptom(
        finding.kind,
        "syncs",
        "the host waits for the device in a compiled call",
        search="torch.compile host device synchronization",
        finding=finding,
    )


_READERS: Mapping[str, Callable[[Finding, Run], Symptom | str]] = {
    "graph_break": _break,
    "skipped_frame": _break,
    "recompile": _recompile,
    "recompile_limit": _limit,
    "specialization": _specialization,
    "compile_error": _error,
    "no_op": _no_op,
    "numerics": _numerics,
    "stale_state": _stale,
    "slowdown": cost_signatures.slowdown,
    "compile_time": cost_signatures.compile_time,
    "memory": cost_signatures.memory,
    "cudagraph_skip": _skip,
    "cudagraph_rerecord": _recording,
    "cudagraph_lifetime": _lifetime,
    "host_sync": _sync,
}


def _ids(finding: Finding) -> tuple[str, ...]:
    found = (_GB_ID.match(line) for line in finding.evidence)
    return tuple(match[0] for match in found if match)


# -- failures that no finding tells of -------------------------------------------------


def _hang(run: Run) -> Symptom:
    seconds = min(float(run.options.get("timeout_s") or _HANG_S), _HANG_S)
    return Symptom(
        "hang",
        "hang",
        f"torch.compile does not end within {seconds:.0f} s",
        {"seconds": seconds, "place": None},
        search="torch.compile hangs",
    )


def _failed(run: Run) -> Measurement | None:
    """A way to run it that raised, where eager did not."""
    rows = {m.strategy: m for m in run.measurements}
    eager = rows.get("eager")
    if eager is None or eager.error:
        return None
    return next((m for m in run.measurements if m.error), None)


def _measured_error(failed: Measurement) -> Symptom:
    return _error_symptom(failed.error or "")
