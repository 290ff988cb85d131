"""The file of the log belongs to the people who write in it."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from commands import PROGRAM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.records import store
from torchproof.records.run import Run, UserError
from torchproof.report import log as journal
from torchproof.report.log import log_file

BY_HAND = """# Our notes

Some words first.

## 2025-12-01 \u2014 Plan: written by hand

Not much to say.

### Expected

- graph_breaks = 0
- it feels faster

## Not an entry

```markdown
## 2026-01-01 - Plan: only an example

- Entry: `20260101-0000-plan`
```

~~~
```
## 2026-01-02 - Plan: in another block
~~~

<!--
## 2026-01-03 - Plan: commented out
-->

- Entry: `20260104-0000-plan`
- Type: Plan
- Date: 2026-01-04 10:00:00

The heading of this one is gone.

- Entry: `20260105-0000-observation`
- Type: Observation
- Run: `20260105-0000-model`
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "experiment-log.md"


def run_of(name: str) -> Run:
    return Run(f"20260105-0000-{name}", "a.py", "full", {}, {}, started="2026-01-05")


def test_entries_are_found_among_what_people_wrote() -> None:
    found = journal.entries(BY_HAND)
    assert [(e.kind, e.id, e.title, e.line) for e in found] == [
        ("Plan", None, "written by hand", 5),
        ("Plan", "20260104-0000-plan", "20260104-0000-plan", 31),
        ("Observation", "20260105-0000-observation", "20260105-0000-observation", 37),
    ]


def test_a_log_written_by_hand_can_be_gone_on_with(log: Path) -> None:
    log.write_text(BY_HAND, encoding="utf-8")
    with pytest.raises(UserError, match="line 37"):
        journal.add(log, run_of("model"))
    journal.retrospective(log, [run_of("other")], name="by hand")
    text = log.read_text(encoding="utf-8")
    assert text.startswith(BY_HAND)
    back = journal.entries(text)[-1]
    assert back.title == "written by hand"
    said = "\n".join(back.lines)
    assert "| it feels faster | - | not measured | - |" in said
    assert "; 1 run " in said


@pytest.mark.parametrize(
    ("before", "gap"),
    [
        (b"# Log\n\nlast words", b"\n\n"),
        (b"# Log\n\n", b""),
        (b"\xef\xbb\xbf# Log\r\n\r\nlast words\r\n", b"\r\n"),
        ("# Tagebuch \u00fc \u65e5\u2028x\n".encode(), b"\n"),
        (b"", log_file.HEADER.encode() + b"\n"),
    ],
)
def test_what_is_there_stays_byte_by_byte(before: bytes, gap: bytes, log: Path) -> None:
    log.write_bytes(before)
    added = journal.plan(log, "try it\nin two lines", expect="graphs=1")
    after = log.read_bytes()
    assert after.startswith(before + gap + b"## 20")
    assert after.endswith(b"\n")
    entry = after[len(before) + len(gap) :]
    assert entry.count(b"\r\n") == (entry.count(b"\n") if b"\r" in before else 0)
    lines = log_file.LINE.split(after.decode("utf-8-sig"))
    assert lines[added.line - 1].startswith("## 20")
    assert [e.line for e in journal.entries("\n".join(lines))] == [added.line]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"fine\n\xff\xfe broken\n", r"UTF-8.*line 2\b"),
        ("# Log".encode("utf-16"), "UTF-8"),
        (b"a\x00b", r"experiment-log\.md\b.*\btext\b"),
    ],
)
def test_what_is_not_utf_8_is_left_alone(content: bytes, why: str, log: Path) -> None:
    log.write_bytes(content)
    for act in (lambda: journal.plan(log, "x"), lambda: journal.read(log)):
        with pytest.raises(UserError, match=why):
            act()
    assert log.read_bytes() == content


def test_a_write_that_breaks_off_is_taken_back(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.plan(log, "first")
    before, write = log.read_bytes(), os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match=os.strerror(errno.ENOSPC)):
        journal.plan(log, "second")
    assert log.read_bytes() == before


def test_a_file_put_in_its_place_meanwhile_is_the_one_added_to(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editor saves: another file, renamed over the first."""
    journal.plan(log, "first")
    edited = log.with_name("edited")
    edited.write_text("# Mine\n")
    lock, times = log_file.fcntl.flock, list[int]()

    def slow(file: int, how: int) -> None:
        lock(file, how)
        if not times:
            os.replace(edited, log)
        times.append(how)

    monkeypatch.setattr(log_file.fcntl, "flock", slow)
    journal.plan(log, "second")
    assert len(times) == 2
    assert log.read_text().startswith("# Mine\n\n## 20")


def test_two_processes_add_whole_entries_and_one_run_once(tmp_path: Path) -> None:
    for number in range(5):
        store.save(run_of(str(number)), tmp_path / store.RUNS)
    program = (
        "import sys\nfrom torchproof.cli import main\n"
        "for n in sys.argv[1:]: main(['log', 'add', f'20260105-0000-{n}'])"
    )
    started = [
        subprocess.Popen(
            [PROGRAM[0], "-c", program, *numbers],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for numbers in ("0123", "2341")
    ]
    refused = "".join(process.communicate(timeout=60)[1] for process in started)
    text = (tmp_path / "experiment-log.md").read_text()
    found = journal.entries(text)
    assert sorted(e.named("Run") or "" for e in found) == [
        f"20260105-0000-{number}" for number in range(5)
    ]
    assert len({e.id for e in found}) == 5
    assert refused.count("--again") == 3
    assert text.count("# Experiment log") == 1
    assert [e.written for e in found] == sorted(e.written for e in found)


ODD = ["## 2026-01-01 - Plan: x", "- Entry: `a`", "- Type: Plan", "```", "~~~", ""]
ODD += ["    ```", "````", "<!--", "-->", "# x", "## ", "- Entry: ``", "text"]
ODD += ["### Expected", "- graphs = 1", "\u2028", "- Date: no date", "\r"]
LINES = st.lists(st.sampled_from(ODD), max_size=14)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n"]), ended=st.booleans())
def test_whatever_stands_there_an_entry_can_be_added_and_found(
    lines: list[str], ending: str, ended: bool, log: Path
) -> None:
    before = (ending.join(lines) + ending * ended).encode()
    log.write_bytes(before)
    added = journal.plan(log, "the one", expect="graphs=1")
    assert log.read_bytes().startswith(before)
    text = log.read_bytes().decode()
    (found,) = (e for e in journal.entries(text) if e.id == added.id)
    assert (found.line, found.title) == (added.line, "the one")
    journal.retrospective(log, [], name=added.id)
    assert journal.entries(log.read_bytes().decode())[-1].named("Plan") == added.id
