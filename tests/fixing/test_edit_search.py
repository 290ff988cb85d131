"""How the search goes on: which proofs it asks for, and what it makes of them.

Each edit is a setting, and a function says what a target with these settings shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from torchproof.fixing import FixOptions
from torchproof.fixing import search as module
from torchproof.fixing.edits import Edit, Misfit
from torchproof.fixing.proof import Located, Proof, worse
from torchproof.fixing.proof_job import Equality
from torchproof.fixing.search import Fixer, Search, gains
from torchproof.records import Finding, Observation, Overlay, Replacement, Setting

SAME = Equality("eager", "same", None, 1, 0, 0)
OTHER = Equality("eager", "wrong", None, 1, 0, 0, problems=("the results differ",))


def finding(key: str, kind: str = "graph_break", severity: Any = "high") -> Finding:
    return Finding("GB101", kind, severity, "", "", "", function="step", key=key)


def edit(name: str, cured: Finding) -> Edit:
    return Edit(name, "safe", cured, settings=(Setting(f"dynamo.{name}", True),))


@dataclass
class Program:
    """What is found with some settings, which change results, and drafts by finding."""

    found: Callable[[set[str]], list[Finding]]
    drafts: dict[str, list[str]]
    wrong: Callable[[set[str]], bool] = lambda names: False
    wrong_code: Callable[[set[str]], bool] = lambda names: False
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[set[str]] = field(default_factory=list)
    expected_s: float = 3.0
    is_parallel: bool = False
    quick_ratio: float = 2.0
    any_backend: bool = False
    can_screen: bool = True
    screened: list[set[str]] = field(default_factory=list)
    traced: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def proofs(self) -> int:
        return len(self.asked)

    @property
    def seconds(self) -> float:
        return 0.0

    def observed_calls(self, overlay: Overlay) -> list[Any]:
        return []

    def prove_each(self, jobs: Iterable[tuple[Overlay, str | None]]) -> list[Proof]:
        return [self.prove(*job) for job in jobs]

    def screen_each(self, overlays: Iterable[Overlay]) -> list[Proof]:
        found = [self.prove(each) for each in overlays]
        self.screened += [self.asked.pop() for _ in found][::-1]
        return found

    def prove(self, overlay: Overlay, backend: str | None = None) -> Proof:
        names = {each.name.removeprefix("dynamo.") for each in overlay.settings}
        self.asked.append(names)
        found = self.found(names)
        breaks = sum(each.kind == "graph_break" for each in found)
        recompiles = len(found) - breaks
        is_wrong = self.wrong(names) or (backend and self.wrong_code(names))
        return Proof(
            overlay,
            Observation((), {}, traced=self.traced),
            tuple(Located(f, (), self.causes.get(f.key, ())) for f in found),
            {
                "graphs": breaks + 1,
                "graph_breaks": breaks,
                "recompiles": recompiles,
                "skipped_frames": 0,
            },
            OTHER if is_wrong else SAME,
        )


def searched(
    program: Program, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Search:
    """The search; `asked` then has what each proof after the first one ran."""

    def proposals(each: Located, proof: Proof, sources: Any) -> Iterator[Edit]:
        known = {setting.name for setting in proof.overlay.settings}
        for name in program.drafts.get(each.finding.key, ()):
            if f"dynamo.{name}" not in known:
                yield edit(name, each.finding)

    for name in ("last_proposals", "easing_proposals"):
        monkeypatch.setattr(module, name, lambda *arguments: iter(()))
    monkeypatch.setattr(module, "proposals", proposals)
    original = program.prove(Overlay())
    program.asked.clear()
    fix_options = FixOptions(effort="quick", **options)
    prover: Any = program
    return Fixer(prover, fix_options, lambda text: None).run(original)


def names_of(search: Search) -> list[str]:
    return [each.title for each in search.accepted]


def cured_by(*keys: str) -> Callable[[set[str]], list[Finding]]:
    """Each of these findings is gone with the setting of its name."""
    return lambda names: [finding(key) for key in keys if key not in names]


def test_edits_are_proved_together(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(cured_by(*"abcd"), {key: [key] for key in "abcd"})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b", "c", "d"]
    assert program.asked == [set("abcd")] * 2  # the second one with another backend


def test_one_proof_is_enough_where_the_values_of_backends_are_comparable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(cured_by(*"ab"), {key: [key] for key in "ab"}, any_backend=True)
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b"] and program.asked == [set("ab")]
    assert search.generated == SAME
    program.wrong_code = lambda names: "a" in names
    assert names_of(searched(program, monkeypatch)) == ["b"]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_where_a_proof_takes_long_the_first_call_tells_which_edits_are_bad(
    is_parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(
        cured_by(*"abcd"),
        {"a": ["a"], "b": ["b"], "c": ["c"], "d": ["useless"]},
        wrong=lambda names: "c" in names,
        is_parallel=is_parallel,
    )
    monkeypatch.setattr(Program, "seconds", property(lambda p: 40.0 + 50 * p.proofs))
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b"]
    assert program.asked == [set("ab")] * 2  # the second one with another backend
    whys = {each.edit.title: each.why for each in search.rejected.values()}
    assert whys == {"c": "the results differ", "useless": "GB101 is still there"}


def _traded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caused: int, took_s: float = 0.0
) -> Search:
    """A search where `b` cures two breaks, and causes others in another function."""
    file = tmp_path / "model.py"
    file.write_text("".join(f"line {number}\n" for number in range(1, 40)))
    place = {"file": str(file), "function": "inner"}

    def found(names: set[str]) -> list[Finding]:
        new = [
            replace(finding(f"new {n}"), line=n, source=f"line {n}", **place)
            for n in range(1, 1 + caused)
        ]
        left = [] if "b" in names else [finding("b"), finding("also")]
        return left + (new if "b" in names else []) + cured_by("a")(names)

    drafts = {"a": ["a"], "b": ["b"], "also": ["b"]}
    program = Program(found, drafts)
    program.traced = {str(file): {"inner": tuple(range(1, 40))}}
    seconds = property(lambda p: took_s * (1 + 2 * len(p.asked)))
    monkeypatch.setattr(Program, "seconds", seconds)
    return searched(program, monkeypatch)


@pytest.mark.parametrize(
    ("took_s", "caused", "expected"),
    [(0.0, 0, "ab"), (0.0, 1, "ab"), (0.0, 2, "a"), (40.0, 1, "ab"), (40.0, 3, "")],
)
def test_edits_that_cause_fewer_breaks_than_they_cure_are_kept_for_want_of_better(
    took_s: float,
    caused: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = _traded(tmp_path, monkeypatch, caused, took_s)
    assert sorted(names_of(search)) == sorted(expected)
    assert worse(search.original, search.current) is None
    assert search.rejected.keys().isdisjoint(each.key for each in search.accepted)


@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_wrong_edit_among_several_is_found(
    is_parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(
        cured_by(*"abcd"),
        {key: [key] for key in "abcd"},
        wrong=lambda names: "c" in names,
        is_parallel=is_parallel,
    )
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b", "d"]
    [rejected] = search.rejected.values()
    assert (rejected.edit.title, rejected.why) == ("c", "the results differ")
    assert program.proofs == (8 if is_parallel else 6)  # one of them ahead


def test_the_next_draft_replaces_one_that_cures_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(cured_by("a", "b"), {"a": ["a"], "b": ["none", "b"]})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b"]
    assert program.asked[:2] == [{"a", "none"}, {"a", "b"}]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_an_edit_that_does_not_fit_the_text_does_not_end_the_search(
    is_parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay_of = module.overlay_of

    def fitting(edits: Iterable[Edit], originals: dict[str, str]) -> Overlay:
        edits = list(edits)
        if any(each.title == "misfit" for each in edits):
            raise Misfit("model.py has no line 'y = 1' to replace")
        return overlay_of(edits, originals)

    monkeypatch.setattr(module, "overlay_of", fitting)
    program = Program(
        cured_by(*"abc"),
        {"a": ["misfit", "a"], "b": ["wrong", "b"], "c": ["misfit"]},
        wrong=lambda names: "wrong" in names,
        is_parallel=is_parallel,
    )
    search = searched(program, monkeypatch)
    assert sorted(names_of(search)) == ["a", "b"]
    whys = {each.edit.title: each.why for each in search.rejected.values()}
    assert whys.keys() == {"misfit", "wrong"} and "no line" in whys["misfit"]


def test_the_edit_nearest_to_what_appears_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.py"
    file.write_text("".join(f"line {number}\n" for number in range(1, 40)))

    def at(key: str, line: int) -> Finding:
        text = f"line {line}"
        return replace(finding(key), file=str(file), line=line, source=text)

    def found(names: set[str]) -> list[Finding]:
        left = [at(key, line) for key, line in lines.items() if key not in names]
        return left + ([at("new", 12)] if "a" in names else [])

    lines = {"a": 10, "b": 20, "c": 30}
    traced = {str(file): {"step": tuple(range(1, 40))}}
    program = Program(found, {key: [key] for key in lines}, traced=traced)
    search = searched(program, monkeypatch)
    assert names_of(search) == ["b", "c"]
    assert program.asked == [{"a", "b", "c"}, {"b", "c"}, {"b", "c"}]


def test_an_edit_that_removes_a_break_and_uncovers_two_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(names: set[str]) -> list[Finding]:
        left = [] if "b" in names else [finding("b")]
        return left + ([finding("c"), finding("d")] if "a" in names else [finding("a")])

    program = Program(found, {"a": ["a"], "b": ["b"]})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["b"]
    assert worse(search.original, search.current) is None
    [rejected] = search.rejected.values()
    assert rejected.edit.title == "a" and "breaks rise" in rejected.why
    worst = program.prove(Overlay(settings=(Setting("dynamo.a", True),)))
    assert not gains(search.original, worst)


def test_what_an_edit_uncovers_is_cured_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(names: set[str]) -> list[Finding]:
        uncovered = [finding(key) for key in "bc" if key not in names]
        return uncovered if "a" in names else [finding("a")]

    program = Program(found, {key: [key] for key in "abc"})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "b", "c"]
    assert search.current.open == []


def test_more_recompiles_are_cured_with_the_break_that_hid_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(names: set[str]) -> list[Finding]:
        again = [] if "dynamic" in names else [finding("again", "recompile", "medium")]
        return again * 2 if "a" in names else [finding("a"), *again]

    program = Program(found, {"a": ["a"], "again": ["dynamic"]})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a", "dynamic"] and search.current.open == []


def test_what_follows_from_another_finding_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(names: set[str]) -> list[Finding]:
        behind = finding("again", "recompile", "medium")
        return [] if "a" in names else [finding("a"), behind]

    program = Program(found, {"a": ["a"], "again": ["dynamic"]})
    program.causes = {"again": (finding("a").identity,)}
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a"] and program.asked == [{"a"}] * 2


def test_edits_for_recompiles_wait_for_the_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(names: set[str]) -> list[Finding]:
        again = finding("again", "recompile", "medium")
        left = [] if {"dynamic", "a"} & names else [again]
        return left if "a" in names else [*left, finding("a")]

    program = Program(found, {"again": ["dynamic"], "a": ["useless", "a"]})
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a"] and search.current.open == []
    assert program.asked == [{"useless"}, {"a"}, {"a"}]


def test_what_is_proved_is_kept_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(cured_by(*"ab"), {"a": ["a"], "b": ["1", "2", "3"]})
    program.expected_s = 40.0
    monkeypatch.setattr(Program, "seconds", property(lambda p: 20.0 + 30 * p.proofs))
    search = searched(program, monkeypatch)
    assert names_of(search) == ["a"] and search.is_late
    suggested = [e.edit.title for e in search.rejected.values() if e.is_suggested]
    assert suggested == ["2"] and program.asked == [{"a", "1"}, {"a"}, {"a"}]


def test_the_edit_whose_line_raised_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (
        replace(
            edit(name, finding(name)), replacements=(Replacement("m.py", 1, (), new),)
        )
        for name, new in (("a", ("x = 1\n",)), ("b", ("  y()\n",)))
    )
    proof = Proof(Overlay(), Observation((), {}), failure="it raised", raised=("y()",))
    assert module._raising(proof, [one, other]) == [other]
    assert module._raising(proof, [other]) == []


def test_generated_code_that_differs_costs_a_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(
        cured_by(*"ab"),
        {key: [key] for key in "ab"},
        wrong_code=lambda names: "a" in names,
    )
    search = searched(program, monkeypatch)
    assert names_of(search) == ["b"]
    assert [each.key for each in map(finding, "a")] == [
        each.key for each in search.current.open
    ]
    program.wrong_code = bool
    assert names_of(searched(program, monkeypatch)) == []


@pytest.mark.parametrize(
    ("options", "is_fixed"),
    [({}, False), ({"select": ("GB",)}, True)],
)
def test_what_settles_is_left_unless_it_is_asked_for(
    options: dict[str, Any], is_fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = finding("a", severity="low")
    program = Program(lambda names: [] if "a" in names else [low], {"a": ["a"]})
    search = searched(program, monkeypatch, **options)
    assert bool(search.accepted) is is_fixed
    assert program.proofs == (2 if is_fixed else 0)
