"""Writes what the documents take from the code: run it with `make docs`.

docs/rules.md and docs/coverage.md are whole; in the other documents the parts between
`<!-- begin NAME -->` and `<!-- end NAME -->` are replaced. `results` and `reliability`
make the tables of the documents of these names.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import covered  # noqa: E402
import examples  # noqa: E402
import limits  # noqa: E402
import modes  # noqa: E402
import packed  # noqa: E402
import precision  # noqa: E402
import reliability  # noqa: E402
import results  # noqa: E402
from import_table import DESK, MAY_IMPORT, MAY_IMPORT_LATE  # noqa: E402

from torchproof.checking.rules import RULES  # noqa: E402
from torchproof.records.run import CATEGORIES  # noqa: E402
from torchproof.report import render  # noqa: E402
from torchproof.targets.workloads import WORKLOADS  # noqa: E402

COMMAND = ("check", "workload:gpt-original", "--effort", "quick")
BENCH = "gpt2-inference"  # the runs whose text is shown
TUNE = "tuning/gpt2-inference-tuned"
FOLDERS = {
    "tests/": "one file a module; rules/CODE/ holds programs that trigger a rule",
    "docs/": "every verb and rule, recipes, packs, workloads, results, architecture",
    "benchmarks/": "targets and programs behind the results, and the results",
}


def rules_page() -> str:
    """Every rule: a table of all, then the text that `torchproof rule` prints."""
    table = [f"| [{r.code}](#{r.code.lower()}) | {r.summary()} |" for r in RULES]
    sections = [
        f"## {rule.code}\n\n"
        f"*{CATEGORIES[rule.kind]}, `{rule.kind}`.* {rule.summary()}\n"
        + _body(rule.documentation())
        for rule in RULES
    ]
    return "\n".join(
        [
            "# Rules",
            "",
            "<!-- Written by docs/generate.py from the rules' docstrings. -->",
            "",
            "`torchproof rule CODE` prints the same text. Severity follows the",
            "consequence in the run at hand, so it is not a property of the rule.",
            "",
            "| code | what is found |",
            "|---|---|",
            *table,
            "",
            "\n".join(sections).rstrip(),
            "",
        ]
    )


def _body(text: str) -> str:
    """A rule's sections one level down, each code block and heading set apart."""
    lines = text.split("\n")[1:]
    spaced: list[str] = []
    for line in lines:
        spaced.append(f"#{line}" if line.startswith("## ") else line)
        if line.startswith("## "):
            spaced.append("")
    return "\n".join(spaced) + "\n"


def import_table() -> str:
    rows = ["| module | may import | inside a function only | torch |"]
    rows.append("|---|---|---|---|")
    for name, allowed in MAY_IMPORT.items():
        late = sorted(MAY_IMPORT_LATE.get(name, ()))
        cells = [
            ", ".join(f"`{n}`" for n in names) for names in (sorted(allowed), late)
        ]
        torch = "never" if name in DESK else ""
        rows.append(
            " ".join(f"| `{name}` | {cells[0]} | {cells[1]} | {torch} |".split())
        )
    return "\n".join(rows)


def file_tree() -> str:
    """Every module of the package with the first line of its docstring."""
    package = ROOT / "src" / "torchproof"
    rows = [("src/torchproof/", "")]
    for path in sorted(package.rglob("*.py"), key=lambda p: (p.parent, p.name)):
        parts = path.relative_to(package).parts
        if len(parts) > 1 and path.name == "__init__.py":
            rows.append(("  " * (len(parts) - 1) + f"{parts[-2]}/", _summary(path)))
        else:
            rows.append(("  " * len(parts) + path.name, _summary(path)))
    rows += FOLDERS.items()
    width = max(len(name) for name, _ in rows) + 2
    return _fenced("\n".join(f"{name:{width}}{text}".rstrip() for name, text in rows))


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def output(text: str) -> str:
    """The start and the end of a check's output, with the worst finding in between."""
    header, worst, *_, footer = text.rstrip("\n").split("\n\n")
    return _fenced("\n\n".join([header, worst, "...", footer]))


def bench_output(*, details: str | None = None) -> str:
    """What `bench` printed: the bars, and the decision; with the details of an arm."""
    run = results.gpu_run(BENCH)
    text, found = render(run, "text").rstrip("\n"), []
    header, bars, costs, *arms = text.split("\n\nDecision:")[0].split("\n\n")
    if details is not None:
        found = [costs, "...", next(a for a in arms if a.startswith(f"{details}\n"))]
    end = text[text.index("Decision:") :]
    return _fenced("\n\n".join([header, bars, *found, "...", end]))


def tune_output(*, short: bool) -> str:
    """What `tune` printed; in short, without trials that came to no final."""
    text = render(results.gpu_run(TUNE), "text").rstrip("\n")
    if short:
        opening, finals, _ = text.split("\n\n", 2)
        text = "\n\n".join([opening, finals, "...", text[text.index("Decision:") :]])
    return _fenced(text)


def captured() -> str:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "torchproof", *COMMAND, "-q"]
        done = subprocess.run(
            program, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode != 1:
        raise SystemExit(f"{' '.join(program)} ended with exit code {done.returncode}")
    return done.stdout


def overhead_table() -> str:
    """What observing costs, from the measurements kept under benchmarks/results."""
    rows = [
        "| machine | torch | plain run | under `check` | ratio | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for kept in _results("overhead"):
        seconds, ratio = kept["seconds"], kept["ratio"]
        spans = [
            f"{arm['median']:.1f} s ({arm['low']:.1f} to {arm['high']:.1f})"
            for arm in (seconds["plain"], seconds["torchproof"])
        ]
        paired = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        machine = f"{kept['machine']['arch']}, {kept['machine']['cores']} cores"
        rows.append(
            f"| {machine} | {kept['versions']['torch']} | {spans[0]} | {spans[1]} "
            f"| {ratio['of_medians']:.2f} ({paired}) | {kept['rounds']} |"
        )
    return "\n".join(rows)


def sizes_table() -> str:
    """Every cured form with its sizes; the one that a GPU gets by default is bold."""
    rows = ["| workload | what it is | sizes and parameters |", "|---|---|---|"]
    for name, workload in WORKLOADS.items():
        if name.endswith("-original"):
            continue
        sizes = [
            f"{f'**{size}**' if size == workload.gpu_size else size} {count:,}"
            for size, count in workload.sizes.items()
        ]
        rows.append(f"| `{name}` | {workload.summary} | {'; '.join(sizes)} |")
    return "\n".join(rows)


def diagnoses_table() -> str:
    """What `check` counted in each original, and in its cured form."""
    rows = [
        "| workload | machine | graphs | breaks | recompiles | high, medium findings |",
        "|---|---|---|---|---|---|",
    ]
    for kept in _results("diagnoses"):
        for key, cured in kept.items():
            name, _, train = key.partition(" ")
            if name.endswith("-original"):
                continue
            original = kept[" ".join(filter(None, [f"{name}-original", train]))]
            forms = (original, cured)
            counts = [
                " -> ".join(str(form["counts"][what]) for form in forms)
                for what in ("graphs", "graph_breaks", "recompiles")
            ]
            loud = [
                f"{s.get('high', 0)}, {s.get('medium', 0)}"
                for s in (form["severities"] for form in forms)
            ]
            label = f"`{name}`{', training' if train else ''}"
            cells = [label, _machine(cured), *counts, " -> ".join(loud)]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def worth_table() -> str:
    """Originals in eager and compiled beside the cured form compiled."""
    rows = [
        "| workload | machine | original, eager | original, compiled "
        "| cured, compiled | cured against eager |",
        "|---|---|---|---|---|---|",
    ]
    for kept in _results("workloads"):
        found = kept["rows"]
        for row in found.values():
            if row["workload"].endswith("-original"):
                continue
            train = " train" if row["train"] else ""
            eager = found[f"{row['workload']}-original eager{train}"]
            compiled = found[f"{row['workload']}-original compiled{train}"]
            cells = [
                f"`{row['workload']}`{', training' if row['train'] else ''}",
                _machine(row),
                *(_milliseconds(arm) for arm in (eager, compiled, row)),
                _ratio(eager, row),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _ratio(eager: dict[str, Any], cured: dict[str, Any]) -> str:
    """How many times as fast; no number where the middle halves overlap."""
    if "failure" in eager or "failure" in cured:
        return "-"
    if eager["low_ms"] <= cured["high_ms"] and cured["low_ms"] <= eager["high_ms"]:
        return "not significant"
    return f"{eager['median_ms'] / cured['median_ms']:.2f}x"


def _milliseconds(arm: dict[str, Any]) -> str:
    if "failure" in arm:
        return "fails"
    return f"{arm['median_ms']:.1f} ({arm['low_ms']:.1f} to {arm['high_ms']:.1f})"


def _machine(row: dict[str, Any]) -> str:
    """Where a row was measured, and at which size; a failure has neither."""
    if "failure" in row:
        return "-"
    return f"{row['device']}, torch {row['torch']}, {row['size']}"


def _results(name: str) -> Iterator[Any]:
    for path in sorted((ROOT / "benchmarks" / "results").glob(f"{name}-*.json")):
        yield json.loads(path.read_text())


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def filled(text: str, name: str, body: str) -> str:
    """A document with one of its generated parts replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.escape(begin) + r"\n.*?" + re.escape(end)
    assert len(re.findall(pattern, text, re.DOTALL)) == 1, f"{name} is not marked once"
    return re.sub(pattern, lambda _: f"{begin}\n{body}\n{end}", text, flags=re.DOTALL)


def documents(shown: str | None = None) -> dict[Path, str]:
    """Each document as it should be; `shown` is what the command printed, if run."""
    readme, page = ROOT / "README.md", ROOT / "docs" / "architecture.md"
    first = filled(readme.read_text(), "files", file_tree())
    first = filled(first, "bench", bench_output())
    first = filled(first, "tune", tune_output(short=True))
    if shown is not None:
        first = filled(first, "output", output(shown))
    bench, tune = ROOT / "docs" / "bench.md", ROOT / "docs" / "tune.md"
    workloads = ROOT / "docs" / "workloads.md"
    tables = filled(workloads.read_text(), "sizes", sizes_table())
    tables = filled(tables, "diagnoses", diagnoses_table())
    tables = filled(tables, "worth", worth_table())
    return {
        readme: first,
        page: filled(
            filled(page.read_text(), "imports", import_table()),
            "overhead",
            overhead_table(),
        ),
        ROOT / "docs" / "rules.md": rules_page(),
        workloads: tables,
        bench: filled(bench.read_text(), "bench", bench_output(details="full")),
        tune: filled(tune.read_text(), "tune", tune_output(short=False)),
        ROOT / "docs" / "reports.md": _with_tables("reports.md", examples.TABLES),
        ROOT / "docs" / "results.md": _with_tables("results.md", results.TABLES),
        ROOT / "docs" / "reliability.md": _with_tables(
            "reliability.md", reliability.TABLES
        ),
        ROOT / "docs" / "coverage.md": covered.page(),
        ROOT / "docs" / "limitations.md": _with_tables("limitations.md", limits.TABLES),
        ROOT / "docs" / "decide.md": _with_tables("decide.md", modes.TABLES),
        ROOT / "docs" / "packs.md": _with_tables("packs.md", packed.TABLES),
        ROOT / "docs" / "precision.md": _with_tables("precision.md", precision.TABLES),
    }


def _with_tables(name: str, tables: Mapping[str, Callable[[], str]]) -> str:
    text = (ROOT / "docs" / name).read_text()
    for part, make in tables.items():
        text = filled(text, part, make())
    return text


def lasting(text: str) -> str:
    """Without what differs from run to run: a run's date, and the build of torch."""
    return re.sub(r"\d{8}-\d{4}-[\w-]+|torch \d\S+", "-", text)


if __name__ == "__main__":
    for path, text in documents(captured()).items():
        if not path.is_file() or lasting(path.read_text()) != lasting(text):
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
