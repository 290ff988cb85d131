"""What a target's text means, and where a factory is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.records import UserError
from torchproof.target import load, parse

PROGRAM = """
import functools

def build(count=1):
    return abs, [(-1,)] * count

make = functools.partial(build, 2)

class Make:
    def __new__(cls):
        return build(3)

def before_call(fn, index):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_factory.py").write_text(PROGRAM)
    (tmp_path / "recorded").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "where", "name"),
    [
        ("workload:gpt", "workload", "gpt", "gpt"),
        ("some_factory.py:make", "factory", "some_factory.py", "some_factory"),
        ("./some_factory.py:make", "factory", "./some_factory.py", "some_factory"),
        ("package.module:make", "factory", "package.module", "module"),
        ("some_factory.py", "script", "some_factory.py", "some_factory"),
        ("trace:recorded", "trace", "recorded", "recorded"),
        ("recorded", "source", "recorded", "recorded"),
    ],
)
def test_forms(text: str, kind: str, where: str, name: str) -> None:
    target = parse(text)
    assert (target.text, target.kind) == (text, kind)
    assert (target.where, target.name) == (where, name)


def test_arguments_are_a_scripts() -> None:
    assert parse("some_factory.py", ["--epochs", "1"]).arguments == ("--epochs", "1")
    for text in ("some_factory.py:make", "workload:gpt", "trace:recorded"):
        with pytest.raises(UserError, match="arguments after -- go to a script"):
            parse(text, ["1"])


@pytest.mark.parametrize(
    ("factory", "calls", "line"), [("build", 1, 4), ("make", 2, 4), ("Make", 3, 1)]
)
def test_any_callable_is_a_factory(factory: str, calls: int, line: int) -> None:
    loaded = load(parse(f"some_factory.py:{factory}"))
    assert loaded.fn is abs and len(loaded.calls) == calls
    assert loaded.before_call is not None
    assert loaded.place.line == line
    assert Path(loaded.place.file).name == "some_factory.py"


def test_a_module_is_found_by_name() -> None:
    assert len(load(parse("some_factory:make")).calls) == 2
