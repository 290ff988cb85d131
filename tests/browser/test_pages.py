"""Pages in a real Chromium, opened from a file as people open them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import load_runs
import pytest
import report_runs
import tune_runs
from chromium import Browser
from report_runs import CHECK, RUNS

from torchproof.records.run import Run
from torchproof.report import render

LISTED = "[...document.querySelectorAll('#list > details')]"
SHOWN = f"{LISTED}.filter(f => f.checkVisibility()).map(f => f.dataset.severity)"
OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
# Words whose colour is too close to what is behind them.
PALE = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const pale = new Set();
  for (let node; (node = words.nextNode()); ) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility() || e.closest("script,svg")) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) pale.add(`${e.className || e.tagName} ${contrast.toFixed(2)}`);
  }
  return [...pale];
})()"""
# Words of a chart that lie over each other, or out of the window.
CLASHES = """(() => {
  const found = [];
  const clash = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 4 && b.top < a.bottom - 4;
  for (const chart of document.querySelectorAll('.plot svg, .strips td > svg')) {
    const boxes = [...chart.querySelectorAll(':scope > text')]
      .map((word) => [word.textContent, word.getBoundingClientRect()]);
    found.push(...boxes.filter(([, b]) => b.left < 0 || b.right > innerWidth));
    for (const [i, [, a]] of boxes.entries())
      for (const other of boxes.slice(i + 1))
        if (clash(a, other[1])) found.push(other);
  }
  return found.map(([name]) => name);
})()"""
FORGED = "document.querySelectorAll('img, b b, svg svg svg, [onload], [onerror]')"
KINDS = ("check", "check-hostile", "check-ranks", "bench-variants", "tune", "fix")
PAGES = {name: RUNS[name] for name in KINDS} | {"loadtest": load_runs.run()}


def opened(window: Browser, run: Run, folder: Path, anchor: str = "") -> None:
    """The page of a run in the window; what was logged before is forgotten."""
    page = folder / "report.html"
    page.write_text(render(run, "html"), encoding="utf-8")
    for kind in ("browser", "performance"):
        window.log(kind)
    window.open(page, anchor)


def nodes(window: Browser) -> list[tuple[str, str]]:
    """Role and name of everything that a screen reader reads."""
    tree: list[dict[str, Any]] = window.cdp("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored")
    ]


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_and_can_be_read(window: Browser, tmp_path: Path, name: str) -> None:
    opened(window, PAGES[name], tmp_path)
    window.run(OPEN_ALL)
    for width, scheme in ((360, "dark"), (1200, "light")):
        window.size(width)
        window.prefer(scheme)
        assert window.run("document.documentElement.scrollWidth") == width
        assert window.run(PALE) == []
        assert window.run(CLASHES) == []
    assert window.run("window.hacked") is None
    assert window.run(f"{FORGED}.length") == 0
    controls = ("button", "searchbox", "checkbox", "combobox", "link", "image", "img")
    assert not [role for role, text in nodes(window) if role in controls and not text]
    assert window.log("browser") == []


def test_page_asks_for_nothing(window: Browser, tmp_path: Path) -> None:
    opened(window, CHECK, tmp_path)
    page = (tmp_path / "report.html").as_uri()
    events = [json.loads(e["message"])["message"] for e in window.log("performance")]
    urls = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page in urls
    assert [url for url in urls if url != page and not url.startswith("data:")] == []


def test_script_that_gets_into_the_page_does_not_run(
    window: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "broken.html"
    attack = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    text = render(CHECK, "html").replace("<footer>", f"<footer>{attack}")
    page.write_text(text, encoding="utf-8")
    window.open(page)
    assert window.run("window.hacked") is None
    assert any("Content Security Policy" in e["message"] for e in window.log("browser"))
    assert window.run(SHOWN), "the page's own script runs"


def test_filters_and_search(window: Browser, tmp_path: Path) -> None:
    opened(window, CHECK, tmp_path)
    every = window.run(SHOWN)
    assert window.run("document.querySelector('main').firstElementChild.id") == (
        "verdict"
    )
    window.run("document.querySelector('input[value=high]').click()")
    assert window.run(SHOWN) == [each for each in every if each != "high"]
    window.run("document.getElementById('clear').click()")
    choose = """(() => {
      const select = document.querySelector(`select[name=${arguments[0]}]`);
      select.value = arguments[1];
      select.dispatchEvent(new Event("input", {bubbles: true}));
    }).apply(null, arguments)"""
    for field, value in (("status", "resolved"), ("kind", "hazard")):
        window.run(choose, field, value)
        wanted = [f for f in CHECK.findings if getattr(f, field) == value]
        assert len(window.run(SHOWN)) == len(wanted), field
        window.run("document.getElementById('clear').click()")
    window.press("/", "mask", " ", "GB102")
    assert window.run("document.activeElement.id") == "search"
    assert window.run(SHOWN) == ["low"]
    window.press("\ue00c")  # Escape
    assert window.run(SHOWN) == every
    window.run(f"{LISTED}[1].querySelector('summary').focus()")
    window.press("\ue007")  # Enter
    assert window.run(f"{LISTED}[1].open") is True


@pytest.mark.parametrize("storage", [True, False])
def test_theme_can_be_chosen(window: Browser, tmp_path: Path, storage: bool) -> None:
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw 'no'; }})"
    source = "0" if storage else refuse
    added = window.cdp("Page.addScriptToEvaluateOnNewDocument", source=source)
    try:
        window.prefer("dark")
        opened(window, CHECK, tmp_path)
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        dark = window.run(ground)
        window.run("theme.click()")
        assert window.run(ground) != dark
        assert window.run("theme.getAttribute('aria-pressed')") == "false"
        window.run("theme.click()")
        assert window.run(ground) == dark
        assert window.log("browser") == []
    finally:
        window.cdp("Page.removeScriptToEvaluateOnNewDocument", **added)


def test_many_findings_come_in_parts_and_a_link_opens_one(
    window: Browser, tmp_path: Path
) -> None:
    run = report_runs.many(210)
    last = [found for found in run.findings if found.severity == "low"][-1]
    opened(window, run, tmp_path, f"#f-{last.identity}")
    found = f"document.getElementById('f-{last.identity}')"
    assert window.run(f"{found}.open") is True
    assert 0 <= window.run(f"{found}.getBoundingClientRect().top") < 800
    opened(window, run, tmp_path)
    assert len(window.run(SHOWN)) == 100
    window.run("more.click()")
    assert len(window.run(SHOWN)) == 200


def test_one_finding_is_counted_as_one(window: Browser, tmp_path: Path) -> None:
    run = report_runs.many(1)
    opened(window, run, tmp_path)
    assert window.run("count.textContent") == f"{len(run.findings)} finding."


def test_without_scripts_the_page_is_still_a_report(
    window: Browser, tmp_path: Path
) -> None:
    window.cdp("Emulation.setScriptExecutionDisabled", value=True)
    opened(window, report_runs.many(150), tmp_path)
    state = window.cdp(
        "Runtime.evaluate",
        expression="JSON.stringify([filters.checkVisibility(), theme.checkVisibility(),"
        f" {LISTED}.length])",
    )["result"]["value"]
    assert json.loads(state) == [False, False, 100]


def test_on_paper_nothing_stays_folded(window: Browser, tmp_path: Path) -> None:
    opened(window, CHECK, tmp_path)
    window.cdp("Emulation.setEmulatedMedia", media="print")
    assert window.run("filters.checkVisibility()") is False
    why = f"{LISTED}[1].querySelector('.why').getBoundingClientRect().height"
    assert window.run(why) > 20


def test_lines_of_a_recipe_can_be_copied(window: Browser, tmp_path: Path) -> None:
    window.cdp(
        "Browser.grantPermissions",
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
    )
    opened(window, RUNS["tune"], tmp_path)
    window.run("document.querySelector('[data-copy=recipe-lines]').click()")
    assert window.run("getSelection().toString().trim()") == tune_runs.SOURCE
    assert window.run("navigator.clipboard.readText()").strip() == tune_runs.SOURCE
