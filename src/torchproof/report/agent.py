"""Renders runs and comparisons for a coding agent: few tokens, one fact per line.

Takes a `Run` or a `Comparison` whose texts are printable, returns text. Each line
begins with a label. Findings that one cause explains are listed below it, since one
edit removes them; each cause has the command that exits with code 0 once it is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from torchproof.measure import Comparison, Metric
from torchproof.records import CauseTree, Finding, Fix, Run, cells
from torchproof.report import (
    bench_sections,
    cause_words,
    commands,
    comparison_text,
    earlier_run,
    fix_words,
    load_sections,
    numbers,
    rank_sections,
    run_words,
    search_words,
    source_columns,
)
from torchproof.report.text_layout import Table

_BEFORE, _AFTER = 2, 1  # lines of source around the line of a finding
_EVIDENCE = 2  # items per finding; the run has all of them
_LONGEST = 200  # characters of an item of evidence
_EFFECTS = 8  # effects per cause
_COUNTED = re.compile(r"\b(calls?|times?)\b")  # a message that says how often
_LINK = re.compile(r"GB\d+ https://\S+$")
_OUTPUT = ("-q", "--format", "agent")
# Edits that make a finding disappear without curing it, by its kind.
_NO_CURE = {
    "graph_break": "torch.compiler.disable, which keeps that code eager",
    "skipped_frame": "torch.compiler.disable, which keeps that code eager",
    "recompile": "a higher recompile_limit, which only allows more compiles",
    "recompile_limit": "a higher recompile_limit, which only allows more compiles",
    "compile_error": "suppress_errors, which runs the function eagerly",
    "numerics": "a looser tolerance in a test, which keeps the wrong values",
}
_LIBRARY = (
    "edit an installed package: change how your code calls it, or run fix with"
    " --patch DIR"
)


def render(run: Run) -> str:
    renderers = {"bench": _bench, "tune": _tune, "fix": _fix, "loadtest": _load_test}
    renderer = renderers.get(run.verb, _check)
    return "\n".join(chain(_head(run), renderer(run))) + "\n"


def _head(run: Run) -> Iterator[str]:
    facts = run.environment
    names = ("device", "gpu", "torch", "python", "size")
    known = [f"{name} {value}" for name in names if (value := facts.get(name))]
    yield f"torchproof {run.verb}: {run.target}"
    yield f"run: {'; '.join([run.id, *known])}"
    if why := run_words.incomplete(run):
        yield f"incomplete: {why}"


# -- check ----------------------------------------------------------------------------


def _check(run: Run) -> Iterator[str]:
    tree = CauseTree(run.findings)
    yield from (f"since: {sentence}" for sentence in earlier_run.verdict(run))
    yield from _counts(run)
    if time := run_words.call_time(run):
        yield f"time: {time}"
    causes = [f for f in tree.causes if not f.is_suspicion]
    suspected = [f for f in tree.causes if f.is_suspicion]
    yield f"to fix: {_total(causes, suspected, tree)}"
    yield from _findings([*causes, *suspected], tree, run)
    yield from _others(run)
    yield from _parts(run)
    yield from _next(run)
    yield from _do_not([*causes, *suspected])


def _total(
    causes: Sequence[Finding], suspected: Sequence[Finding], tree: CauseTree
) -> str:
    """`2 causes, 3 effects, 1 suspected`."""
    if not causes and not suspected:
        return "nothing found in the parts that ran"
    text = cause_words.totals(tree) or numbers.amount(len(causes), "cause")
    return f"{text}, {len(suspected)} suspected" if suspected else text


def _counts(run: Run) -> Iterator[str]:
    known = [f"{k} {v}" for k, v in run.counts.items() if v is not None]
    if known:
        yield f"counts: {', '.join(known)}"


def _findings(findings: Iterable[Finding], tree: CauseTree, run: Run) -> Iterator[str]:
    """Each cause once; a text that an earlier one has is only referred to."""
    first_uses: dict[str, int] = {}
    for number, finding in enumerate(findings, 1):
        yield ""
        yield _heading(number, finding, tree, run)
        yield f"what: {finding.message}"
        labelled = [("why", f" {finding.cause}"), ("fix", f" {finding.fix}")]
        if code := "\n".join(_source(finding)):
            labelled.append(("source", f"\n{code}"))
        for label, text in labelled:
            first = first_uses.setdefault(text, number)
            yield f"{label}:{text if first == number else f' as in {first}'}"
        yield from _evidence(finding)
        yield from _effects(finding, tree)
        yield f"verify: {commands.verification(finding, run, *_OUTPUT)}"


def _heading(number: int, finding: Finding, tree: CauseTree, run: Run) -> str:
    words = [finding.code, tree.severity(finding), finding.kind, _place(finding)]
    if finding.function:
        words.append(f"in {finding.function}")
    if finding.owner == "library":
        words.append("(library)")
    if finding.is_suspicion:
        words.append("(read in the source, not observed)")
    if on := rank_sections.only_on(finding, run):
        words.append(f"({on})")
    return f"{number}. {' '.join(words)}"


def _place(finding: Finding) -> str:
    """`file:line:column`, with a path that opens; `-` without one."""
    if finding.file is None:
        return numbers.UNKNOWN
    text = cells.place(finding.file, finding.line)
    is_cell = cells.name_in(finding.file)
    return f"{text}:{finding.column}" if finding.column and not is_cell else text


def _evidence(finding: Finding) -> Iterator[str]:
    """What was measured, and what torch said that is not in the texts above.

    A link to a page about the break is for people, and so is the line of source that
    follows a guard.
    """
    if finding.cost_us is not None:
        yield f"cost: {numbers.plain(finding.cost_us)} us/call"
    if finding.count is not None and not _COUNTED.search(finding.message):
        yield f"count: {finding.count}"
    texts = [item.partition(" # ")[0].strip() for item in finding.evidence]
    new = [
        text
        for text in dict.fromkeys(texts)
        if not _LINK.match(text) and text.partition(": ")[2] not in finding.cause
    ]
    yield from (f"evidence: {_cut(text)}" for text in new[:_EVIDENCE])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _source(finding: Finding) -> Iterator[str]:
    """The line of the finding with a few around it, and what it is about."""
    lines = dict(enumerate(finding.context, finding.context_from or 1))
    if finding.context_from is None or finding.line not in lines:
        lines = {finding.line or 0: finding.source} if finding.source else {}
    at = finding.line or 0
    shown = {n: lines[n] for n in range(at - _BEFORE, at + _AFTER + 1) if n in lines}
    code = [text for text in shown.values() if text.strip()]
    if not code:
        return
    shift = min(len(text) - len(text.lstrip()) for text in code)
    for number, text in shown.items():
        mark = ">" if number == at else " "
        yield f"{mark}{number}| {text[shift:]}".rstrip()
    part = _marked(finding)
    if part and part not in finding.message:
        yield f"at: {part}"


def _marked(finding: Finding) -> str:
    """The code that the finding is about; empty if only its line is known."""
    if not finding.column or not finding.source:
        return ""
    start, end = source_columns.marked(finding, finding.source)
    return finding.source[start:end].strip()


def _effects(finding: Finding, tree: CauseTree) -> Iterator[str]:
    effects = tree.effects(finding)
    if not effects:
        return
    sure = cause_words.certainty(effects)
    yield f"effects: {cause_words.explained(effects)} ({sure})"
    for effect in effects[:_EFFECTS]:
        brief = cause_words.briefly(effect, finding, tree)
        yield f"- {effect.code} {run_words.place(effect)} {brief}"
    if len(effects) > _EFFECTS:
        yield f"- {len(effects) - _EFFECTS} more"


def _output(run: Run) -> tuple[str, ...]:
    return () if commands.kind(run.target) == "live" else _OUTPUT


def _others(run: Run) -> Iterator[str]:
    rest = [f for f in run.findings if f.status != "open"]
    if rest:
        yield ""
    for finding in rest:
        yield f"{finding.status}: {finding.code} {_place(finding)} {finding.message}"


def _parts(run: Run) -> Iterator[str]:
    """What this run says nothing about: parts that failed or were skipped."""
    yield ""
    yield from run_words.failed_parts(run)
    reasons: dict[str, list[str]] = {}
    for name, part in run.parts.items():
        if part.status == "skipped":
            reasons.setdefault(part.why, []).append(name)
    for why, names in reasons.items():
        yield f"not checked: {', '.join(names)} ({why})"


def _next(run: Run) -> Iterator[str]:
    """Edits to try, and what shows whether all of it is better than before."""
    if codes := ", ".join(dict.fromkeys(f.code for f in commands.fixable(run))):
        yield f"edits to try ({codes}): {commands.of(run, 'fix', *_output(run))}"
    command = commands.again(run)
    if command is not None and commands.kind(run.target) != "live":
        yield f"check again: {command}"
    yield f"then compare: torchproof compare {run.id} NEW_RUN --format agent"
    yield "explain: torchproof rule CODE"


def _do_not(findings: Iterable[Finding]) -> Iterator[str]:
    findings = list(findings)
    texts = [_NO_CURE[f.kind] for f in findings if f.kind in _NO_CURE]
    if texts:
        yield f"no cure: {'; '.join(dict.fromkeys(texts))}"
    if any(f.owner == "library" for f in findings):
        yield f"do not: {_LIBRARY}"
    if findings:
        yield "do not: hide a finding with --ignore, --skip or --fail-on"


# -- fix ------------------------------------------------------------------------------


def _fix(run: Run) -> Iterator[str]:
    changes = [f"{name} {old} -> {new}" for name, old, new in fix_words.changes(run)]
    if changes:
        yield f"with all fixes: {', '.join(changes)}"
    yield f"result: {fix_words.summary(run)}"
    before: Fix | None = None
    for number, fix in enumerate(fix_words.helpful(run), 1):
        yield from _one_fix(number, fix, before)
        before = fix
    if code := fix_words.code(run):
        yield from ("", "settings, before the model is compiled:", code)
    yield ""
    for each in fix_words.left(run):
        finding = each.finding
        yield f"left: {finding.code} {_place(finding)} {finding.message}"
        yield f"- why: {each.why}"
        yield f"- fix: {finding.fix}"
        yield f"- verify: {commands.verification(finding, run, *_OUTPUT)}"
    for fix in fix_words.rejected(run):
        codes = ", ".join(fix.codes)
        yield f"rejected: {codes} {fix.title}: {fix.why}"
    if note := fix_words.note(run):
        yield f"note: {note}"
    for purpose, command in fix_words.next_steps(run):
        yield f"{purpose.lower()}: {command}"
    yield "do not: write a rejected edit, or --unsafe fixes without asking the user"


def _one_fix(number: int, fix: Fix, before: Fix | None) -> Iterator[str]:
    yield ""
    place = cells.place(fix.file, fix.line) if fix.file else "settings"
    yield f"{number}. {', '.join(fix.codes)} {fix.tier}, {fix.status}: {place}"
    yield f"what: {fix.title}"
    for text in (fix_words.proved(fix, before), fix_words.written(fix)):
        if text:
            yield text
    if fix.diff:
        yield fix.diff.rstrip("\n")


# -- bench, tune, loadtest ------------------------------------------------------------


def _bench(run: Run) -> Iterator[str]:
    decision, row = bench_sections.chosen(run)
    yield f"decision: {decision}"
    if row and row.source:
        yield from ("code:", row.source.rstrip("\n"))
    if rows := bench_sections.timed(run):
        yield from _table(bench_sections.measured(rows))
    for table in bench_sections.variants(run):
        yield from _table(table)
    yield from (f"not ranked: {text}" for text in bench_sections.not_ranked(run))
    for each in rows:
        yield from (f"note: {each.strategy}: {text}" for text in each.notes)
    again = commands.of(run, "bench", "--baseline", run.id, *_output(run))
    if commands.kind(run.target) != "live":
        yield f"verify an edit: {again}"
    yield "do not: report a gain whose interval includes 1, or times of other runs"


def _table(table: Table) -> Iterator[str]:
    """Cells between bars, without alignment."""
    if not table.rows:
        return
    yield f"table: {table.title}".rstrip(": ") if table.title else "table:"
    yield from (" | ".join(row) for row in (table.header, *table.rows))
    yield from (f"note: {text}" for text in table.lines)


def _tune(run: Run) -> Iterator[str]:
    search = search_words.search_of(run)
    yield f"decision: {search_words.decision(search)}"
    if code := search_words.code_lines(search).strip():
        yield from ("code:", code)
    if search.recipe_file:
        yield f"recipe: {search.recipe_file}"
        yield f"use it: {search_words.applied(search)}"
    if rows := search_words.ranked(search):
        yield from _table(Table("", *search_words.full_table(rows, search)))
    for trial in search_words.failed(search):
        yield f"not ranked: {trial.name} {search_words.why_not_ranked(trial)}"


def _load_test(run: Run) -> Iterator[str]:
    test = load_sections.load_test_of(run)
    yield f"asked: {load_sections.question(test)}"
    yield f"answer: {load_sections.answer(test)}"
    for table in (load_sections.latencies(test), load_sections.outcomes(test)):
        yield from _table(table)
    tree = CauseTree(run.findings)
    yield from _findings(tree.causes, tree, run)


# -- compare --------------------------------------------------------------------------


def of_comparison(comparison: Comparison) -> str:
    """The output of `torchproof compare --format agent`."""
    return "\n".join(_comparison(comparison)) + "\n"


def _comparison(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.a, comparison.b
    yield f"torchproof compare: A {a['id']}, B {b['id']}"
    targets = dict.fromkeys((a["target"], b["target"]))
    yield f"target: {' against '.join(targets)}"
    yield f"verdict: {' '.join(comparison_text.summary(comparison))}"
    yield from (f"caution: {t}" for t in comparison_text.warnings(comparison))
    for row in comparison.rows:
        if note := row.broken or row.note:
            yield f"{row.name}: {note}"
        yield from _metrics(f"{row.name} ", row.metrics)
    yield from _metrics("", comparison.counts)
    yield from comparison_text.findings(comparison)
    yield "do not: call B faster where the verdict is `not significant`"


def _metrics(name: str, metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        if metric.a is None and metric.b is None:
            continue
        what, a, b, verdict = comparison_text.cells(metric)
        worse = ", REGRESSION" if metric.regression else ""
        yield f"{name}{what}: {a} -> {b}, {verdict}{worse}"
