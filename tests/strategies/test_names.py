"""Strategies by name: what they mean, what is refused, how they travel and print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchproof.records.run import UserError
from torchproof.strategies import source_lines
from torchproof.strategies.strategy import (
    MODE_OPTIONS,
    Strategy,
    parse,
    with_arguments,
)

RECORDABLE = r"\bfull\+graph:max-autotune-no-cudagraphs"
MEANINGS: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "eager": ("eager", {}, None, "auto"),
    "full": ("full", {}, None, "auto"),
    "full:default": ("full", {}, None, "auto"),
    "full:reduce-overhead": ("full", {"mode": "reduce-overhead"}, None, "auto"),
    "full:fullgraph": ("full", {"fullgraph": True}, None, "auto"),
    "full:dynamic": ("full", {"dynamic": True}, None, "on"),
    "full:static": ("full", {"dynamic": False}, None, "off"),
    "full:marks": ("full", {}, None, "marks"),
    "core": ("core", {}, None, "auto"),
    "core:encode": ("core", {}, "encode", "auto"),
    "core:a.b:max-autotune": ("core", {"mode": "max-autotune"}, "a.b", "auto"),
    "regional:fullgraph:marks": ("regional", {"fullgraph": True}, None, "marks"),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_meaning_of_a_name(name: str) -> None:
    found = parse(name)
    meaning = (found.form, found.arguments, found.method, found.dynamic)
    assert (found.name, meaning) == (name, MEANINGS[name])
    assert Strategy.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("ful", r"\bfull\?"),
        ("nothing-like-it", "eager, full, core, regional, nested"),
        ("full:reduce_overhead", r"\breduce-overhead\?"),
        ("eager:fullgraph", "'eager:fullgraph': eager"),
        ("full:dynamic:static", "dynamic, static, marks"),
        ("full:max-autotune:reduce-overhead", r"\bdefault, reduce-overhead\b"),
        ("full+grahp", r"\bfull\+graph\?"),
        ("eager+graph:fullgraph", r"'eager\+graph:fullgraph': eager\b"),
        # There is no graph within a graph, and no mark of a size in one.
        ("full+graph:reduce-overhead", RECORDABLE),
        ("regional+graph:max-autotune", RECORDABLE.replace("full", "regional")),
        ("full+graph:marks", r"full\+graph:marks\b.*\bmark\b"),
    ],
)
def test_wrong_name_is_refused_with_a_suggestion(name: str, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern):
        parse(name)


def test_mode_that_meets_options_becomes_options() -> None:
    tuned = parse("full:max-autotune-no-cudagraphs")
    options = with_arguments(tuned, options={"coordinate_descent_tuning": False})
    assert options.arguments == {
        "options": {"max_autotune": True, "coordinate_descent_tuning": False}
    }
    more = with_arguments(options, options={"epilogue_fusion": False}, fullgraph=True)
    assert set(more.arguments["options"]) == {
        *("max_autotune", "coordinate_descent_tuning", "epilogue_fusion")
    }


def test_modes_mean_what_torch_says_they_mean() -> None:
    import torch._inductor

    theirs = torch._inductor.list_mode_options()
    assert {name: theirs[name] for name in MODE_OPTIONS} == MODE_OPTIONS


@pytest.mark.parametrize(
    ("name", "more", "pattern"),
    [
        ("eager", {"fullgraph": True}, "^eager: .*arguments"),
        ("full:reduce-overhead", {"backend": "aot_eager"}, "aot_eager.*reduce-overh"),
        ("full:marks", {"dynamic": True}, "^full:marks: .*dynamic"),
        ("full+graph", {"mode": "max-autotune"}, RECORDABLE),
        ("full+graph", {"options": {"triton.cudagraphs": True}}, RECORDABLE),
    ],
)
def test_arguments_that_contradict_are_refused(
    name: str, more: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(UserError, match=pattern):
        with_arguments(parse(name), **more)


@pytest.mark.parametrize(
    ("name", "more", "lines"),
    [
        ("full", {}, "import torch\n\nnet = torch.compile(net)"),
        ("eager", {}, "# net runs as it is"),
        ("regional", {}, "# regional: the lines are known after the target has run"),
        (
            "core:encode:fullgraph",
            {},
            "import torch\n\nnet.encode = torch.compile(net.encode, fullgraph=True)",
        ),
        (
            "full",
            {
                "options": {
                    "guard_filter_fn": "torch.compiler.keep_tensor_guards_unsafe"
                }
            },
            "import torch\n\nnet = torch.compile(net, options={"
            '"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe})',
        ),
    ],
)
def test_lines_to_paste(name: str, more: dict[str, Any], lines: str) -> None:
    strategy = with_arguments(parse(name), **more) if more else parse(name)
    assert source_lines.lines(strategy, "net") == lines
