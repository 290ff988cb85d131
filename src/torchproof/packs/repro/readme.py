"""The README of a repro pack: PyTorch's bug report form, filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote_plus

from torchproof.packs.repro.candidate import (
    Candidate,
    PackFile,
    Settings,
    VerifiedRepro,
)
from torchproof.packs.repro.failure_signature import FailureSignature

INLINE_LINES = 60  # a longer program is only referred to
LOG_LINES = 40
_PYTORCH = "https://github.com/pytorch/pytorch/issues"
_FORM = f"{_PYTORCH}/new?template=pt2-bug-report.yml"
_BREAKS = "https://meta-pytorch.github.io/compile-graph-break-site/gb"
_BUG = "\U0001f41b"  # part of the form's heading
_EXPECTED = {
    "graph_break": "The function is compiled as one graph.",
    "skipped_frame": "The function is compiled.",
    "no_op": "The function is compiled, and the compiled code runs.",
    "compile_error": "It compiles and runs, as it does in eager.",
    "recompile": "The first compiled code serves these calls too.",
    "recompile_limit": "The calls stay within the recompile limit.",
    "specialization": "The size stays dynamic.",
    "cudagraph_skip": "CUDA graphs are recorded and replayed.",
    "cudagraph_lifetime": "The output of a call keeps its values.",
    "cudagraph_rerecord": "The first recorded graph is replayed.",
    "host_sync": "The host does not wait for the device.",
    "numerics": "Compiled and eager outputs agree within rounding.",
    "stale_state": "Compiled code sees the change that eager sees.",
    "slowdown": "Compiled code is at least as fast as eager.",
    "compile_time": "Compilation time is in proportion to the program.",
    "memory": "Compiled code needs no more memory than eager.",
    "hang": "Compilation ends.",
}
_HIDDEN = {
    "user": "user names",
    "home": "home directories",
    "project": "project directories",
    "tmp": "temporary directories",
    "host": "host names",
    "secret": "secrets",
    "email": "e-mail addresses",
    "address": "network addresses",
}


def report(
    verified: VerifiedRepro, files: Mapping[str, PackFile], counts: Mapping[str, int]
) -> str:
    """Returns the three fields of the form, then a description of the pack.

    `files` are the other files; `counts` says how often which secrets were replaced.
    """
    parts = (
        f"# {verified.signature.headline}",
        f"The next three sections are the fields of PyTorch's bug report form: {_FORM}",
        f"### {_BUG} Describe the bug",
        *_description(verified),
        "### Error logs",
        _fenced(_end(verified.outcome.output or verified.outcome.text)),
        "### Versions",
        _fenced(verified.versions),
        "---",
        "## How to run it",
        _how_to_run(verified),
        "## Related reports",
        "\n".join(_related(verified.signature)),
        "## Verification",
        _verification(verified),
        "## Files in this pack",
        "\n".join(_rows(files)),
        _privacy(verified, counts),
    )
    return "\n\n".join(parts) + "\n"


def pages(signature: FailureSignature) -> list[tuple[str, str]]:
    """Returns torch's own ids, each with the page that explains it."""
    return [(name, f"{_BREAKS}/{name.lower()}.html") for name in signature.ids]


def query(search: str) -> str:
    """Returns the address of a search for reports with these words."""
    return f"{_PYTORCH}?q={quote_plus(f'is:issue {search}')}"


def unit(candidate: Candidate) -> str:
    return "graph nodes" if candidate.form == "graph" else "statements"


def _description(verified: VerifiedRepro) -> Iterator[str]:
    yield verified.signature.headline
    expected = _EXPECTED.get(verified.signature.kind)
    if expected:
        yield f"Expected: {expected}"
    yield f"Observed: {verified.outcome.observed}"
    source = verified.candidate.source.strip("\n")
    lines = source.count("\n") + 1
    if lines > INLINE_LINES:
        yield f"The program has {lines} lines: see `make()` in the attached repro.py."
        return
    yield _fenced(f"{source}\n\n\n{_calling(verified.settings)}", "python")
    yield "The attached repro.py contains this program and a check for the failure."


def _calling(settings: Settings) -> str:
    """Returns code that compiles and calls the program, as a reader would write it."""
    arguments = "".join(f", {k}={v!r}" for k, v in settings.compile.items())
    compiled = "fn" if settings.as_written else f"torch.compile(fn{arguments})"
    call = "compiled(**call) if isinstance(call, dict) else compiled(*call)"
    lines = ["fn, calls = make()", f"compiled = {compiled}", "for call in calls:"]
    if settings.train:
        lines += [f"    out = {call}", "    # the loss of `out`, and its backward()"]
    else:
        lines.append(f"    {call}")
    return "\n".join(lines)


def _how_to_run(verified: VerifiedRepro) -> str:
    command = _fenced("python repro.py", "sh")
    device = "" if verified.settings.device == "cpu" else ", and a GPU"
    return (
        f"{command}\n\nIt needs only torch{device}. Exit 1: FAILS AS STATED."
        " Exit 0: DOES NOT FAIL. Exit 3: FAILS IN ANOTHER WAY. This command made the"
        " pack:"
        f"\n\n{_fenced(verified.command, 'sh')}"
    )


def _related(signature: FailureSignature) -> Iterator[str]:
    for name, address in pages(signature):
        yield f"- {name}, explained by PyTorch: {address}"
    if signature.search:
        yield f"- Search terms: `{signature.search}`"
        yield f"- Matching reports: {query(signature.search)}"
    else:
        yield f"- No search terms are known for this failure; all reports: {_PYTORCH}"


def _verification(verified: VerifiedRepro) -> str:
    candidate = verified.candidate
    first = verified.first
    outcome = verified.outcome
    text = (
        "Before writing this pack, torchproof ran repro.py in an empty directory, in a"
        " separate process without torchproof. It ended after"
        f" {outcome.seconds:.1f} s with: {outcome.text}"
    )
    if candidate.size < first.size:
        text += (
            f"\n\nThe program was reduced from {first.size} to {candidate.size}"
            f" {unit(candidate)}; after each step it still failed in the same way."
        )
    return text


def _rows(files: Mapping[str, PackFile]) -> Iterator[str]:
    yield "| file | bytes | content |"
    yield "|---|---:|---|"
    for name in sorted(files, key=lambda name: (name != "repro.py", "/" in name, name)):
        about = files[name].about.replace("|", "/")
        yield f"| {name} | {len(files[name].content)} | {about} |"
    yield "| README.md | | this report |"
    yield "| manifest.json | | versions, the failure, and the sha256 of every file |"


def _privacy(verified: VerifiedRepro, counts: Mapping[str, int]) -> str:
    kinds = [
        f"{_HIDDEN.get(kind, kind)} ({times} times)"
        for kind, times in sorted(counts.items())
        if times
    ]
    hidden = ", ".join(kinds) or "nothing"
    about = verified.candidate.about.rstrip(".")
    return (
        f"Of the failing program, the pack contains only: {about}."
        f" Placeholders in angle brackets replace: {hidden}."
    )


def _end(text: str) -> str:
    lines = text.rstrip("\n").splitlines()
    cut = len(lines) - LOG_LINES
    first = [f"... {cut} earlier lines"] if cut > 0 else []
    return "\n".join([*first, *lines[-LOG_LINES:]])


def _fenced(text: str, language: str = "") -> str:
    """Returns a code block whose fence is longer than any fence in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    body = text.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"
