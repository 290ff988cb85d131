"""Takes the events of a run, returns its findings.

A rule is listed once, in the tuple of its family (`BREAKS`, `ERRORS` and so on; some
families keep theirs in their own module). `RULES` joins the tuples, sorted by code.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.checking.rules import (
    answers,
    breaks,
    call_breaks,
    compile_cost,
    cudagraphs,
    errors,
    lifetimes,
    no_ops,
    nothing_compiled,
    python_breaks,
    recompiles,
    shapes,
    speed,
    step_cost,
    tensor_breaks,
)
from torchproof.checking.rules.answers import WRONG
from torchproof.checking.rules.breaks import with_costs as with_costs
from torchproof.checking.rules.configuration import CONFIGURATION
from torchproof.checking.rules.cudagraphs import SKIPS
from torchproof.checking.rules.host_syncs import SYNCS
from torchproof.checking.rules.lifetimes import LIFETIMES
from torchproof.checking.rules.recompile_limit import RECOMPILES, RecompileLimit
from torchproof.checking.rules.rerecords import CAPTURES
from torchproof.checking.rules.rule import EventGroup, Facts, Rule
from torchproof.checking.rules.stale import STALE
from torchproof.checking.rules.torchscript import TORCHSCRIPT
from torchproof.records import SEVERITIES, Finding, Observation, UserError

# The first rule that matches reports a break, so specific rules come first.
BREAKS: tuple[breaks.GraphBreak, ...] = (
    call_breaks.DisabledCall(),
    call_breaks.ExplicitBreak(),
    tensor_breaks.RecurrentModule(),
    call_breaks.DeepCopy(),
    tensor_breaks.AutogradCall(),
    tensor_breaks.TensorBranch(),
    tensor_breaks.TensorToPython(),
    tensor_breaks.DataDependentShape(),
    python_breaks.SymbolicArgument(),
    tensor_breaks.OperatorWithoutFake(),
    call_breaks.OutputCall(),
    call_breaks.OutsideWorld(),
    python_breaks.GeneratorUse(),
    python_breaks.ContextManager(),
    python_breaks.ExceptionFlow(),
    call_breaks.UntraceableCall(),
    tensor_breaks.TensorInternals(),
    python_breaks.UnsupportedPython(),
    python_breaks.OtherBreak(),
)
errors.BreakUnderFullgraph.breaks = BREAKS
ERRORS: tuple[errors.CompileError, ...] = (
    shapes.MarkedDimension(),
    shapes.UnbackedBranch(),
    errors.MissingFakeKernel(),
    errors.FailsOnFakeTensors(),
    errors.BackendError(),
    errors.BreakUnderFullgraph(),
    errors.OtherError(),
)
NO_OPS: tuple[no_ops.NoOp, ...] = (
    no_ops.NeverCalled(),
    no_ops.OtherMethod(),
    no_ops.OriginalCalled(),
    no_ops.SwitchedOff(),
    nothing_compiled.NothingCompiled(),
    nothing_compiled.NoCompileCall(),
)
SPEED: tuple[speed.Speed, ...] = (
    speed.SlowerThanEager(),
    speed.NoGain(),
    compile_cost.UnrolledLoop(),
    compile_cost.LateStart(),
    compile_cost.RepeatedBlocks(),
    step_cost.MoreMemory(),
    step_cost.ShapeSweep(),
    step_cost.GuardCost(),
)
ANSWERS: tuple[Rule, ...] = (*WRONG, *STALE)
MEASURED: tuple[Rule, ...] = (*SPEED, *ANSWERS)
AUDITED: tuple[Rule, ...] = (*LIFETIMES, *SKIPS, *CAPTURES, *SYNCS)
LIMIT = RecompileLimit()
SPECIALISATION = shapes.QuietSpecialisation()
SEEN: tuple[Rule, ...] = (*BREAKS, *RECOMPILES, LIMIT, *ERRORS, SPECIALISATION, *NO_OPS)
# Only source analysis reports these: no event of a run matches them.
READ: tuple[Rule, ...] = (*CONFIGURATION, *TORCHSCRIPT)
RULES: tuple[Rule, ...] = tuple(
    sorted((*SEEN, *MEASURED, *AUDITED, *READ), key=lambda rule: rule.code)
)


def check(observation: Observation) -> list[Finding]:
    """All findings of a run, worst first."""
    facts = Facts(observation)
    findings = [rule.finding(group) for rule, group in _matches(facts)]
    return sorted(findings, key=_rank)


def _matches(facts: Facts) -> Iterator[tuple[Rule, EventGroup]]:
    for group in breaks.event_groups(facts):
        yield _first(BREAKS, group), group
    for group in recompiles.limit_groups(facts):
        yield LIMIT, group
    for group in recompiles.event_groups(facts):
        yield _first(RECOMPILES, group), group
    for group in errors.event_groups(facts):
        yield _first(ERRORS, group), group
    for group in shapes.specialisations(facts):
        yield SPECIALISATION, group
    for group in answers.event_groups(facts, "wrong_answer"):
        yield _first(WRONG, group), group
    for group in answers.event_groups(facts, "stale_answer"):
        yield _first(STALE, group), group
    for group in lifetimes.event_groups(facts):
        yield _first(LIFETIMES, group), group
    for rule in NO_OPS:
        for group in rule.event_groups(facts):
            yield rule, group
    for measured in SPEED:
        for group in measured.event_groups(facts):
            yield measured, group
    for group in cudagraphs.event_groups(facts):
        yield _first(SKIPS, group), group
    for captured in CAPTURES:
        for group in captured.event_groups(facts):
            yield captured, group
    for waits in SYNCS:
        for group in waits.event_groups(facts):
            yield waits, group


def _first(rules: tuple[Rule, ...], group: EventGroup) -> Rule:
    return next(rule for rule in rules if rule.matches(group))


def _rank(finding: Finding) -> tuple[object, ...]:
    steps = finding.steps if finding.steps is not None else -1
    return (
        finding.status != "open",
        SEVERITIES.index(finding.severity),
        -steps,
        finding.file or "~",
        finding.line or 0,
    )


def by_code(code: str) -> Rule:
    for rule in RULES:
        if rule.code == code.upper():
            return rule
    raise UserError(f"no rule {code!r}: `torchproof rule` lists all rules")


def select(
    findings: list[Finding], chosen: list[str], ignored: list[str]
) -> list[Finding]:
    """Findings whose code starts with a chosen prefix and with no ignored one."""
    for prefix in [*chosen, *ignored]:
        if not any(rule.code.startswith(prefix.upper()) for rule in RULES):
            raise UserError(
                f"no rule starts with {prefix!r}: `torchproof rule` lists all rules"
            )
    return [
        finding
        for finding in findings
        if (not chosen or finding.code.startswith(tuple(c.upper() for c in chosen)))
        and not finding.code.startswith(tuple(c.upper() for c in ignored) or ("-",))
    ]
