"""No character of a name or a message acts on a terminal, whoever wrote it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

from report_readers import ACTS

from torchproof.records import printable
from torchproof.records.ranks import WaitCause
from torchproof.records.run import UserError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fuzz_documents import run_documents  # noqa: E402

ODD = ("\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\x7f", "\r", "\u202e", "\u2028", "\ud800")
FORGED = "\n::error::forged"


def spoilt(value: Any, odd: str) -> Any:
    """Every text of a document, keys of free mappings included, with something odd."""
    if isinstance(value, dict):
        return {key: spoilt(each, odd) for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, odd) for each in value]
    return f"{value}{odd}" if isinstance(value, str) else value


WAIT_CAUSES = get_args(WaitCause)
KEPT = ("kind", "severity", "status", "origin", "owner", "verb", "outcome", "order")


def restored(document: Any, like: Any) -> Any:
    """With the words of the schema as they were."""
    if isinstance(document, dict):
        return {
            k: like[k]
            if isinstance(like[k], str) and (k in KEPT or like[k] in WAIT_CAUSES)
            else restored(v, like[k])
            for k, v in document.items()
        }
    if isinstance(document, list):
        return [restored(*pair) for pair in zip(document, like, strict=True)]
    return document


def test_characters_of_a_saved_run_do_not_act(answer: Any) -> None:
    for number, document in enumerate(run_documents()):
        path = Path(f"{number}.json")
        changed = restored(spoilt(document, "".join(ODD) + FORGED), document)
        path.write_text(json.dumps(changed))
        formats = ("md", "github", "gitlab", "sarif", "agent")
        for more in (["-v"], *(["--format", f] for f in formats)):
            code, out, err = answer("show", path.name, *more)
            assert code == 0 and not ACTS.search(out) and not err
            assert not re.search("(?m)^ *::error::forged", out)
        code, out, err = answer("compare", path.name, path.name)
        assert code in (0, 1, 2)
        assert not ACTS.search(out + err) and not re.search("(?m)^ *::error", out)


def test_names_in_errors_lists_and_logs_do_not_act(answer: Any) -> None:
    name = f"a{''.join(ODD[:-1])}b"  # no file has half a character in its name
    folder = Path(".torchproof/runs") / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    Path("log.md").write_text(f"# Log\n\n## 2026-01-01 00:00 Plan: {name}\n")
    for arguments in (
        ["show", name],
        ["show", "--list"],
        ["check", f"{name}.py"],
        ["check", f"{name}:make"],
        ["rule", name],
        ["check", "workload:gpt", "--effort", name],
        ["show", "x", "-o", f"{name}/y"],
        ["compare", name, name],
        ["log", "--file", "log.md"],
        ["log", "--list", "--file", "log.md"],
        ["log", "--file", f"{name}.md"],
    ):
        code, out, err = answer(*arguments)
        assert not ACTS.search(out + err), (arguments, out + err)
        assert code in (0, 2) and (code == 0 or err.count("\n") == 1)


def test_every_character_becomes_printable() -> None:
    for first in (*range(0, 0x3100, 0x100), 0xD800, 0xFE00, 0xFF00, 0x1F600, 0xE0000):
        text = "".join(map(chr, range(first, first + 0x100)))
        lines = printable.line(text), printable.unbroken(text), str(UserError(text))
        for shown in (printable.seen(text), *lines):
            shown.encode()
            assert not ACTS.search(shown)
        assert "\n" not in "".join(lines)
