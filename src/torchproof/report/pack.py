"""Renders the inspection of a pack as text, Markdown or JSON."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchproof.packs import File, Inspection
from torchproof.records import line, seen
from torchproof.report import markdown, numbers, text
from torchproof.report.document import (
    Block,
    Code,
    Facts,
    Items,
    Listing,
    Paragraph,
    Section,
    Table,
    View,
)

FORMATS = ("text", "json", "md")
_PURPOSE = {
    "repro": "a self-contained repro of a failure; it needs only torch",
    "deploy": "a model with its compiled caches, for warm starts",
}
_SIGNED = {
    "none": "none",
    "not checked": "present, not checked: TORCHPROOF_PACK_KEY is not set",
    "fits": "valid for your key",
    "does not fit": "not valid for your key",
}
_DAMAGED = "The pack was modified after it was made. Do not run it; get a new copy."
_NAME = 40  # characters of the name of a file
_LONG = 100  # characters of a value
_FEW = 6  # files of a kind that are listed one by one


def render(inspection: Inspection, format: str, *, width: int = 80) -> str:
    if format == "json":
        return json.dumps(inspection.to_json(), indent=1) + "\n"
    if format == "md":
        return markdown.render(_blocks(inspection))
    return seen(text.render(_blocks(inspection), width=width))


def _blocks(inspection: Inspection) -> Iterator[Block]:
    manifest, rows = inspection.manifest, list(_rows(inspection))
    width = min(max((len(name) for name, *_ in rows), default=0), _NAME)
    lines = [
        f"{name:{width}}  {numbers.size(size):>9}  {line(about)}".rstrip()
        for name, size, about in rows
    ]
    files = [
        (Code(name), numbers.size(file.bytes), _about(inspection, name))
        for name, file in sorted(manifest.files.items())
    ]
    table = Table("Files", ("file", "size", "content"), tuple(files))
    name = line(manifest.name or inspection.path)
    blocks = (
        Paragraph(_headline(inspection)),
        Facts(tuple(facts(inspection))),
        Items(tuple(lines), "Files", views=View.TERMINAL),
        replace(table, views=View.PAPER),
        *_use(inspection),
        Paragraph("" if inspection.is_intact else _DAMAGED),
    )
    yield Section(f"Pack {name}", blocks)


def _use(inspection: Inspection) -> Iterator[Block]:
    language = "bash" if inspection.manifest.kind == "repro" else "python"
    for title, command in use(inspection):
        yield Listing(command, language, title)


def _about(inspection: Inspection, name: str) -> str:
    """What a file contains, or why it is not what it was."""
    if name in inspection.damage:
        return f"DAMAGED: {inspection.damage[name]}"
    return inspection.manifest.files[name].about


def _rows(inspection: Inspection) -> Iterator[tuple[str, int, str]]:
    """The files; many files of a kind in a directory share one row."""
    files = inspection.manifest.files
    kinds = Counter(_kind(name, file) for name, file in files.items())
    listed = set()
    for name, file in sorted(files.items()):
        if name in inspection.damage:
            yield line(name), file.bytes, _about(inspection, name)
        elif kinds[_kind(name, file)] <= _FEW:
            yield line(name), file.bytes, file.about
        elif (kind := _kind(name, file)) not in listed:
            listed.add(kind)
            sizes = [f.bytes for n, f in files.items() if _kind(n, f) == kind]
            yield f"{line(kind[0])}/", sum(sizes), f"{len(sizes)} files: {file.about}"


def _kind(name: str, file: File) -> tuple[str, str]:
    folder, _, rest = name.partition("/")
    return (folder, file.about) if rest else (name, "")


def _headline(inspection: Inspection) -> str:
    manifest = inspection.manifest
    count = numbers.amount(len(manifest.files), "file")
    damaged = numbers.amount(len(inspection.damage), "file")
    state = "intact" if inspection.is_intact else f"NOT INTACT ({damaged})"
    return line(
        f"{inspection.path}: a {manifest.kind} pack,"
        f" {numbers.size(manifest.size)} in {count}, {state}."
    )


def facts(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """The facts about a pack as (label, text), with untrusted text escaped."""
    manifest = inspection.manifest
    moment = manifest.made.replace("T", " ").replace("+00:00", " UTC")
    origin = f"{moment or numbers.UNKNOWN}, torchproof {manifest.torchproof}"
    details = dict(manifest.details)
    yield "is", _PURPOSE[manifest.kind]
    if symptom := _symptom(details.pop("symptom", None)):
        yield "symptom", symptom
    yield "made", line(origin)
    for label in ("target", "command"):
        if value := getattr(manifest, label):
            yield label, line(value)
    yield "environment", _listed(manifest.environment) or numbers.UNKNOWN
    for label, value in details.items():
        if value not in (None, "", [], {}):
            text_of = _IN_WORDS.get(label, _short)
            yield line(label), _in_words(text_of, value)
    yield "signature", _SIGNED[inspection.signature]
    if manifest.kind == "deploy":
        refused = f"refused: {inspection.refusal}"
        yield "trust", line(refused if inspection.refusal else "accepted here")


_OUTPUTS = {
    "same": "outputs equal eager's on new inputs",
    "rounding": "outputs equal eager's on new inputs, up to rounding",
}


def _in_words(text_of: Callable[[Any], str], value: Any) -> str:
    """The value in words; a value in the format of another version is shown as is."""
    try:
        return line(text_of(value))
    except (KeyError, TypeError, AttributeError, ValueError):
        return _short(value)


def _size(value: Any) -> str:
    return f"{value['last']} {value['unit']}, {value['first']} at first"


def _verified(value: Any) -> str:
    seconds = f"{value['seconds']:.1f} s"
    if "line" in value:
        return f"{value['line']} (in a clean process, {seconds})"
    verdict = value["numerics"]["verdict"]
    text = _OUTPUTS.get(verdict, verdict)
    if "of" in value:
        text = f"{value['graphs']} of {value['of']} graphs from the pack; {text}"
    return f"{text} (in a clean process, {seconds})"


def _settings(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items() if v not in (None, False, {}))


def _place(value: Any) -> str:
    names = ("device", "gpu", "capability", "machine", "isa", "torch", "cuda", "driver")
    return ", ".join(f"{name} {value[name]}" for name in names if value.get(name))


def _calls(value: Any) -> str:
    shapes = [
        " and ".join("x".join(map(str, t["shape"])) for t in call["inputs"]["tensors"])
        for call in value
    ]
    more = f" and {len(shapes) - 4} more" if len(shapes) > 4 else ""
    return "; ".join(shapes[:4]) + more


_IN_WORDS: dict[str, Callable[[Any], str]] = {
    "size": _size,
    "verified": _verified,
    "settings": _settings,
    "place": _place,
    "calls": _calls,
    "graphs": lambda value: str(len(value)),
    "code": lambda value: f"of {', '.join(sorted(value))}",
}


def _symptom(symptom: Any) -> str:
    if not isinstance(symptom, Mapping):
        return line(symptom or "")
    listed = symptom.get("ids")
    ids = [str(i) for i in listed] if isinstance(listed, list) else []
    headline = symptom.get("headline") or symptom.get("kind") or ""
    return line(f"{headline} ({', '.join(ids)})" if ids else headline)


def _listed(table: Mapping[str, Any]) -> str:
    present = {k: v for k, v in table.items() if v not in (None, "", [], {})}
    return line(", ".join(f"{name} {_short(v)}" for name, v in present.items()))


def _short(value: Any) -> str:
    """The value if it is short; else its length, or its beginning."""
    if isinstance(value, str):
        text = line(value)
        return text if len(text) <= _LONG else text[: _LONG - 4] + " ..."
    text = line(json.dumps(value))
    if len(text) <= _LONG or not isinstance(value, list | dict):
        return text
    return f"{len(value)} entries (--format json shows all)"


def use(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """How to use the pack: a sentence, and the code or command."""
    path = line(inspection.path)
    if not inspection.is_intact:
        return
    if inspection.manifest.kind == "deploy":
        model = "" if _has_model(inspection) else ", model"
        yield (
            "To use it",
            f"import torchproof\n\nmodel = torchproof.load({path!r}{model})",
        )
    elif inspection.form == "archive":
        folder = Path(path).name.removesuffix(".tar.gz").removesuffix(".tgz")
        yield (
            "To run it (exit code 1 means that the failure occurs)",
            f"tar xzf {shlex.quote(path)}\ncd {shlex.quote(folder)}\n"
            "python -I repro.py",
        )
    else:
        yield (
            "To run it (exit code 1 means that the failure occurs)",
            f"cd {shlex.quote(path)}\npython -I repro.py",
        )


def _has_model(inspection: Inspection) -> bool:
    """Whether the pack contains the model, so that its Python code is not needed."""
    return inspection.manifest.details.get("artifact") == "aoti"
