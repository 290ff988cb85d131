"""Takes the events of a run, returns its findings.

A rule is one class, listed once in `_LISTED`, or with all others of its module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from torchproof.checking.rules import (
    advisories,
    answers,
    call_breaks,
    compile_cost,
    compile_use,
    cudagraphs,
    errors,
    host_syncs,
    keys,
    lifetimes,
    load,
    no_ops,
    python_breaks,
    ranks,
    recompile_inputs,
    recompile_state,
    recompiles,
    settings,
    shapes,
    speed,
    tensor_breaks,
    torchscript,
    value_breaks,
)
from torchproof.checking.rules.breaks import by_cost as by_cost
from torchproof.checking.rules.breaks import with_costs as with_costs
from torchproof.checking.rules.retired import RETIRED as RETIRED
from torchproof.checking.rules.rule import AnyRule, EventGroup, Facts, rules_in
from torchproof.observe import Gap
from torchproof.records import (
    SEVERITIES,
    Event,
    Finding,
    LoadTest,
    Observation,
    Run,
    UserError,
)

# In a family the first rule that matches makes the finding: specific rules come first.
# A module is listed whole if its rules are in this order in the file.
_LISTED: tuple[type[AnyRule], ...] = (
    call_breaks.DisabledCall,
    call_breaks.ExplicitBreak,
    tensor_breaks.RecurrentModule,
    call_breaks.DeepCopy,
    tensor_breaks.AutogradCall,
    value_breaks.TensorBranch,
    value_breaks.TensorToPython,
    value_breaks.DataDependentShape,
    python_breaks.SymbolicArgument,
    tensor_breaks.OperatorWithoutFake,
    call_breaks.OutputCall,
    call_breaks.OutsideWorld,
    python_breaks.GeneratorUse,
    python_breaks.ContextManager,
    python_breaks.ExceptionFlow,
    call_breaks.UntraceableCall,
    tensor_breaks.TensorInternals,
    python_breaks.UnsupportedPython,
    python_breaks.OtherBreak,
    recompiles.RecompileLimit,
    recompile_inputs.SizeChange,
    recompile_inputs.SizeOne,
    recompile_inputs.EqualSizes,
    recompile_inputs.LayoutChange,
    recompile_inputs.DtypeChange,
    recompile_inputs.DeviceChange,
    recompile_inputs.RankChange,
    recompile_inputs.RequiresGradChange,
    recompile_inputs.Aliasing,
    recompile_state.ScalarArgument,
    recompile_state.TypeChange,
    recompile_state.ContainerShape,
    recompile_state.AttributeChange,
    recompile_state.GlobalValue,
    recompile_state.NewObject,
    recompile_state.GlobalState,
    recompile_state.TrainingFlag,
    recompile_state.LearningRate,
    recompile_inputs.ShapeCondition,
    recompiles.OtherGuard,
    shapes.MarkedDimension,
    shapes.UnbackedBranch,
    errors.MissingFakeKernel,
    errors.FailsOnFakeTensors,
    errors.NoCompiler,
    errors.BackendError,
    errors.BreakUnderFullgraph,
    errors.OtherError,
    shapes.QuietSpecialisation,
    answers.UndeclaredMutation,
    answers.OtherForm,
    answers.CompilingBranch,
    answers.OtherRandomNumbers,
    answers.GeneratedCode,
    answers.EarlierLayer,
    answers.WrongOnce,
    answers.RaisesAtRunTime,
    answers.FrozenEnvironment,
    answers.LateHook,
    answers.NumpySeed,
    answers.ConstantResult,
    answers.LeftOutGuards,
    answers.OtherStaleState,
    lifetimes.BackwardTooLate,
    lifetimes.OutputRead,
    lifetimes.GradientKept,
    lifetimes.OutputHeld,
    *rules_in(no_ops),
    *rules_in(speed),
    *rules_in(compile_cost),
    *rules_in(cudagraphs),
    *rules_in(host_syncs),
    *rules_in(compile_use),
    *rules_in(settings),
    *rules_in(torchscript),
    *rules_in(load),
    *rules_in(ranks),
    *advisories.ADVISORIES,
)
_IN_ORDER = tuple(rule() for rule in _LISTED)
RULES = tuple(sorted(_IN_ORDER, key=lambda rule: rule.code))
_CODES = [rule.code for rule in RULES]


class Matched(NamedTuple):
    """A finding, the rule that made it, and the events it was made from."""

    finding: Finding
    rule: AnyRule
    group: EventGroup[Event]


def check(observation: Observation) -> list[Finding]:
    """All findings of a run, worst first."""
    return [each.finding for each in matched(observation)]


def check_load(test: LoadTest) -> list[Finding]:
    """All findings of a load test, worst first."""
    return check(load.observation_of(test))


def matched(observation: Observation, gaps: Iterable[Gap] = ()) -> list[Matched]:
    """All findings of a run, worst first, each with its rule and its events.

    `gaps` are the measured times between the graphs of a call: what breaks cost.
    """
    found = _distinct(list(_matches(Facts(observation, _IN_ORDER))))
    found.sort(key=lambda each: _rank(each.finding))
    priced = with_costs([each.finding for each in found], gaps)
    pairs = zip(found, priced, strict=True)
    found = [each._replace(finding=finding) for each, finding in pairs]
    return sorted(found, key=lambda each: by_cost(each.finding))


def _distinct(found: list[Matched]) -> list[Matched]:
    """The findings with different identities: the last resort is their order."""
    every = [each.finding for each in found]
    places = [(f.identity, (f.line or 0, f.column or 0)) for f in every]
    return [
        m._replace(finding=replace(m.finding, key=f"{m.finding.key} ~{number}"))
        if number > 1
        else m
        for m, number in zip(found, keys.numbered(places), strict=True)
    ]


def _matches(facts: Facts) -> Iterator[Matched]:
    families: dict[object, list[AnyRule]] = {}
    for rule in facts.rules:
        families.setdefault(rule.family(), []).append(rule)
    for family in families.values():
        for group in family[0].groups(facts):
            for rule in family:
                if rule.matches(group):
                    yield Matched(rule.finding(group), rule, group)
                    break


def _rank(finding: Finding) -> tuple[object, ...]:
    steps = finding.steps if finding.steps is not None else -1
    return (
        finding.status != "open",
        SEVERITIES.index(finding.severity),
        -steps,
        finding.file or "~",
        finding.line or 0,
    )


def by_code(code: str) -> AnyRule:
    for rule in RULES:
        if rule.code == code.upper():
            return rule
    raise UserError(f"no rule {code!r}: `torchproof rule` lists all rules")


def parts_of(code: str) -> tuple[str, ...]:
    """The parts of a check that show a rule; none for a retired code."""
    known = (rule.parts for rule in RULES if rule.code == code)
    return next(known, ())


def with_texts(run: Run) -> Run:
    """The run with the rules of its findings; those of an earlier version stay."""
    remaining = run.fixing.remaining if run.fixing else ()
    codes = {finding.code for finding in (*run.findings, *remaining)}
    earlier = {code: text for code, text in run.rules.items() if code in codes}
    own = {rule.code: rule.text() for rule in RULES if rule.code in codes}
    return replace(run, rules={**earlier, **own})


def select(
    findings: list[Finding], chosen: list[str], ignored: list[str]
) -> list[Finding]:
    """Findings whose code starts with a chosen prefix and with no ignored one."""
    for prefix in [*chosen, *ignored]:
        if not (_with_prefix(prefix, _CODES) or _with_prefix(prefix, RETIRED)):
            raise UserError(
                f"no rule starts with {prefix!r}: `torchproof rule` lists all rules"
            )
    if chosen and not any(_with_prefix(prefix, _CODES) for prefix in chosen):
        gone = _with_prefix(chosen[0], RETIRED)[0]
        raise UserError(f"rule {gone} was retired: {RETIRED[gone]}")
    return [
        finding
        for finding in findings
        if (not chosen or finding.code.startswith(tuple(c.upper() for c in chosen)))
        and not finding.code.startswith(tuple(c.upper() for c in ignored) or ("-",))
    ]


def _with_prefix(prefix: str, codes: Iterable[str]) -> list[str]:
    return [code for code in codes if code.startswith(prefix.upper())]
