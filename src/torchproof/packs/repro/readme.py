"""The README of a repro pack: PyTorch's form for reports, filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from torchproof.packs.repro import versions
from torchproof.packs.repro.candidate import Candidate, Settings
from torchproof.packs.repro.failure_signature import Symptom

if TYPE_CHECKING:
    from torchproof.packs.repro.pack_files import Row, Written

INLINE_LINES = 60  # a longer program is only named
LOG_LINES = 40
_PYTORCH = "https://github.com/pytorch/pytorch/issues"
_FORM = f"{_PYTORCH}/new?template=pt2-bug-report.yml"
_BREAKS = "https://meta-pytorch.github.io/compile-graph-break-site/gb"
_BUG = "\U0001f41b"  # the form's heading has it
_EXPECTED = {
    "graph_break": "The function is compiled as one graph.",
    "skipped_frame": "The function is compiled.",
    "no_op": "The function is compiled, and the compiled code runs.",
    "compile_error": "It compiles and runs, as it does in eager.",
    "recompile": "The code compiled first serves these calls too.",
    "recompile_limit": "The calls are served within the limit of recompiles.",
    "specialization": "The size stays dynamic.",
    "cudagraph_skip": "CUDA graphs are recorded and replayed.",
    "cudagraph_lifetime": "The output of a call keeps its values.",
    "cudagraph_rerecord": "The graph recorded first is replayed.",
    "host_sync": "The host does not wait for the device.",
    "numerics": "Compiled and eager answers agree within rounding.",
    "stale_state": "Compiled code sees the change that eager sees.",
    "slowdown": "Compiled code is at least as fast as eager.",
    "compile_time": "Compilation ends in a time that fits the program.",
    "memory": "Compiled code needs no more memory than eager.",
    "hang": "Compilation ends.",
}
_HIDDEN = {
    "user": "user names",
    "home": "home folders",
    "project": "project folders",
    "tmp": "temporary folders",
    "host": "host names",
    "secret": "secrets",
    "email": "e-mail addresses",
    "address": "addresses of machines",
}


def report(written: Written, rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    """The three fields of the form first, then what a reader of the pack needs."""
    parts = (
        f"# {written.symptom.headline}",
        f"The next three sections fill in the fields of PyTorch's form: {_FORM}",
        f"### {_BUG} Describe the bug",
        *_described(written),
        "### Error logs",
        _fenced(_end(written.verified.output or written.verified.text)),
        "### Versions",
        _fenced(versions.text(written.facts)),
        "---",
        "## How to run it",
        _running(written),
        "## What may be known already",
        "\n".join(_known(written.symptom)),
        "## What was verified",
        _verified(written),
        "## What is in the pack",
        "\n".join(_rows(rows)),
        _left_out(written, counts),
    )
    return "\n\n".join(parts) + "\n"


def pages(symptom: Symptom) -> list[tuple[str, str]]:
    """Torch's own ids, each with the page that explains it."""
    return [(name, f"{_BREAKS}/{name.lower()}.html") for name in symptom.ids]


def query(search: str) -> str:
    """The address that lists the reports with these words."""
    return f"{_PYTORCH}?q={quote_plus(f'is:issue {search}')}"


def unit(candidate: Candidate) -> str:
    return "graph nodes" if candidate.form == "graph" else "statements"


def _described(written: Written) -> Iterator[str]:
    yield written.symptom.headline
    expected = _EXPECTED.get(written.symptom.kind)
    if expected:
        yield f"Expected: {expected}"
    yield f"Observed: {written.verified.text.removeprefix('FAILS AS STATED: ')}"
    source = written.candidate.source.strip("\n")
    lines = source.count("\n") + 1
    if lines > INLINE_LINES:
        yield f"The program has {lines} lines; it is `make()` in repro.py, attached."
        return
    yield _fenced(f"{source}\n\n\n{_calling(written.settings)}", "python")
    yield "repro.py, attached, is this program and the check of its failure."


def _calling(settings: Settings) -> str:
    """How the program is compiled and called, as a reader would write it."""
    arguments = "".join(f", {k}={v!r}" for k, v in settings.compile.items())
    compiled = "fn" if settings.as_written else f"torch.compile(fn{arguments})"
    call = "compiled(**call) if isinstance(call, dict) else compiled(*call)"
    lines = ["fn, calls = make()", f"compiled = {compiled}", "for call in calls:"]
    if settings.train:
        lines += [f"    out = {call}", "    # the loss of `out`, and its backward()"]
    else:
        lines.append(f"    {call}")
    return "\n".join(lines)


def _running(written: Written) -> str:
    command = _fenced("python repro.py", "sh")
    device = "" if written.settings.device == "cpu" else ", and a GPU"
    return (
        f"{command}\n\nIt needs torch{device} and nothing else. Exit 1: FAILS AS"
        " STATED. Exit 0: DOES NOT FAIL. Exit 3: FAILS IN ANOTHER WAY. The pack was"
        " made with:"
        f"\n\n{_fenced(written.command, 'sh')}"
    )


def _known(symptom: Symptom) -> Iterator[str]:
    for name, address in pages(symptom):
        yield f"- {name}, explained by torch: {address}"
    if symptom.search:
        yield f"- Words to search for: `{symptom.search}`"
        yield f"- Reports with these words: {query(symptom.search)}"
    else:
        yield f"- No words to search for are known; all reports: {_PYTORCH}"


def _verified(written: Written) -> str:
    candidate, first, last = written.candidate, written.first, written.verified
    text = (
        "Before this pack was written, repro.py was run in an empty folder, in a"
        " process of its own, with torch and without torchproof. It ended after"
        f" {last.seconds:.1f} s with: {last.text}"
    )
    if candidate.size < first.size:
        text += (
            f"\n\nIt was made smaller, from {first.size} to {candidate.size} {unit(candidate)};"
            " each step kept the failure."
        )
    return text


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    yield "| file | bytes | what it holds |"
    yield "|---|---:|---|"
    for row in rows:
        yield f"| {row.path} | {row.size} | {row.about.replace('|', '/')} |"
    yield "| README.md | | this report |"
    yield "| manifest.json | | versions, the failure, and the sha256 of every file |"


def _left_out(written: Written, counts: Mapping[str, int]) -> str:
    told = [
        f"{_HIDDEN.get(kind, kind)} ({times} times)"
        for kind, times in sorted(counts.items())
        if times
    ]
    hidden = ", ".join(told) or "nothing"
    about = written.candidate.about.rstrip(".")
    return (
        f"Of the program that failed it holds: {about}. What is not listed here was"
        f" left out. Replaced by words in angle brackets: {hidden}."
    )


def _end(text: str) -> str:
    lines = text.rstrip("\n").splitlines()
    cut = len(lines) - LOG_LINES
    first = [f"... {cut} lines before"] if cut > 0 else []
    return "\n".join([*first, *lines[-LOG_LINES:]])


def _fenced(text: str, language: str = "") -> str:
    """A block that no text inside can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    body = text.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"
