"""What a program has to show again to have the same failure as a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchproof.records import shapes
from torchproof.records.mappings import JsonObject
from torchproof.records.schema import Record

# The words of the comparison, by the kind of the difference; all others are of values.
_DIFFERENCES = {
    "nan": r"NaN where eager has none",
    "infinity": r"infinity on one side only",
    "form": r"\bits (?:dtype|shape|device|layout) is|\bit is of type|only eager gives"
    r"|eager gives none",
}
_BECAUSE = r"(?:because of|nothing to compile): (.+)$"
_RELATIVE_ERROR = r"relative error (?=\d+(?:\.\d+)?(?:e[+-]\d+)?,)"


@dataclass(frozen=True)
class Symptom(Record):
    """What a program has to show again to have the same failure as a finding."""

    type: str = ""  # torch's: of a graph break; the class of an error
    text: str = ""  # torch's: an explanation, an error, a failed guard or a reason
    gb_id: str | None = None
    operation: str | None = None  # of wrong outputs, with the first wrong layer
    layer: str | None = None
    numerics: shapes.Numerics | None = field(default=None, hash=False)
    in_first_call: bool = False  # a stale value is wrong in the first call too


def page_of_older(finding: JsonObject) -> str | None:
    """Torch's page about a finding of an older record, which has it as evidence."""
    lines = finding.get("evidence", ())
    found = (re.fullmatch(r"GB\d+ (\S+)", each) for each in lines)
    return next((match[1] for match in found if match), None)


def symptom_of_older(finding: JsonObject) -> Symptom | None:
    """The symptom of a finding of an older record, which has it in its texts only."""
    kind, lines = finding["kind"], tuple(finding.get("evidence", ()))
    gb_id = _after(lines, r"(?=GB\d{4}\b)")[:6] or None
    if kind in ("graph_break", "skipped_frame"):
        name, _, text = _after(lines, "torch: ").partition(": ")
        return Symptom(name, text, gb_id) if name else None
    if kind == "recompile":
        guard = re.sub(r"^\d+\S*: ", "", lines[0]) if lines else ""
        return Symptom(text=guard) if guard and not guard.startswith("and ") else None
    if kind == "recompile_limit":
        return Symptom(text=_after(lines, "last guard to fail: "), gb_id=gb_id)
    if kind == "compile_error" or (kind == "specialization" and _is_error(lines)):
        name, _, text = (lines[0] if lines else "").partition(": ")
        return Symptom(name.rpartition(".")[2], text, gb_id) if name else None
    if kind == "no_op":
        because = re.search(_BECAUSE, finding["cause"])
        return Symptom(because[1]) if because else None
    if kind == "numerics":
        return _wrong(finding, lines)
    if kind == "stale_state":
        return Symptom(in_first_call=any("in every call" in line for line in lines))
    reason = _after(lines, "torch says: (?:skipping cudagraphs due to )?")
    return Symptom(text=reason) if kind == "cudagraph_skip" and reason else None


def _wrong(finding: JsonObject, lines: Iterable[str]) -> Symptom:
    message, error = finding["message"], _after(lines, _RELATIVE_ERROR)
    named = re.search(r"\btorch(?:\.\w+)+", finding["cause"])
    found = (how for how, words in _DIFFERENCES.items() if re.search(words, message))
    return Symptom(
        operation=named and named[0],
        layer=_after(lines, "first wrong in ") or None,
        numerics={
            "verdict": "wrong",
            "how": next(found, "value"),
            "max_rel_error": float(error.split(",")[0]) if error else None,
        },
    )


def _is_error(lines: tuple[str, ...]) -> bool:
    return bool(lines) and lines[0].partition(" ")[0].endswith("Error:")


def _after(lines: Iterable[str], start: str) -> str:
    """The rest of the line that begins so; empty if none does."""
    begin = re.compile(start)
    return next((text[m.end() :] for text in lines if (m := begin.match(text))), "")
