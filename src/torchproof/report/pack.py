"""Renders the inspection of a pack as text, Markdown or JSON."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchproof.packs import File, Inspection
from torchproof.records import line, seen
from torchproof.report import markup, numbers

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
_LABEL = 12  # characters of a label
_LONG = 100  # characters of a value
_FEW = 6  # files of a kind that are listed one by one


def render(found: Inspection, format: str, *, width: int = 80) -> str:
    if format == "json":
        return json.dumps(found.to_json(), indent=1) + "\n"
    return _markdown(found) if format == "md" else seen(_text(found, max(width, 40)))


def _text(found: Inspection, width: int) -> str:
    lines = [*textwrap.wrap(_headline(found), width), ""]
    rest = " " * (_LABEL + 2)
    for label, value in facts(found):
        first = f"{label:{_LABEL}}  " if len(label) <= _LABEL else f"{label}  "
        lines += textwrap.wrap(
            value, width, initial_indent=first, subsequent_indent=rest
        )
    lines += ["", "Files:", *_files(found, width), ""]
    for title, command in use(found):
        lines += [f"{title}:", textwrap.indent(command, "    ")]
    if not found.is_intact:
        lines.append(_DAMAGED)
    return "\n".join(lines) + "\n"


def _files(found: Inspection, width: int) -> Iterator[str]:
    rows = list(_rows(found))
    name_width = min(max((len(name) for name, *_ in rows), default=0), width // 2)
    for name, size, about in rows:
        start = f"  {name:{name_width}}  {numbers.size(size):>9}"
        wide = max(width - len(start) - 2, 20)
        first, *others = textwrap.wrap(line(about), wide) or [""]
        yield f"{start}  {first}".rstrip()
        yield from (" " * (len(start) + 2) + other for other in others)


def _rows(found: Inspection) -> Iterator[tuple[str, int, str]]:
    """The files; many files of a kind in a directory share one row."""
    files = found.manifest.files
    kinds = Counter(_kind(name, file) for name, file in files.items())
    told = set()
    for name, file in sorted(files.items()):
        if name in found.damage:
            yield line(name), file.size, f"DAMAGED: {found.damage[name]}"
        elif kinds[_kind(name, file)] <= _FEW:
            yield line(name), file.size, file.about
        elif (kind := _kind(name, file)) not in told:
            told.add(kind)
            sizes = [f.size for n, f in files.items() if _kind(n, f) == kind]
            yield f"{line(kind[0])}/", sum(sizes), f"{len(sizes)} files: {file.about}"


def _kind(name: str, file: File) -> tuple[str, str]:
    folder, _, rest = name.partition("/")
    return (folder, file.about) if rest else (name, "")


def _markdown(found: Inspection) -> str:
    rows = [
        (
            markup.code(name),
            numbers.size(file.size),
            markup.inline(
                f"DAMAGED: {found.damage[name]}" if name in found.damage else file.about
            ),
        )
        for name, file in sorted(found.manifest.files.items())
    ]
    told = [
        (markup.inline(label), markup.inline(value)) for label, value in facts(found)
    ]
    blocks = [f"## Pack {markup.code(found.manifest.name or found.path)}"]
    blocks += [markup.prose(_headline(found)), markup.table(("", ""), told)]
    blocks += ["### Files", markup.table(("File", "Size", "Content"), rows)]
    for title, command in use(found):
        language = "bash" if found.manifest.kind == "repro" else "python"
        blocks += [f"{title}:", markup.fence(command, language)]
    if not found.is_intact:
        blocks.append(_DAMAGED)
    return "\n\n".join(blocks) + "\n"


def _headline(found: Inspection) -> str:
    manifest = found.manifest
    count = numbers.amount(len(manifest.files), "file")
    lost = numbers.amount(len(found.damage), "file")
    state = "intact" if found.is_intact else f"NOT INTACT ({lost})"
    return line(
        f"{found.path}: a {manifest.kind} pack,"
        f" {numbers.size(manifest.size)} in {count}, {state}."
    )


def facts(found: Inspection) -> Iterator[tuple[str, str]]:
    """The facts about a pack as (label, text), with untrusted text escaped."""
    manifest = found.manifest
    moment = manifest.made.replace("T", " ").replace("+00:00", " UTC")
    made = f"{moment or numbers.UNKNOWN}, torchproof {manifest.torchproof}"
    details = dict(manifest.details)
    yield "is", _PURPOSE[manifest.kind]
    if symptom := _symptom(details.pop("symptom", None)):
        yield "symptom", symptom
    yield "made", line(made)
    for label in ("target", "command"):
        if value := getattr(manifest, label):
            yield label, line(value)
    yield "environment", _listed(manifest.environment) or numbers.UNKNOWN
    for label, value in details.items():
        if value not in (None, "", [], {}):
            told = _IN_WORDS.get(label, _short)
            yield line(label), _in_words(told, value)
    yield "signature", _SIGNED[found.signature]
    if manifest.kind == "deploy":
        refused = f"refused: {found.refusal}"
        yield "trust", line(refused if found.refusal else "accepted here")


_OUTPUTS = {
    "same": "outputs equal eager's on new inputs",
    "rounding": "outputs equal eager's on new inputs, up to rounding",
}


def _in_words(told: Callable[[Any], str], value: Any) -> str:
    """The value in words; a value in the format of another version is shown as is."""
    try:
        return line(told(value))
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


def _given(value: Any) -> str:
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
    "settings": _given,
    "place": _place,
    "calls": _calls,
    "code": lambda value: f"of {', '.join(sorted(value))}",
}


def _symptom(told: Any) -> str:
    if not isinstance(told, Mapping):
        return line(told or "")
    ids = [str(i) for i in told.get("ids") or ()]
    headline = told.get("headline") or told.get("kind") or ""
    return line(f"{headline} ({', '.join(ids)})" if ids else headline)


def _listed(table: Mapping[str, Any]) -> str:
    known = {k: v for k, v in table.items() if v not in (None, "", [], {})}
    return line(", ".join(f"{name} {_short(v)}" for name, v in known.items()))


def _short(value: Any) -> str:
    """The value if it is short; else its length, or its beginning."""
    if isinstance(value, str):
        text = line(value)
        return text if len(text) <= _LONG else text[: _LONG - 4] + " ..."
    text = line(json.dumps(value))
    if len(text) <= _LONG or not isinstance(value, list | dict):
        return text
    return f"{len(value)} entries (--format json shows all)"


def use(found: Inspection) -> Iterator[tuple[str, str]]:
    """How to use the pack: a sentence, and the code or command."""
    path = line(found.path)
    if not found.is_intact:
        return
    if found.manifest.kind == "deploy":
        model = "" if _has_model(found) else ", model"
        yield (
            "To use it",
            f"import torchproof\n\nmodel = torchproof.load({path!r}{model})",
        )
    elif found.form == "archive":
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


def _has_model(found: Inspection) -> bool:
    """Whether the pack contains the model, so that its Python code is not needed."""
    return found.manifest.details.get("artifact") in ("aoti", "torchscript")
