"""Who made a pack, where, and with which secrets, is in no file of it."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import string
import tarfile
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any
from unittest import mock

import check_runs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.packs import repro
from torchproof.packs.repro.candidate import Candidate, Outcome
from torchproof.packs.repro.target_recording import TargetRecording
from torchproof.records.run import Run
from torchproof.targets.options import Options
from torchproof.targets.target import Target

NAMES = st.from_regex(r"[a-z]{4,9}[0-9]{2}", fullmatch=True)
SECRETS = st.text(string.ascii_letters + string.digits + "-_/+%=", min_size=14)
SECRETS = SECRETS.filter(lambda text: any(c.isdigit() for c in text))
VARIABLES = st.sampled_from(["HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"])


@dataclasses.dataclass(frozen=True)
class Person:
    """What a stranger must not learn."""

    name: str
    home: str
    secret: str
    variable: str

    @property
    def environment(self) -> dict[str, str]:
        named = {"USER": self.name, "LOGNAME": self.name, "HOME": self.home}
        return {"PATH": os.environ["PATH"], **named, self.variable: self.secret}

    @property
    def told(self) -> str:
        """All of it in one line, plainly and in other spellings."""
        coded = base64.b64encode(self.secret.encode()).decode()
        quoted = urllib.parse.quote(self.secret, safe="")
        where = f'File "{self.home}/net.py", line 3, in <module>'
        return f"{where} {self.secret} {coded} {quoted} {self.name}@laptop"


PEOPLE = st.builds(
    lambda name, parent, secret, variable: Person(
        name, f"{parent}/{name}", secret, variable
    ),
    NAMES,
    st.sampled_from(["/home", "/Users", "/data/people"]),
    SECRETS,
    VARIABLES,
)


class FakeCourt:
    """Every draft fails as stated, and says all that it knows."""

    def __init__(self, person: Person, told: list[str]) -> None:
        self.person, self.told = person, told

    def __call__(self, *_: Any, **__: Any) -> FakeCourt:
        return self

    def __enter__(self) -> FakeCourt:
        return self

    def __exit__(self, *_: object) -> None: ...

    def text(self, draft: Candidate) -> str:
        return draft.source

    def run_forked(self, draft: Candidate) -> Outcome:
        return Outcome("same", f"FAILS AS STATED: {self.person.told}", 0.1)

    def run_isolated(self, text: str, *_: Any) -> Outcome:
        self.told.append(text)
        line = f"FAILS AS STATED: GB0124 {self.person.told}"
        return Outcome("same", line, 0.1, f"{self.person.told}\n{line}\n")


def packed(person: Person, folder: Path) -> tuple[Path, list[str]]:
    """A pack made as always, but for the runs of torch."""
    source = (
        f"# {person.told}\nimport torch\n\nPLACE = {person.home + '/data'!r}\n"
        f"KEY = {person.secret!r}\n\n\ndef make():\n    return torch.sin, []\n"
    )
    frame = Candidate("frame", source, f"of {person.name}", 3, origin=person.told)
    record = {"variants": []}
    graph = Candidate(
        "graph", source, f"of {person.name}", 3, origin="0/0", record=record
    )
    seen = TargetRecording(
        (frame, graph),
        (person.told,),
        {
            "torch": "2.13.0",
            "variables": {person.variable: person.secret},
            "configs": {
                "torch._dynamo.config": {"debug_dir_root": f"{person.home}/debug"}
            },
        },
    )
    finding = dataclasses.replace(
        check_runs.ITEM,
        evidence=("GB0124", f"torch: Unsupported call: {person.told}"),
        file=f"{person.home}/net.py",
    )
    facts = {"device": "cpu", "python": "3.11.7"}
    run = Run("r", "net.py:make", "as-written", facts, {}, (finding,))
    target = Target(f"{person.home}/net.py:make", "factory", f"{person.home}/net.py")
    path, tried = folder / "it.tar.gz", []
    collect_env = mock.MagicMock()
    collect_env().__enter__().text.return_value = person.told
    with (
        mock.patch.dict(os.environ, person.environment, clear=True),
        mock.patch.object(repro, "record_target", lambda *_, **__: seen),
        mock.patch.object(repro, "ReproRunner", FakeCourt(person, tried)),
        mock.patch.object(repro.versions, "CollectEnv", collect_env),
        mock.patch.object(repro, "shrink", lambda draft, *_, **__: draft),
    ):
        repro.pack(
            repro.Subject(run, target, Options()),
            repro.ReproOptions(),
            dest=path,
            overwrite=False,
            progress=lambda _: None,
            command=f"torchproof pack {person.home}/net.py:make --for repro",
        )
    return path, tried


def contents(path: Path) -> dict[str, str]:
    """Names and texts of all members, and what the archive says of them."""
    with tarfile.open(path) as archive:
        found = {"members": repr([m.get_info() for m in archive.getmembers()])}
        for member in archive.getmembers():
            opened = archive.extractfile(member)
            found[member.name] = opened.read().decode() if opened else ""
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(PEOPLE)
def test_nobody_is_told_who_made_a_pack(person: Person) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path, _ = packed(person, Path(scratch))
        files = contents(path)
    coded = base64.b64encode(person.secret.encode()).decode()
    quoted = urllib.parse.quote(person.secret, safe="")
    escaped = json.dumps(person.secret)[1:-1]
    for private in (person.secret, coded, quoted, escaped, person.home, person.name):
        told = [name for name, text in files.items() if private in text]
        assert not told, f"{private!r} is told by {told}"


def test_what_is_planted_would_be_found(tmp_path: Path) -> None:
    """The search of the test above sees what nothing takes out."""
    person = Person("wanda77", "/home/wanda77", "Zx9-quite-long-77", "HF_TOKEN")
    as_it_is = {"text": lambda _, text: text, "source": lambda _, text: text}
    with mock.patch.multiple(repro.Redactor, **as_it_is):
        path, _ = packed(person, tmp_path)
    files = contents(path)
    hits = {name.partition("/")[2] for name, text in files.items() if "wanda77" in text}
    wanted = {"README.md", "manifest.json", "command.txt", "logs/torch.txt"}
    assert wanted | {"graphs/graph_0_0.py"} <= hits


def test_what_was_verified_is_what_is_packed(tmp_path: Path) -> None:
    person = Person("wanda77", "/home/wanda77", "Zx9-quite-long-77", "HF_TOKEN")
    path, tried = packed(person, tmp_path)
    (program,) = (v for k, v in contents(path).items() if k.endswith("/repro.py"))
    assert tried == [program]
    assert "KEY" in program and "torch.sin" in program
