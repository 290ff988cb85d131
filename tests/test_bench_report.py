"""A bench run and a comparison as a reader sees them, at width 80."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from bench_runs import WRONG, bench, row
from facts import missing

from torchproof.records.run import Measurement, Run
from torchproof.report import bench as terminal
from torchproof.report import bench_sections, markdown, numbers, render

FULL = row(
    "full",
    0.5,
    seed=1,
    warm_start={"label": "warm", "first_call_s": 1.2, "hits": 3, "misses": 0}
    | {"imports_s": 2.0},
    compile_s={"dynamo": 1.25, "aot_autograd": 0.8, "inductor": 6.1, "total": 11.5},
    counts={"graphs": 3, "graph_breaks": 0, "recompiles": 0, "artifacts": None},
    guards={"lookup_us": 12.34, "share": 0.022},
    kernels={"per_step": 127, "busy_share": 0.83},
    numerics={"verdict": "rounding", "max_rel_error": 1.2e-6}
    | {"eager_error": 1.1e-6, "reference": "float64"},
    throughput=12345.6,
    unit="tokens/s",
    source="model = torch.compile(model)\n",
)
UNSURE = row(
    "full:reduce-overhead",
    1.02,
    noise=0.1,
    first_call_s=None,
    start={"label": "cold", "refused": "called cold, but 2 of 3 graphs were cached"},
    break_even=None,
    break_even_steps=None,
    notes=("half of the samples spread over 12%: close other programs",),
)
SKIPPED = Measurement("regional", verdict="skipped", notes=("no repeated blocks",))
RUN = bench(
    [row("eager", 1.0), FULL, UNSURE, row("core:encode", 0.1, **WRONG), SKIPPED]
)


def text(run: Run, **settings: Any) -> str:
    return render(run, "text", **settings)


def blocks(shown: str) -> list[list[str]]:
    """The lines of a page, a list for each block."""
    return [block.split("\n") for block in shown.rstrip("\n").split("\n\n")]


def test_a_bench_run() -> None:
    head, chart, table, *details, unranked, decided, source, end = blocks(text(RUN))
    assert missing(head[0], "bench", "model.py:make", "cpu", "2.13.0+cpu") == []
    assert missing(" ".join(head[1:]), "95 ", "12 ") == []
    assert chart[0].split()[0] == "strategy" and chart[0].endswith(" 1.07 ms")
    assert chart[1:4] == [
        "eager                  1.00 ms    0.99-1.01  ████████████████▊   reference",
        "full                  0.500 ms  0.495-0.505  ████████▍           2.00x faster",
        "full:reduce-overhead   1.02 ms    0.97-1.07  ████████████████▒▒  "
        "not significant",
    ]
    assert "▒" in chart[4]
    assert table[1:] == [
        "eager                 reference          10.0 ms       -  512 MiB  same",
        "full                  2.00x (1.96-2.04)   12.0 s  1.20 s  512 MiB  rounding",
        "full:reduce-overhead  0.98x (0.88-1.08)        -       -  512 MiB  same",
    ]
    more = {name: [line.strip() for line in lines] for name, *lines in details}
    assert list(more) == ["eager", "full", "full:reduce-overhead"]
    assert "Decision" in decided[0] and missing(" ".join(decided), *KEPT) == []
    assert source == ["    model = torch.compile(model)"]
    assert "20260102-0304-model" in end[0]
    assert missing(unranked[1], "core:encode", "wrong", "call 0 differs") == []
    assert missing(unranked[2], "regional", "skipped", "no repeated blocks") == []
    assert missing(more["eager"][0], "120 samples", "0 outliers", "1.02 ms") == []
    assert missing(" ".join(more["full"]), *DETAILS) == []
    unsure = " ".join(more["full:reduce-overhead"])
    assert missing(unsure, "1.14 ms", UNSURE.start["refused"], *UNSURE.notes) == []


# What the page says of the decision, and of the strategy that wins.
KEPT = ("keep compiled", "full", "2.00x", "1.96", "2.04", "24")
DETAILS = (
    *("120 samples", "0.514 ms", "12346 tokens/s"),
    *("cold start 12.0 s", "hits 0, misses 3, bypasses 0"),
    *("warm start 1.20 s", "hits 3, misses 0, bypasses -", "2.00 s"),
    *("11.5 s", "dynamo 1.25", "AOTAutograd 0.800", "inductor 6.10"),
    *("after 24 steps", "graphs 3", "graph breaks 0", "recompiles 0"),
    *("12.3 us", "2.2 percent", "127 kernels", "83 percent"),
    *("1.2e-06", "float64", "1.1e-06"),
)


def test_a_run_that_measured_nothing_more_than_times_has_dashes() -> None:
    bare = bench(
        [Measurement("eager", median_ms=1.0), Measurement("full", median_ms=0.5)]
    )
    _, chart, table, _, decided = blocks(text(bare))
    assert [line.split() for line in chart[1:]] == [
        ["eager", "1.00", "ms", "-", "█" * 38, "-"],
        ["full", "0.500", "ms", "-", "█" * 19, "unverified"],
    ]
    assert [line.split() for line in table[1:]] == [
        ["eager", "reference", *"----"],
        ["full", "unverified", *"---", "unverified"],
    ]
    assert missing(decided[0], "not enough evidence", "full", "unverified") == []


def test_an_interrupted_run_says_so() -> None:
    ended = replace(RUN, ending="interrupted")
    for shown in (text(ended), render(ended, "md")):
        assert "(interrupted)" in shown
    assert "(interrupted)" not in text(RUN) + render(RUN, "md")


# -- bars ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10, 17, 40])
@pytest.mark.parametrize("ms", [0.004, 0.31, 0.5, 0.777, 1.0])
def test_bars_are_true_to_scale(ms: float, length: int) -> None:
    exact = Measurement("full", median_ms=ms, low_ms=ms, high_ms=ms)
    drawn = terminal.bar(exact, end=1.0, length=length)
    eighths = sum(8 - (ord(block) - 0x2588) for block in drawn)
    assert abs(eighths - ms * length * 8) <= 0.5


def test_bars_show_the_interval() -> None:
    wide = Measurement("full", median_ms=0.5, low_ms=0.41, high_ms=0.79)
    assert terminal.bar(wide, end=1.0, length=10) == "\u2588" * 4 + "\u2592" * 4
    end = Measurement("full", median_ms=0.9, low_ms=0.81, high_ms=1.0)
    assert terminal.bar(end, end=1.0, length=10) == "\u2588" * 8 + "\u2592" * 2


# -- variants --------------------------------------------------------------------------


def varied(key: str, *rows: tuple[Any, str, float], **more: Any) -> list[Measurement]:
    return [
        row(strategy, ms, variant={key: value}, seed=number, **more)
        for number, (value, strategy, ms) in enumerate(rows)
    ]


def section(rows: list[Measurement]) -> list[str]:
    """The lines of a section, without its title and the names of its columns."""
    (found,) = bench_sections.variants(bench(rows))
    return list(found.text(80))[2:]


def test_batch_sizes_stay_in_order() -> None:
    rows = varied("batch", (4, "eager", 1.0), (4, "full", 0.5), (2, "eager", 0.8))
    rows += varied("batch", (2, "full", 0.4), counts={"recompiles": 1}, eager_ms=0.8)
    assert section(rows) == [
        "4      eager      1.00 ms    0.99-1.01  reference              -  512 MiB",
        "4      full      0.500 ms  0.495-0.505  2.00x faster           0  512 MiB",
        "2      eager     0.800 ms  0.792-0.808  reference              -  512 MiB",
        "2      full      0.400 ms  0.396-0.404  2.00x faster           1  512 MiB",
    ]


def test_settings_are_compared_with_their_control() -> None:
    rows = varied(
        "config",
        ("control", "full", 0.5),
        ("max_autotune=True", "full", 0.4),
        ("epilogue_fusion=False", "full", 0.501),
    )
    assert [re.split("  +", line)[:4] for line in section(rows)] == [
        ["control", "0.500 ms", "0.495-0.505", "control"],
        ["max_autotune=True", "0.400 ms", "0.396-0.404", "1.25x faster"],
        ["epilogue_fusion=False", "0.501 ms", "0.496-0.506", "not significant"],
    ]
    assert all(line.endswith("  12.0 s  512 MiB") for line in section(rows))
    assert "| max_autotune=True | 0.400 ms" in render(bench(rows), "md")


def test_guards_say_what_is_no_longer_checked() -> None:
    (less,) = varied("guards", ("skip_guard_eval_unsafe", "full", 0.5))
    full = row("full", 0.5, guards={"lookup_us": 12.0})
    less = replace(less, guards={"lookup_us": 8.0, "not_checked": "all but versions"})
    first, _, second, risk = section([full, less])
    assert first.split() == ["baseline", "12.0", "baseline", "baseline"]
    unsafe = ["skip_guard_eval_unsafe", "8.00", "1.50x less", "not significant"]
    assert re.split("  +", second) == unsafe
    assert risk.startswith("   ") and "all but versions" in risk


def test_the_ladder_names_the_layer_that_breaks_it() -> None:
    rows = varied("backend", ("eager", "full", 1.0), ("aot_eager", "full", 1.1))
    failed = Measurement("full", {"backend": "inductor"}, error="boom: it broke")
    *table, note, why = section([*rows, failed])
    assert [re.split("  +", line) for line in table] == [
        ["eager", "works", "1.00 ms", "not significant", "12.0 s", "same"],
        ["aot_eager", "works", "1.10 ms", "1.10x slower", "12.0 s", "same"],
        ["inductor", "failed", "-", "-", "-", "-"],
    ]
    assert re.search(r"\beager and aot_eager\b.*\binductor\b", note)
    assert "boom: it broke" in why
    assert len(section(rows)) == len(rows)


def test_precision_and_compilation_are_told_apart() -> None:
    rows = varied(
        "dtype",
        ("float32", "eager", 1.0),
        ("float32", "full", 0.8),
        ("bfloat16", "eager", 0.5),
        ("bfloat16", "full", 0.25),
    )
    said = " ".join(section(rows)[len(rows) :])
    alone = r"bfloat16 .*?\b2\.0\dx faster.*? full .*?\b1\.2\dx faster"
    assert re.search(rf"eager float32.*?{alone}.*? [34]\.[09]\dx faster", said)


# -- rules of the page -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["full", "regional:max-autotune-no-cudagraphs:marks"])
@pytest.mark.parametrize("width", [80, 110])
def test_lines_keep_to_the_width(width: int, name: str) -> None:
    more = [row(name, 2.0), row(name, 2.0, variant={"batch": 4})]
    more.append(row(name, 2.0, variant={"config": "coordinate_descent_tuning=True"}))
    shown = text(bench([*RUN.measurements, *more]), width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert "1234" in shown and name in shown


def test_an_arm_that_is_wrong_is_in_no_table() -> None:
    for format in ("text", "md"):
        lines = render(RUN, format).splitlines()
        (said,) = (line for line in lines if "core:encode" in line)
        assert missing(said, "wrong", WRONG["numerics"]["why"]) == []


def test_differences_are_never_bare_percentages() -> None:
    measured = [replace(r, notes=()) for r in RUN.measurements]
    shown = text(replace(RUN, measurements=tuple(measured)))
    assert "%" not in shown


# -- Markdown --------------------------------------------------------------------------


def test_markdown_has_the_baseline_table() -> None:
    lines = render(RUN, "md").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| Strategy"))
    table = [line[2:-2].split(" | ") for line in lines[start : start + 5]]
    titles = ["Strategy", "Median step", "Interval", "Peak memory", "Vs eager"]
    assert table[0] == [*titles, "First call", "Numerics", "Verdict"]
    full = ["full", "0.500 ms", "0.495-0.505", "512 MiB", "2.00x (1.96-2.04)"]
    assert table[3] == [*full, "12.0 s", "rounding", "2.00x faster"]
    assert lines[-3:] == ["```python", "model = torch.compile(model)", "```"]


def test_markdown_cells_do_not_end_early() -> None:
    assert markdown.table(("a",), [("x | y\nz",)]).splitlines()[-1] == "| x \\| y z |"


# -- numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (1234.5, "1234"), (None, "-")],
)
def test_numbers_have_three_digits(value: float | None, shown: str) -> None:
    assert numbers.plain(value) == shown
    assert numbers.interval(1.0001, 1.0009) == "1.000-1.001"
    assert numbers.size(3 * 2**30) == "3.00 GiB"
