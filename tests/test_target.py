"""What a target's text means, and where a factory is found."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from torchproof.records.run import UserError
from torchproof.targets import calls
from torchproof.targets.target import HOOKS, load, parse

DOCS = Path(__file__).parents[1] / "docs"

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

def call_work(call):
    return 2, "rows"

def work():
    raise AssertionError("a function of the file's own")

served = work
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
        with pytest.raises(UserError, match=rf"{text}\b.*script.* --$"):
            parse(text, ["1"])


@pytest.mark.parametrize(
    ("factory", "count", "line"), [("build", 1, 4), ("make", 2, 4), ("Make", 3, 1)]
)
def test_any_callable_is_a_factory(factory: str, count: int, line: int) -> None:
    loaded = load(parse(f"some_factory.py:{factory}"))
    assert loaded.fn is abs and len(loaded.calls) == count
    assert loaded.before_call is not None
    assert loaded.place.line == line
    assert Path(loaded.place.file).name == "some_factory.py"


def test_only_documented_names_are_hooks() -> None:
    loaded = load(parse("some_factory.py:make"))
    assert calls.amount(loaded) == (2.0, "rows")
    assert loaded.served is loaded.call_weight is loaded.wrap is None
    pages = [page.read_text() for page in DOCS.glob("*.md")]
    for hook in HOOKS:
        assert any(f"`{hook}" in page or f"\n{hook} =" in page for page in pages), hook


def test_workload_counts_its_own_work() -> None:
    assert calls.amount(load(parse("workload:arrcoc"), {"batch": 3})) == (3.0, "images")


def test_file_that_can_run_only_once_is_reused(folder: Path) -> None:
    once = folder / "runs_once.py"
    once.write_text(
        "import builtins\n"
        "assert not hasattr(builtins, 'ran_once'), 'duplicate'\n"
        "builtins.ran_once = True\n"
        "made = []\n"
        "def make():\n"
        "    made.append(1)\n"
        "    return len, [(made,)]\n"
    )
    target = parse(f"{once}:make")
    for count in (1, 2):
        assert load(target).calls == [([1] * count,)]
    del builtins.ran_once  # type: ignore[attr-defined]


def test_file_is_run_anew_for_every_target(folder: Path) -> None:
    target = parse(f"{folder / 'some_factory.py'}:build")
    first, second = load(target), load(target)
    assert first.before_call is not None
    assert first.before_call is not second.before_call
