"""Writes the parts of the documents that come from code and results: `make docs`.

    python scripts/docs/generate.py [DOCUMENT ...]

Without arguments it also runs the commands whose output documents show. With the paths
of documents, it only writes these again, from code and the results that are kept.
docs/reference/rules.md, docs/reference/json.md, docs/llms.txt and
docs/man/torchproof.1 are generated whole. In the other documents the text between
`<!-- begin NAME -->` and `<!-- end NAME -->` is replaced.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import compat_page
import first_seconds_page
import fixes_page
import getting_started
import graph_coverage_page
import json_page
import limitations_page
import llms_page
import load_tests_page
import man_page
import pack_tables
import precision_tables
import published_tables
import reliability_tables
import report_examples
import results_tables
import zoo_page

from torchproof.checking.rules import RULES
from torchproof.records.run import CATEGORIES
from torchproof.report import render
from torchproof.targets.workloads import WORKLOADS

COMMAND = ("check", "workload:gpt-original", "--effort", "quick")


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
            "<!-- Written by scripts/docs/generate.py from the rules' docstrings. -->",
            "",
            "`torchproof rule CODE` prints the same text. Severity follows the",
            "consequence in the run, so it is not a property of the rule.",
            "",
            "| code | pattern |",
            "|---|---|",
            *table,
            "",
            "\n".join(sections).rstrip(),
            "",
        ]
    )


def _body(text: str) -> str:
    """A rule's sections, with bold titles: as headings they would fill the contents."""
    lines = text.split("\n")[1:]
    spaced: list[str] = []
    for line in lines:
        title = line.startswith("## ")
        spaced.append(f"**{line.removeprefix('## ')}**" if title else line)
        if title:
            spaced.append("")
    return "\n".join(spaced) + "\n"


def package_table() -> str:
    """Each package with the first line of its docstring and the file to read first."""
    rows = ["| package | what it does | read first |", "|---|---|---|"]
    for path in sorted((ROOT / "src" / "torchproof").glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = re.findall(r"Start with `([^`]+)`", text)
        name = path.parent.name
        rows.append(f"| `{name}` | {text.splitlines()[0]} | `{first[0]}` |")
    return "\n".join(rows)


def output(text: str) -> str:
    """The start and the end of a check's output, with the worst finding in between."""
    header, *found, footer = text.rstrip("\n").split("\n\n")
    shown = found[: 2 if found[0].startswith("Fix first") else 1]
    shown[-1] = shown[-1].split("\n   also explains")[0]
    return _fenced("\n\n".join([header, *shown, "...", footer]))


def bench_output() -> str:
    """What `bench` printed: the bars, the details of a strategy, and the decision."""
    run = getting_started.saved("bench")
    text = render(run, "text").rstrip("\n")
    header, bars, costs, *arms = text.split("\n\nDecision:")[0].split("\n\n")
    details = next((arm for arm in arms if not arm.startswith("eager\n")), "...")
    end = text[text.index("Decision:") :]
    command = f"$ {results_tables.command_of(run)}"
    shown = [command, header, bars, costs, "...", details, "...", end]
    return _fenced("\n\n".join(shown))


def tune_output() -> str:
    return _fenced(render(getting_started.saved("tune"), "text").rstrip("\n"))


def captured() -> Captured:
    """The output of the commands that `make docs` runs."""
    walked = getting_started.checks()
    steps = {("docs/getting-started.md", name): text for name, text in walked.items()}
    return {("README.md", "output"): output(first_check()), **steps}


def first_check() -> str:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "torchproof", *COMMAND, "-q"]
        done = subprocess.run(
            program, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode != 1:
        raise SystemExit(f"{' '.join(program)} ended with exit code {done.returncode}")
    return done.stdout


def check_cost_table() -> str:
    """What each effort of check takes, next to a bare run of the same calls."""
    rows = [
        "| program | machine | torch | bare run | `quick` | `normal` | `full` |",
        "|---|---|---|---|---|---|---|",
    ]
    for kept in _results("check-cost"):
        machine = f"{kept['machine']['arch']}, {kept['machine']['cores']} cores"
        torch = kept["machine"]["versions"]["torch"]
        for program, row in kept["rows"].items():
            bare = statistics.median(row["seconds"]["bare"])
            ratios = [row["ratios"].get(effort) for effort in kept["limits"]]
            efforts = ["-" if ratio is None else f"{ratio:.1f}x" for ratio in ratios]
            cells = (f"`{program}`", machine, torch, f"{bare:.1f} s", *efforts)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def sizes_table() -> str:
    """Every fixed form with its sizes; the one that a GPU gets by default is bold."""
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


Tables = Mapping[str, Callable[[], str]]
Captured = Mapping[tuple[str, str], str]  # text by document and part


def parts() -> dict[str, Tables]:
    """The generated parts of each document, by the document's path."""
    return {
        "README.md": published_tables.README,
        "docs/architecture.md": {
            "packages": package_table,
            "check-cost": check_cost_table,
        },
        "docs/bench.md": {"bench": bench_output},
        "docs/decide.md": published_tables.DECIDE,
        "docs/getting-started.md": getting_started.TABLES,
        "docs/load.md": {"warm-starts": pack_tables.starts},
        "docs/loadtest.md": {"loadtest": report_examples.load_test},
        "docs/show.md": report_examples.TABLES,
        "docs/tune.md": {"tune": tune_output},
        "docs/reference/compat.md": compat_page.TABLES,
        "docs/reference/fixes.md": fixes_page.TABLES,
        "docs/reference/first-seconds.md": first_seconds_page.TABLES,
        "docs/reference/graph-coverage.md": graph_coverage_page.TABLES,
        "docs/reference/limitations.md": limitations_page.TABLES,
        "docs/reference/load-tests.md": load_tests_page.TABLES,
        "docs/reference/precision.md": precision_tables.TABLES,
        "docs/reference/reliability.md": reliability_tables.TABLES,
        "docs/reference/results.md": {
            **published_tables.RESULTS,
            **results_tables.TABLES,
        },
        "docs/reference/workloads.md": {"sizes": sizes_table},
        "docs/reference/zoo.md": zoo_page.TABLES,
    }


def documents(captured: Captured | None = None) -> dict[Path, str]:
    """Each document with current parts; `captured` are those that need a run."""
    texts = {ROOT / name: _with_tables(name, made) for name, made in parts().items()}
    texts[ROOT / "docs/reference/rules.md"] = rules_page()
    texts[ROOT / "docs/reference/json.md"] = json_page.page()
    texts[ROOT / "docs/man/torchproof.1"] = man_page.page()
    texts[ROOT / "docs/llms.txt"] = llms_page.page()
    for (name, part), body in (captured or {}).items():
        texts[ROOT / name] = filled(texts[ROOT / name], part, body)
    return texts


def _with_tables(name: str, tables: Tables) -> str:
    text = (ROOT / name).read_text()
    for part, make in tables.items():
        text = filled(text, part, make())
    return text


def lasting(text: str) -> str:
    """Without what differs from run to run: a run's date, and the build of torch."""
    return re.sub(r"\d{8}-\d{4}-[\w-]+|torch \d\S+", "-", text)


def chosen(names: list[str]) -> dict[Path, str]:
    """These documents, from results that are kept; without names all, with runs."""
    if not names:
        return documents(captured())
    every = documents()
    return {ROOT / name: every[ROOT / name] for name in names}


if __name__ == "__main__":
    for path, text in chosen(sys.argv[1:]).items():
        if not path.is_file() or lasting(path.read_text()) != lasting(text):
            path.write_text(text)
            print(f"written: {path.relative_to(ROOT)}")
