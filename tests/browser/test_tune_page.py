"""The page of a search in a real Chromium: the plot, the copying, small and dark."""

from __future__ import annotations

from pathlib import Path

import html_runs
import pytest
import tune_runs
from chromium import Browser
from test_html_page import PALE, opened

# Of each mark its name, and where its centre is in the plot, from 0 to 1.
MARKS = """[...document.querySelectorAll('.plot > svg > svg.mark')].map((mark) => {
  const room = document.querySelector('.plot > svg').getBoundingClientRect();
  const box = mark.querySelector('rect, path, circle').getBoundingClientRect();
  return [mark.querySelector('title').textContent.split(': step')[0],
    (box.x + box.width / 2 - room.x) / room.width,
    (box.y + box.height / 2 - room.y) / room.height];
})"""
# Words of the plot that lie over each other, or out of the window.
CLASHES = """(() => {
  const words = [...document.querySelectorAll('.plot > svg text')];
  const boxes = words.map((word) => [word.textContent, word.getBoundingClientRect()]);
  const found = boxes.filter(([, b]) => b.left < 0 || b.right > innerWidth);
  const clash = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 4 && b.top < a.bottom - 4;
  for (const [i, [, a]] of boxes.entries())
    for (const [name, b] of boxes.slice(i + 1)) if (clash(a, b)) found.push([name, b]);
  return found.map(([name]) => name);
})()"""


@pytest.mark.parametrize("width", [360, 1200])
def test_marks_stand_where_their_numbers_say(
    window: Browser, tmp_path: Path, width: int
) -> None:
    window.size(width)
    opened(window, tune_runs.tune(), tmp_path)
    places = {name: (x, y) for name, x, y in window.run(MARKS)}
    assert set(places) == {
        *("eager", "full", "regional", "regional+graph"),
        *("full:reduce-overhead", tune_runs.SWITCH),
    }
    assert all(0 < x < 1 and 0 < y < 1 for x, y in places.values())
    # The chosen one has the shortest step, so it is lowest; eager's first call is left.
    assert max(places, key=lambda name: places[name][1]) == "regional+graph"
    assert min(places, key=lambda name: places[name][0]) == "eager"
    assert window.run(CLASHES) == []
    assert window.run("document.documentElement.scrollWidth") == width
    assert window.log("browser") == []


def test_cells_of_the_table_look_alike(window: Browser, tmp_path: Path) -> None:
    opened(window, tune_runs.tune(), tmp_path)
    looks = (
        "[...document.querySelectorAll('.trials td')].map((e) => getComputedStyle(e))"
    )
    looks += ".map(({fontSize, color, display}) => `${fontSize} ${color} ${display}`)"
    assert len(set(window.run(looks))) == 1


def test_a_warm_trial_is_hollow(window: Browser, tmp_path: Path) -> None:
    opened(window, tune_runs.tune(), tmp_path)
    fill = "getComputedStyle(document.querySelector(arguments[0])).fill"
    ground = window.run("getComputedStyle(document.documentElement).backgroundColor")
    assert window.run(fill, ".plot .is-warm circle") == ground
    assert window.run(fill, ".plot .is-other:not(.is-warm) circle") != ground
    assert "hollow" in window.run("document.querySelector('.marks').innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_a_search_stand_out(
    window: Browser, tmp_path: Path, scheme: str
) -> None:
    window.prefer(scheme)
    opened(window, tune_runs.tune(), tmp_path)
    assert window.run(PALE) == []


def test_the_lines_can_be_copied(window: Browser, tmp_path: Path) -> None:
    window.cdp(
        "Browser.grantPermissions",
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
    )
    opened(window, tune_runs.tune(), tmp_path)
    window.run("document.querySelector('[data-copy=recipe-lines]').click()")
    assert window.run("getSelection().toString().trim()") == tune_runs.SOURCE
    said = "document.querySelector('[data-copy=recipe-lines]').textContent"
    assert window.run("navigator.clipboard.readText()").strip() == tune_runs.SOURCE
    assert window.run(said) == "Copied"


def test_without_scripts_the_plot_and_the_table_are_there(
    window: Browser, tmp_path: Path
) -> None:
    window.cdp("Emulation.setScriptExecutionDisabled", value=True)
    opened(window, tune_runs.tune(), tmp_path)
    seen = "[...document.querySelectorAll('.mark circle, .trials tbody tr, .copy')]"
    seen += ".filter((e) => e.checkVisibility()).length"
    told = window.cdp("Runtime.evaluate", expression=seen, returnByValue=True)
    # Four circles and the one of the legend twice, six rows, and no button.
    assert told["result"]["value"] == 4 + 2 + 6


def test_the_plot_has_a_name_and_words(window: Browser, tmp_path: Path) -> None:
    opened(window, tune_runs.tune(), tmp_path)
    tree = window.cdp("Accessibility.getFullAXTree")["nodes"]
    images = [
        node["name"]["value"]
        for node in tree
        if not node.get("ignored") and node["role"]["value"] in ("image", "img")
    ]
    assert len(images) == 1
    assert "step" in images[0] and "regional+graph" in images[0]


@pytest.mark.parametrize("width", [360, 1200])
def test_texts_of_a_search_stay_text(
    window: Browser, tmp_path: Path, width: int
) -> None:
    window.size(width)
    nasty = " ".join((*html_runs.MARKUP, html_runs.HIDDEN, "W" * 400))
    names = [f"{text} {nasty}" for text in html_runs.MARKUP]
    made = [
        tune_runs.trial(name, 1.0 + i, first_call_s=10.0**i, why=nasty, stage=nasty)
        for i, name in enumerate(names)
    ]
    run = tune_runs.tune(
        {"target": nasty, "measurements": ()},
        trials=[*made, tune_runs.failed(nasty, nasty, nasty)],
        skipped=[{"name": nasty, "why": nasty}],
        chosen=names[0],
        why=nasty,
        stopped=nasty,
        executor=nasty,
        recipe={"lines": nasty},
        recipe_file=nasty,
        probe={"bound": nasty, "bound_why": nasty, "blocks": {nasty: 2}},
    )
    opened(window, run, tmp_path)
    assert window.run("window.hacked") is None
    made_up = "document.querySelectorAll('img, b b, svg svg svg, [onload], [onerror]')"
    assert window.run(f"{made_up}.length") == 0
    assert window.run("document.documentElement.scrollWidth") == width
    assert window.log("browser") == []
