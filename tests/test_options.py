"""Options: what is described once is what flags, keywords, tools and pages have."""

from __future__ import annotations

import inspect
import typing
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import pytest

import torchproof
from torchproof import api
from torchproof.cli import parser
from torchproof.cli.commands import COMMANDS, Command
from torchproof.records import UserError
from torchproof.records import option_values as values
from torchproof.records.load_options import token_range
from torchproof.records.option import (
    Option,
    OptionField,
    argument,
    nested,
    option,
    options_of,
)
from torchproof.records.options import Options

VERBS = [*api.KEYWORDS]


@dataclass(frozen=True)
class Inner:
    """Options of a nested record."""

    depth: int = option(1, "how deep", "N", read=values.whole)


@dataclass(frozen=True, kw_only=True)
class Bake(Command):
    """Bake a cake."""

    EXAMPLE = "torchproof bake cake"

    cake: str = argument(MISSING, "what to bake", "CAKE")
    time_s: float = option(60.0, "how long", "S", flag="--time", read=values.seconds)
    heat: str = option("low", "how hot", choices=("low", "high"), exclusive=True)
    cold: bool = option(False, "not at all", exclusive=True)
    eggs: bool = option(True, "without eggs", flag="--no-eggs")
    ice: str | None = option(None, "with ice", "KIND", const="plain")
    inner: Inner | None = nested(Inner)  # noqa: RUF009


@pytest.fixture
def bake(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(COMMANDS, "bake", Bake)
    return lambda line: parser.parsed(["bake", *line.split()])


def test_command_has_what_its_flags_say(bake: Any) -> None:
    plain = bake("cake")
    assert plain == Bake(cake="cake", line="torchproof bake cake")
    flags = "--time=5 --heat high --no-eggs --ice --depth 3"
    full = bake(f"cake {flags} -- --its own")
    assert (full.time_s, full.heat, full.eggs) == (5.0, "high", False)
    assert full.ice == "plain"
    assert full.inner == Inner(3) and full.script == ("--its", "own")
    assert full.flags == ("--time", "--heat", "--no-eggs", "--ice", "--depth")


@pytest.mark.parametrize(
    "line",
    [
        *("", "a b", "cake --heat mild", "cake --heat high --cold", "cake --time soon"),
        *("cake --depth 1.5", "cake --hea high", "cake --time", "cake --cold=yes"),
    ],
)
def test_wrong_command_is_a_user_error(line: str, bake: Any) -> None:
    with pytest.raises(UserError):
        bake(line)


# Flags that are refused without another one, and texts that a field itself checks.
TOGETHER = {
    "--batch-window": ["--max-batch=3"],
    "--max-batch": ["--batch-window=3"],
    "--find-rate": ["--slo=p99=1s"],
}
TEXTS = {"--arrivals": "constant"}


def sample(each: OptionField) -> tuple[str, Any]:
    """A value as text, and as the verb gets it."""
    for text in (*each.option.choices, "3", "a=b", "float32", "source", "p99=50ms"):
        text = TEXTS.get(each.flag or "", text)
        try:
            return text, each.read(text)
        except UserError:
            continue
    return "step", each.read("step")


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_flag_sets_its_field(verb: str) -> None:
    kind = COMMANDS[verb]
    needed = [sample(o)[0] for o in options_of(kind) if o.is_required and not o.flag]
    needed += {"pack": ["--for=repro"], "loadtest": ["--rate=1"]}.get(verb, [])
    for each in options_of(kind):
        if each.flag is None or each.flag in ("--for", "--rate"):
            continue
        text, value = ("", not each.default) if each.is_switch else sample(each)
        words = [each.flag] if each.is_switch else [each.flag, text]
        words += TOGETHER.get(each.flag, [])
        command = parser.parsed([verb, *needed, *words])
        for name in each.path:
            command = getattr(command, name)
        assert command == value, each.flag


@pytest.mark.parametrize("verb", VERBS)
def test_keywords_are_the_options_of_the_command(verb: str) -> None:
    """With their types and defaults, in the signature that tools show."""
    keywords, command = api.KEYWORDS[verb], COMMANDS[verb]
    described = {each.key: each.option for each in options_of(command)}
    assert is_dataclass(keywords)
    for each in options_of(keywords):
        assert described[each.key] == each.option or each.key == "quiet"
    function = getattr(torchproof, verb)
    parameters = inspect.signature(function).parameters
    assert list(parameters)[:3] == ["target", "calls", "options"]
    for each in fields(keywords):
        parameter = parameters[each.name]
        assert parameter.annotation == each.type
        assert each.name == "options" or parameter.kind is parameter.KEYWORD_ONLY
    with pytest.raises(TypeError, match="efort"):
        function("workload:gpt", efort="quick")
    assert typing.get_type_hints(Options)["train"] is bool


def test_wrong_value_of_a_keyword_is_a_user_error() -> None:
    with pytest.raises(UserError, match="quick, normal or full"):
        torchproof.fix("workload:gpt", fix_options=api.FixOptions(), effort="hasty")


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_option_is_described(verb: str) -> None:
    for each in options_of(COMMANDS[verb]):
        shown: Option = each.option
        assert shown.help and not shown.help.endswith("."), each.key
        assert each.is_switch or each.shown_value, each.key


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("YES", True), ("1", True), ("no", False), ("0", False)],
)
def test_values_of_compile_arguments(text: str, value: bool) -> None:
    found = values.compile_arguments(f"dynamic={text},fullgraph= {text} ,mode=x")
    assert found == {"dynamic": value, "fullgraph": value, "mode": "x"}
    assert values.compile_arguments("dynamic=None") == {"dynamic": None}
    assert values.compile_arguments("dynamic=auto") == {"dynamic": None}


def test_durations_and_ranges() -> None:
    texts = ("5ms", "30s", "1h2m", "1.5", "100us", "0")
    assert [values.duration(text) for text in texts] == pytest.approx(
        [0.005, 30, 3720, 1.5, 0.0001, 0]
    )
    for text in ("", "10 5", "1m1m", "30m1h", "5x"):
        with pytest.raises(ValueError, match="expected a time"):
            values.duration(text)
    assert [token_range(text) for text in ("16-128", " 7 ")] == [(16, 128), (7, 7)]
