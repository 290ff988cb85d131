"""Applies what `check` advises to programs, and looks at what comes of it.

    python -m benchmarks.advice [PROGRAM ...] [--quick] [--jobs N]

A row is a program of benchmarks/advice_programs, which nobody wrote for a rule: torch's
own examples of what it cannot trace, ordinary programs, and scripts around models of
transformers. `check --effort quick` runs it. The remedy of each finding above `low` is
applied to a copy as it is written, all of one finding at a time, and the copy is
checked again: the finding has to be gone, the outputs the same, and nothing new. What
was hidden behind the finding, in code that Dynamo had not traced, is counted apart.
"""

from __future__ import annotations

import atexit
import functools
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.advice_trial import Server, Trials
from benchmarks.advice_verdict import Verdict
from benchmarks.survey import Options, Row, Survey, portable
from torchproof.records import UserError

PROGRAMS = Path(__file__).parent / "advice_programs"
WORK = 0.9  # of the remedies that can be applied, at least
LIMIT_S = 120.0  # of one run of a program
MODULES = dict.fromkeys(("library", "models"), ("transformers.modeling_utils",))
_CELL = re.compile(r"^# %% (\w+)\n", re.MULTILINE)
TRIED = [v for v in Verdict if v not in (Verdict.NONE, Verdict.UPGRADE)]


@dataclass(frozen=True)
class Program:
    name: str
    group: str  # the name of its file
    text: str


@functools.cache
def programs() -> Mapping[str, Program]:
    """The cells of the files, by name."""
    known: dict[str, Program] = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        _, *cells = _CELL.split(path.read_text("utf-8"))
        for name, text in zip(cells[::2], cells[1::2], strict=True):
            assert name not in known, name
            known[name] = Program(name, path.stem, text.rstrip() + "\n")
    return known


_starting = threading.Lock()


def server(*modules: str) -> Server:
    """A server that has imported these modules; it ends with this process."""
    with _starting:
        return _started(modules)


@functools.cache
def _started(modules: tuple[str, ...]) -> Server:
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    started = Server(modules, Path(folder.name), LIMIT_S)
    atexit.register(folder.cleanup)
    atexit.register(started.close)
    return started


def measure(name: str, options: Options) -> Row:
    program = programs()[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            row = tried(program, Path(folder))
        except UserError as error:
            return {"error": portable(str(error))}
    return {"group": program.group, **row}


def tried(program: Program, folder: Path) -> Row:
    """What `check` says of a program, and what its advice did."""
    modules = MODULES.get(program.group, ())
    # A library is not patched once it is imported.
    trials = Trials(
        program.name, program.text, folder, server(*modules), patched=server
    )
    run = trials.before.run
    if run.error:
        return {"error": portable(run.error)}
    return {
        "counts": {name: n for name, n in run.counts.items() if n is not None},
        "findings": [trials.row(finding) for finding in trials.before.loud],
    }


# -- the result ------------------------------------------------------------------------


def findings(rows: Mapping[str, Row]) -> Iterator[tuple[str, Row]]:
    for name, row in rows.items():
        for finding in row.get("findings", ()):
            yield name, finding


def counted(some: Iterable[Row]) -> Counter[Verdict]:
    return Counter(Verdict(finding["verdict"]) for finding in some)


def by_code(rows: Mapping[str, Row]) -> dict[str, Counter[Verdict]]:
    codes: dict[str, list[Row]] = {}
    for _, finding in findings(rows):
        codes.setdefault(finding["code"], []).append(finding)
    return {code: counted(some) for code, some in sorted(codes.items())}


def by_group(rows: Mapping[str, Row]) -> dict[str, Counter[Verdict]]:
    groups: dict[str, list[Row]] = {}
    for name, finding in findings(rows):
        groups.setdefault(rows[name]["group"], []).append(finding)
    return {group: counted(some) for group, some in sorted(groups.items())}


def tried_in(counts: Counter[Verdict]) -> int:
    return sum(counts[each] for each in TRIED)


def failures(rows: dict[str, Row]) -> Iterator[str]:
    for name, finding in findings(rows):
        if finding["verdict"] in (Verdict.WRONG, Verdict.FAILS):
            place = f"{finding['code']} at line {finding['line']}"
            yield f"{name}: {place}: {finding['verdict']}: {finding['why']}"
    counts = counted(finding for _, finding in findings(rows))
    if counts[Verdict.WORKS] < WORK * tried_in(counts):
        yield f"{counts[Verdict.WORKS]} of {tried_in(counts)} remedies work"


def summary(rows: dict[str, Row]) -> str:
    return f"{table(by_group(rows))}\n\n{table(by_code(rows))}"


def table(groups: Mapping[str, Counter[Verdict]]) -> str:
    lines = [" | ".join(["", "all", *Verdict])]
    total: Counter[Verdict] = Counter()
    for name, counts in groups.items():
        total += counts
        lines.append(_line(name, counts))
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, counts: Counter[Verdict]) -> str:
    return " | ".join(map(str, [name, counts.total(), *(counts[v] for v in Verdict)]))


SURVEY = Survey(
    "advice",
    lambda options: list(programs()),
    measure,
    failures,
    quick=(
        "action_chosen_in_python",
        "batch_of_one_for_serving",
        "beam_search_step",
        "boolean_mask_rows",
        "branch_on_sum",
        "counter_attribute_with_warmup",
        "gpt_block",
        "loss_item_every_n_steps",
        "masked_select_loss",
        "numpy_percentile",
        "prints_shape",
        "sequences_of_any_length",
        "temperature_as_float",
        "tolist_lengths",
    ),
    limit_s=600.0,
    jobs=2,
    packages=("transformers",),
    is_isolated=False,
    summary=summary,
)


if __name__ == "__main__":
    sys.exit(SURVEY.main())
