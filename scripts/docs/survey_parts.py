"""The parts of pages that show surveys: which result, which columns, which rows."""

from __future__ import annotations

import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tables import (
    NOTHING,
    ROOT,
    Columns,
    Row,
    cell,
    codes,
    device,
    flat,
    named,
    plain,
    render,
    result,
    share,
    table,
)

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_stats import REPLAYS, SLICE_MS, read, replay

from benchmarks import advice, zoo
from benchmarks.advice_verdict import Verdict
from benchmarks.graph_coverage import PREFIX, TRAINING, recorded_of
from benchmarks.timing import LIMITS
from torchproof.report import numbers

# -- reliability -----------------------------------------------------------------------


def faults(where: str) -> str:
    """A row for each fault, a column for each situation."""
    found = result(f"reliability-{where}")
    rows = {tuple(name.split(" / ")): row for name, row in found["rows"].items()}
    columns = list(dict.fromkeys(situation for _, situation in rows))
    lines = [
        (fault, *(_fault(rows.get((fault, column))) for column in columns))
        for fault in dict.fromkeys(fault for fault, _ in rows)
    ]
    return render(
        "faults",
        found=found,
        count=len(rows),
        failed=[row for row in rows.values() if row["wrong"]],
        failures=[_first_line(each) for each in found["failures"]],
        table=plain(["fault", *columns], lines),
    )


def _fault(row: Row | None) -> str:
    if row is None:
        return NOTHING
    took = "" if row["call_s"] is None else f" {row['call_s']:.1f} s"
    if "the fault was never reached" in row["wrong"]:
        return f"**not reached**{took}"
    return f"**fails**{took}" if row["wrong"] else f"ok{took}"


def _first_line(text: str) -> str:
    """The start of a recorded reason; the rest of it is the whole status."""
    return text.partition("\n")[0].partition(": Model: ")[0]


def soak(where: str) -> str:
    """A column for each row of the survey; what was not measured is left out."""
    found = result(f"soak-{where}")
    columns: Columns = {
        "calls": "{calls:,}",
        "wrong answers": lambda row: str(len(row["wrong"])),
        "compiled calls": "{compiled_calls:,}",
        "compilations": "{compilations:,}",
        **{what: _counts(what) for what in ("changes", "faults", "fallbacks")},
        "memory, MiB": _halves("memory_bytes", 1 << 20),
        "device memory, MiB": _halves("device_bytes", 1 << 20),
        **{what: _halves(what) for what in ("threads", "processes", "files")},
        "seconds": "{seconds:.0f}",
    }
    rows = found["rows"]
    lines = [
        (title, *(cell(show, row) for row in rows.values()))
        for title, show in columns.items()
    ]
    known = [line for line in lines if set(line[1:]) != {NOTHING}]
    return render("soak", found=found, table=plain(["", *rows], known))


def _counts(what: str) -> Callable[[Row], str]:
    return lambda row: ", ".join(f"{n} {c}" for n, c in sorted(row[what].items()))


def _halves(what: str, unit: int = 1) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        values = [half.get(what) for half in row["held"]]
        if None in values:
            return NOTHING
        return " -> ".join(f"{value / unit:.0f}" for value in values)

    return show


STATE: Columns = {
    "run by": "`{name}`",
    "programs": "{programs:,}",
    "calls": "{calls:,}",
    "changes": "{changes:,}",
    "replayed or compiled": lambda row: (
        f"{_first(row, 'replays', 'compiled') / row['calls']:.0%}"
    ),
    "recordings or compilations": lambda row: (
        f"{_first(row, 'recordings', 'compilations'):,}"
    ),
    "differ from eager": lambda row: str(len(row["failures"])),
}


def _first(row: Row, *names: str) -> int:
    return next((row["counts"][each] for each in names if each in row["counts"]), 0)


def state_limits() -> str:
    """What random programs leave out, since it is known to differ."""
    path = ROOT / "tests" / "state_fuzz" / "limits.toml"
    limits = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [
        (name, f"`torchproof.{subject}`", why)
        for subject in ("compile", "graph")
        for name, why in limits[subject].items()
    ]
    return plain("the step reads | under | why the result differs", rows)


FILES: Columns = {
    "format": "{name}",
    "mutated files": "{files:,}",
    **{what: f"{{{what}:,}}" for what in ("calls", "accepted", "refused", "findings")},
}


def files() -> str:
    found = result("fuzz_files")
    return render("files", found=found, table=table(FILES, named(found["rows"])))


CALLS: Columns = {
    "call": "{name}",
    "torch.compile, us": "{bare_us:.1f}",
    "added, us (processes)": "{added_us[quiet]:.1f} ({added_us[low_process]:.1f} to"
    " {added_us[high_process]:.1f})",
    "added per compiled callable, us": "{per_callable_us:.1f}",
    "pairs": "{pairs}",
}


def calls() -> str:
    rows = result("call_overhead")["rows"]
    return table(CALLS, [row for row in named(rows) if row["name"] != "import"])


# -- costs and the accuracy of measuring -----------------------------------------------

SPEED: Columns = {
    "step": "{step}",
    "way": "{way}",
    "host, us": "{host_us:.0f}",
    "waits, ms": "{synced_ms:.3f}",
    "streams, ms": "{streamed_ms:.3f}",
    "share, waits": "{share_synced:.0%}",
    "share, streams": "{share_streamed:.0%}",
}


def graph_speed() -> str:
    found = result("graph_speed-cuda")
    if not found["rows"]:
        return "Nothing is published: `python -m benchmarks.graph_speed` measures it."
    rows = [
        {"step": named_row["name"].replace("_", " "), "way": way, **measured}
        for named_row in named(found["rows"])
        for way, measured in named_row.get("ways", {}).items()
        if "synced_ms" in measured and measured["is_right"]
    ]
    return (
        f"{device(found)}, torch {found['versions']['torch']}.\n\n{table(SPEED, rows)}"
    )


def decode() -> str:
    """The strategies that `tune` measured to the end for a decode step."""
    found = result("tune-decode")
    columns: Columns = {
        "strategy": lambda row: ", ".join((row["strategy"], *row["variant"].values())),
        "token": lambda row: numbers.milliseconds(row["median_ms"]),
        "95% interval, ms": "{low_ms:.2f}-{high_ms:.2f}",
        "vs. eager": "{vs_eager:.1f}x",
        "outputs": "{numerics[verdict]}",
    }
    environment = found["environment"]
    where = f"{environment['gpu']}, torch {environment['torch']}, single process"
    return f"{where}.\n\n{table(columns, found['measurements'])}"


def graph_memory() -> str:
    found = result("graph_memory")
    peaks = {name: row.get("peak_mib") for name, row in found["rows"].items()}
    if not peaks:
        return "Nothing is published: `python -m benchmarks.graph_memory` measures it."

    def part(row: Row) -> str:
        reference = peaks.get(f"{row['step']}/reduce-overhead")
        return f"{row['peak'] / reference:.2f}x" if reference else "-"

    columns: Columns = {
        "step": lambda row: row["step"].replace("_", " "),
        "way": "{way}",
        "peak": "{peak} MiB",
        "of reduce-overhead": part,
    }
    rows = [
        {"step": step, "way": way, "peak": peak}
        for name, peak in peaks.items()
        for step, way in [name.split("/")]
        if peak is not None
    ]
    where = f"{device(found)}, torch {found['versions']['torch']}"
    return f"{where}.\n\n{table(columns, rows)}"


def check_cost() -> str:
    found = result("check_cost")
    columns: Columns = {
        "program": "`{name}`",
        "machine": lambda row: device(found).removeprefix("CPU, "),
        "torch": lambda row: str(found["versions"]["torch"]),
        "bare run": "{runs_s[bare]:.1f} s",
        **{f"`{e}`": f"{{ratios[{e}]:.1f}}x" for e in ("quick", "normal", "full")},
    }
    return table(columns, named(found["rows"]))


def loop() -> str:
    found = result("timing")
    columns: Columns = {
        "machine": lambda row: device(found).removeprefix("CPU, "),
        "bare step": lambda row: numbers.milliseconds(row["step_ms"]),
        "pairs": "{pairs}",
        **{
            f"{title} (at most {LIMITS[key]:g})": f"{{ratio[{key}][value]:.4f}}"
            f" ({{ratio[{key}][low]:.4f}} to {{ratio[{key}][high]:.4f}})"
            for title, key in (("as reported", "reported"), ("whole loop", "whole"))
        },
    }
    return table(columns, [found["rows"]["loop"]])


def known_costs() -> str:
    found = result("timing")
    columns: Columns = {
        "machine": lambda row: device(found).removeprefix("CPU, "),
        "work": "{name}",
        "truth": "{truth:.2f}x",
        "measured": lambda row: numbers.times(
            *(row[key] for key in ("vs_eager", "vs_eager_low", "vs_eager_high"))
        ),
        "verdict": "{verdict}",
    }
    return table(columns, [row for row in named(found["rows"]) if "truth" in row])


def replays() -> str:
    """Recorded timings, replayed: how often a verdict is right."""
    recorded, rows = read(lambda step_ms: step_ms < SLICE_MS), []
    for truth, factor in (("equal", 1.0), ("1.10x slower", 1.1)):
        said = [replay(recorded, n, slower=factor).verdict for n in range(REPLAYS)]
        counts = [said.count(word) for word in ("faster", "slower", "not significant")]
        rows.append((truth, str(REPLAYS), *map(str, counts)))
    return plain("truth | replays | faster | slower | not significant", rows)


STALE: Columns = {
    "step": "{name}",
    **{key: f"{{{key}}}" for key in ("calls", "replays", "recordings")},
    "answers compared": "{compared}",
    "kept and compared later": "{kept}",
    "stale": "{stale}",
    "largest error": "{largest_error:.1e}",
}


# -- warm starts -----------------------------------------------------------------------


def _start(start: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        times = [each["seconds"] for each in row["starts"] if each["start"] == start]
        return f"{statistics.median(times):.1f} s"

    return show


def _share(row: Row) -> str:
    """The median, and the range of the pairs where it was measured."""
    share = f"{row['ratio']:.2f}"
    if "ratio_low" in row:
        share += f" ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
    return share


def _packed(row: Row) -> str:
    starts = [each for each in row["starts"] if each["start"] == "pack"]
    return f"{min(each['graphs'] for each in starts)} of {starts[0]['of']}"


def warm_starts() -> str:
    found = [result(f"warm_start-{where}") for where in ("cuda", "cpu")]
    rows = [
        row | {"where": f"{device(each)}, torch {each['versions']['torch']}"}
        for each in found
        for row in named(each["rows"])
    ]
    columns: Columns = {
        "target": "{name}",
        "device": "{where}",
        "cold": _start("cold"),
        "from the pack": _start("pack"),
        "share": _share,
        "imports": _start("imports"),
        "share without imports": "{ratio_without_imports:.2f}",
        "graphs hit": _packed,
    }
    return table(columns, rows)


# -- graph coverage --------------------------------------------------------------------


def coverage() -> str:
    """What was run, and how much of it is recorded."""
    found = result("graph_coverage")
    rows = _measured()
    kinds = {
        "inference": [row for row in rows if not row["name"].endswith(TRAINING)],
        "training": [row for row in rows if row["name"].endswith(TRAINING)],
        "all": rows,
    }
    return render(
        "coverage",
        found=found,
        models=len({row["name"].removesuffix(TRAINING) for row in rows}),
        steps=len(rows),
        failed=[row for row in named(found["rows"]) if "error" in row],
        table=plain(
            "steps | number | recorded | host sync in eager | recorded of the others"
            " | outputs of replays",
            [_coverage(name, kind) for name, kind in kinds.items()],
        ),
    )


def _coverage(name: str, rows: list[Row]) -> tuple[str, ...]:
    count, free = recorded_of(rows)
    verdicts = Counter(row["outputs"] or NOTHING for row in rows if row["recorded"])
    outputs = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
    numbers_of = (len(rows), sum(row["recorded"] for row in rows), len(rows) - free)
    of_free = f"{count} of {free} ({count / free:.0%})" if free else NOTHING
    return (name, *map(str, numbers_of), of_free, outputs or NOTHING)


def _measured() -> list[Row]:
    rows = named(result("graph_coverage")["rows"])
    return [row for row in rows if "error" not in row]


def reasons() -> str:
    """Every reason why a step is not recorded, with the steps."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _measured():
        if not row["recorded"]:
            stop = row["stop"] or {"reason": NOTHING}
            waits = "yes" if row["host_sync"] else "no"
            groups[flat(stop["reason"]), waits].append(row["name"])
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return plain(
        "reason | host sync in eager | number | steps",
        [(*key, str(len(names)), codes(names)) for key, names in ordered],
    )


STEPS: Columns = {
    "step": "`{name}`",
    "recorded": lambda row: "yes" if row["recorded"] else "no",
    "outputs": lambda row: (row["recorded"] and row["outputs"]) or NOTHING,
    "host sync in eager": lambda row: _file(row["host_sync"]),
    "first reason at": lambda row: _file((row["stop"] or {}).get("place")),
}


def _file(place: str | None) -> str:
    return f"`{Path(place).name}`" if place else NOTHING


def steps() -> str:
    return table(STEPS, sorted(_measured(), key=lambda r: r["name"].startswith(PREFIX)))


# -- advice ----------------------------------------------------------------------------


def advice_sets() -> str:
    """How much of the advice works, by set of programs."""
    rows = advised()
    groups = {"all": advice.counted(f for _, f in advice.findings(rows))}
    return render(
        "advice",
        found=result("advice"),
        programs=len(rows),
        clean=sum(not row["findings"] for row in rows.values()),
        table=_advice("programs", advice.by_group(rows) | groups),
    )


def advice_codes() -> str:
    return _advice("code", advice.by_code(advised()))


def advised() -> dict[str, Row]:
    rows = result("advice")["rows"]
    return {name: row for name, row in rows.items() if not row.get("error")}


def _advice(what: str, groups: Mapping[str, Counter[Verdict]]) -> str:
    """What came of all findings, and the share that works of those with a remedy."""
    others = [each for each in advice.TRIED if each != Verdict.WORKS]
    lines = [
        (
            name.replace("_", " "),
            str(counts.total()),
            str(tried := advice.tried_in(counts)),
            share(works := counts[Verdict.WORKS], tried),
            f"{works / counts.total():.0%}",
            *(str(counts[each]) for each in others),
        )
        for name, counts in groups.items()
    ]
    titles = [what, "findings", "remedy applied", "works", "of all", *map(str, others)]
    return plain(titles, lines)


def advice_failures() -> str:
    columns: Columns = {
        "program": "{program}",
        "finding": "{code} at line {line}",
        "remedy": lambda row: f"{row['remedy']}: `{_plain(row['text'])}`",
        "what it did": "{verdict}: {why}",
    }
    rows = [
        {"program": name, **finding}
        for name, finding in advice.findings(advised())
        if Verdict(finding["verdict"]) in advice.TRIED
        and finding["verdict"] != Verdict.WORKS
    ]
    return table(columns, rows)


def _plain(text: str) -> str:
    return flat(text.replace("`", ""), 100)


# -- precision -------------------------------------------------------------------------


def precision() -> str:
    """How many findings were judged, and how many are right."""
    reading, ran = result("precision")["rows"], result("packages")["rows"]
    packages = {row["package"] for row in ran.values()}
    judged = {
        "static, transformers": reading["transformers"]["sample"],
        f"static, {len(reading['others']['packages'])} other packages": reading[
            "others"
        ]["sample"],
        f"dynamic, {len(ran)} programs with {len(packages)} packages, all findings"
        " above `low`": [each for row in ran.values() for each in row["findings"]],
    }
    rows = [
        (what, str(len(found)), _right(found), _right(found, "wrong"))
        for what, found in judged.items()
    ]
    return plain("what was judged | findings | right | wrong", rows)


def _right(findings: list[Row], verdict: str = "right") -> str:
    return str(sum(each["verdict"] == verdict for each in findings))


def users() -> str:
    """Programs that compile packages of others: what was found, and what was wrong."""
    found = result("packages")
    findings = [
        each | {"program": name}
        for name, row in found["rows"].items()
        for each in row["findings"]
    ]
    by_code: dict[str, list[Row]] = defaultdict(list)
    for each in sorted(findings, key=lambda each: each["code"]):
        by_code[each["code"]].append(each)
    counts = [(code, str(len(mine)), _right(mine)) for code, mine in by_code.items()]
    wrong = [each for each in findings if each["verdict"] == "wrong"]
    columns: Columns = {
        "wrong": "{code}",
        "program": "{program}",
        "place": "`{place}`",
        "why": "{why}",
    }
    return render(
        "packages",
        found=found,
        logged=sum(each["logged"] for each in findings),
        count=len(findings),
        counts=plain("code | findings | right", counts),
        wrong=table(columns, wrong),
    )


def _codes(row: Row) -> str:
    """For each rule, how much was found, sampled and right."""
    rows = []
    for code, count in row["codes"].items():
        mine = [each for each in row["sample"] if each["code"] == code]
        right = _right(mine) if mine else NOTHING
        rows.append((code, str(count), str(len(mine)), right))
    return plain("code | found | in the sample | right", rows)


def reading(which: str) -> str:
    row = result("precision")["rows"][which]
    wrong = [each for each in row["sample"] if each["verdict"] == "wrong"]
    return render("reading", which=which, row=row, wrong=wrong, table=_codes(row))


# -- zoo -------------------------------------------------------------------------------

PLACES, LONGEST = 4, 180


def checked(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "check" in row and not row["check"]["error"]]


def zoo_totals() -> str:
    found = result("zoo")
    rows = named(found["rows"])
    libraries = dict.fromkeys(row["library"] for row in rows)
    lines = [
        (
            f"{library} {(found['versions'][library] or NOTHING).split('+')[0]}",
            *zoo_counts([row for row in rows if row["library"] == library]),
        )
        for library in libraries
    ]
    ran = checked(rows)
    seconds = [row["check"]["seconds"] for row in ran]
    kept_out = any(
        each["status"] == "intentional"
        for row in ran
        for each in zoo.findings(row, *zoo.BREAKS)
    )
    return render(
        "zoo",
        found=found,
        count=len(ran),
        seconds=f"{statistics.median(seconds):.0f}",
        kept_out=kept_out,
        table=plain(
            "library | models | checked | one graph | with breaks | breaks"
            " | keep recompiling | `fix` removes | one graph with fixes, at least",
            [*lines, ("**all**", *zoo_counts(rows))],
        ),
    )


def zoo_counts(rows: list[Row]) -> tuple[str, ...]:
    ran = checked(rows)
    whole = [row for row in ran if zoo.is_whole(row)]
    others = [row for row in ran if not zoo.is_whole(row)]
    cured = [row for row in others if zoo.is_fixed(row) and not zoo.breaks_left(row)]
    return (
        *(str(len(rows)), str(len(ran)), share(len(whole), len(ran))),
        str(len(others)),
        str(sum(len(zoo.findings(row, *zoo.BREAKS)) for row in ran)),
        str(sum(bool(zoo.again(row)) for row in ran)),
        removed_of(ran),
        share(len(whole) + len(cured), len(ran)),
    )


def removed_of(rows: list[Row]) -> str:
    """What `fix` removed of the breaks of the models on which it ran to its end."""
    broken = [row for row in rows if zoo.findings(row, *zoo.BREAKS)]
    fixed = [row for row in broken if zoo.is_fixed(row)]
    if not fixed:
        return "not run" if broken else NOTHING
    found = sum(map(zoo.breaks_found, fixed))
    gone = found - sum(map(zoo.breaks_left, fixed))
    models = f"{len(fixed)} model{'s' if len(fixed) > 1 else ''}"
    missed = len(broken) - len(fixed)
    return f"{gone} of {found} in {models}{f', not run on {missed}' if missed else ''}"


def place(finding: Row) -> str:
    """File and line; generated code has another name in each process."""
    file = finding["file"]
    if not file:
        return NOTHING
    if "/" not in file and file.count(".") > 1:
        return f"code that {file.partition('.')[0]} generates"
    return f"`{Path(file).name}:{finding['line']}`"


def zoo_models() -> str:
    found = result("zoo")
    rows = named(found["rows"])
    titles = "command | one graph | breaks | recompiles over sizes | `fix` removes"
    return "\n\n".join(
        f"### {library}\n\n"
        + plain(
            f"{titles} | seconds",
            [_zoo_model(row) for row in rows if row["library"] == library],
        )
        for library in dict.fromkeys(row["library"] for row in rows)
    )


def _zoo_model(row: Row) -> tuple[str, ...]:
    first = f"`{row['check']['command']}`"
    each = [row[what]["seconds"] for what in ("check", "fix") if row[what]]
    seconds = " + ".join(f"{one:.0f}" for one in each)
    if error := row["check"]["error"]:
        why = flat(f"not checked: {error}", LONGEST)
        return first, why, NOTHING, NOTHING, NOTHING, seconds
    whole = "yes" if zoo.is_whole(row) else "no"
    breaks = ", ".join(_breaks(row)) or "none"
    return first, whole, breaks, recompiles(row), zoo_removed(row), seconds


def _breaks(row: Row) -> Iterator[str]:
    """A function that the library keeps out of graphs is no defect."""
    every = zoo.findings(row, *zoo.BREAKS)
    for each in every[:PLACES]:
        purpose = " (on purpose)" if each["status"] == "intentional" else ""
        yield f"{each['code']} at {place(each)}{purpose}"
    if len(every) > PLACES:
        yield f"{len(every) - PLACES} more"


def recompiles(row: Row) -> str:
    count = row["check"]["counts"]["recompiles"]
    if not count:
        return "none"
    kinds = sorted({finding["code"] for finding in zoo.again(row)})
    return f"{count} ({', '.join(kinds)})" if kinds else f"{count}, then it settles"


def zoo_removed(row: Row) -> str:
    """Breaks and recompiles before and after the proved fixes."""
    fix = row["fix"]
    if fix is None:
        return "not run" if zoo.is_to_fix(row) else NOTHING
    if fix["error"]:
        return f"not run: {flat(fix['error'])[:80]}"
    again = fix["recompiles"]
    counts = {
        "breaks": (zoo.breaks_found(row), zoo.breaks_left(row)),
        "recompiles": (again["before"] + again["uncovered"], again["after"]),
    }
    changes = [
        f"{before - after} of {before} {what}"
        for what, (before, after) in counts.items()
        if before
    ]
    return ", ".join(changes) or "nothing"


# -- `make prove` ----------------------------------------------------------------------

PROOF_STEP: Columns = {
    "step": "{name}",
    "claim": "{claim}",
    "result": lambda row: "passed" if row["passed"] else "**failed**",
    "seconds": "{seconds}",
}
PROOF_FOLDER: Columns = {
    "folder": "`{name}`",
    "passed": "{passed}",
    "failed": "{failed}",
    "skipped": "{skipped}",
    "seconds": "{seconds}",
}


def proofs() -> list[Row]:
    """What `make prove` and `make prove-gpu` recorded."""
    return [each for each in map(result, ("prove", "prove-gpu")) if "commit" in each]


def proved() -> str:
    return render("proved", results=proofs())


def proof_steps() -> str:
    tables = [
        {
            "device": device(each),
            "steps": table(PROOF_STEP, named(each["steps"])),
            "folders": table(PROOF_FOLDER, named(each["folders"])),
        }
        for each in proofs()
    ]
    return render("proof_steps", summary=proved(), tables=tables)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"proved": proved},
    "docs/architecture.md": {"check-cost": check_cost},
    "docs/load.md": {"warm-starts": warm_starts},
    "docs/reference/graph-coverage.md": {
        "graph-coverage-summary": coverage,
        "graph-coverage-reasons": reasons,
        "graph-coverage-steps": steps,
    },
    "docs/reference/precision.md": {
        "advice sets": advice_sets,
        "advice codes": advice_codes,
        "advice failures": advice_failures,
        "precision overview": precision,
        "compile users": users,
        "precision summary": lambda: reading("transformers"),
        "other packages": lambda: reading("others"),
    },
    "docs/reference/reliability.md": {
        "proved": proof_steps,
        "faults": lambda: faults("cpu"),
        "GPU faults": lambda: faults("cuda"),
        "soak": lambda: soak("cpu"),
        "GPU soak": lambda: soak("cuda"),
        "files": files,
        "state": lambda: table(STATE, named(result("fuzz_state")["rows"])),
        "state limits": state_limits,
        "calls": calls,
    },
    "docs/reference/results.md": {
        "graph speed": graph_speed,
        "graph memory": graph_memory,
        "decode": decode,
        "stale answers": lambda: table(STALE, named(result("replays-cuda")["rows"])),
        "harness": loop,
        "replays": replays,
        "known costs": known_costs,
    },
    "docs/reference/zoo.md": {
        "zoo-totals": zoo_totals,
        "zoo-models": zoo_models,
    },
}
