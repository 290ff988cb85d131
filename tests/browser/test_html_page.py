"""The HTML report in a real Chromium, opened from a file as people open it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import html_runs
import pytest
from chromium import Browser

from torchproof.records.run import Run
from torchproof.report import render

LISTED = "[...document.querySelectorAll('#list > details')]"
SHOWN = f"{LISTED}.filter(f => f.checkVisibility()).map(f => f.dataset.severity)"
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


def opened(window: Browser, run: Run, folder: Path, anchor: str = "") -> None:
    """The page of a run in the window; what was logged before is forgotten."""
    page = folder / "report.html"
    page.write_text(render(run, "html"), encoding="utf-8")
    for kind in ("browser", "performance"):
        window.log(kind)
    window.open(page, anchor)


def test_a_page_opens_without_errors_and_asks_for_nothing(
    window: Browser, tmp_path: Path
) -> None:
    opened(window, html_runs.check(), tmp_path)
    page = (tmp_path / "report.html").as_uri()
    events = [json.loads(e["message"])["message"] for e in window.log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page in asked
    assert [url for url in asked if url != page and not url.startswith("data:")] == []
    assert window.log("browser") == []


def test_the_verdict_is_the_first_thing_seen(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.check(), tmp_path)
    assert window.run("document.querySelector('main').firstElementChild.id") == (
        "verdict"
    )
    said = window.run("document.querySelector('h1').innerText")
    assert re.match(r"3\b", said.splitlines()[0]) and "180 us" in said
    box = window.run("document.querySelector('h1').getBoundingClientRect().bottom")
    assert box < 250


def test_filters_and_search_change_what_is_shown(
    window: Browser, tmp_path: Path
) -> None:
    opened(window, html_runs.check(), tmp_path)
    assert len(window.run(SHOWN)) == 5
    window.run("document.querySelector('input[value=high]').click()")
    assert window.run(SHOWN) == ["medium", "low"]
    assert "2 of 5" in window.run("count.textContent")
    window.run("document.getElementById('clear').click()")
    assert len(window.run(SHOWN)) == 5

    choose = """(() => {
      const select = document.querySelector(`select[name=${arguments[0]}]`);
      select.value = arguments[1];
      select.dispatchEvent(new Event("input", {bubbles: true}));
    }).apply(null, arguments)"""
    for name, value, number in (
        ("category", "Graph breaks", 3),
        ("status", "resolved", 1),
        ("kind", "hazard", 1),
        ("origin", "static", 1),
    ):
        window.run(choose, name, value)
        assert len(window.run(SHOWN)) == number, name
        window.run("document.getElementById('clear').click()")


def test_the_search_works_from_the_keyboard(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.check(), tmp_path)
    window.press("/", "attention", " ", "RC201")
    assert window.run("document.activeElement.id") == "search"
    assert window.run("search.value") == "attention RC201"
    assert window.run(SHOWN) == ["medium"]
    window.press("\ue00c")  # Escape
    assert len(window.run(SHOWN)) == 5
    # From the search the next stops are the filters, then the first finding opens.
    window.run(f"{LISTED}[1].querySelector('summary').focus()")
    window.press("\ue007")  # Enter
    assert window.run(f"{LISTED}[1].open") is True


def test_a_search_for_nothing_says_so(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.check(), tmp_path)
    window.run("search.focus()")
    window.press("no such words")
    assert window.run(SHOWN) == []
    assert re.search(r"\b5\b", window.run("count.textContent"))


def test_light_and_dark(window: Browser, tmp_path: Path) -> None:
    window.prefer("dark")
    opened(window, html_runs.check(), tmp_path)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = window.run(ground)
    assert window.run("theme.getAttribute('aria-pressed')") == "true"
    window.run("theme.click()")
    light = window.run(ground)
    assert light != dark
    assert window.run("theme.getAttribute('aria-pressed')") == "false"
    window.prefer("light")
    window.run("theme.click()")
    assert window.run(ground) == dark
    window.run("theme.click()")  # what a reader chose is remembered
    assert window.run(ground) == light
    assert window.log("browser") == []


def test_light_and_dark_need_no_storage(window: Browser, tmp_path: Path) -> None:
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw 'no'; }})"
    added = window.cdp("Page.addScriptToEvaluateOnNewDocument", source=refuse)
    try:
        opened(window, html_runs.check(), tmp_path)
        window.run("theme.click()")
        assert window.run("document.documentElement.dataset.theme") == "dark"
        assert len(window.run(SHOWN)) == 5
        assert window.log("browser") == []
    finally:
        window.cdp("Page.removeScriptToEvaluateOnNewDocument", **added)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out(window: Browser, tmp_path: Path, scheme: str) -> None:
    opened(window, html_runs.check(), tmp_path)
    window.run("document.documentElement.dataset.theme = arguments[0]", scheme)
    window.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert window.run(PALE) == []


@pytest.mark.parametrize(
    "name", ["check", pytest.param("hostile", marks=pytest.mark.slow)]
)
def test_nothing_is_wider_than_a_phone(
    window: Browser, tmp_path: Path, name: str
) -> None:
    window.size(360)
    opened(window, getattr(html_runs, name)(), tmp_path)
    window.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert window.run("document.documentElement.scrollWidth") == 360
    outside = window.run(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('pre, svg') &&"
        " !e.closest('.gone, .skip, thead') && e.checkVisibility() &&"
        " e.getBoundingClientRect().right > 361).map(e => e.className || e.tagName)"
    )
    assert outside == []


def test_what_others_wrote_stays_text(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.hostile(), tmp_path)
    window.run("more.click()")
    assert len(window.run(SHOWN)) == 140
    window.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert window.run("window.hacked") is None
    kinds = window.run("[...document.scripts].map(s => s.type)")
    assert kinds == ["text/html", "application/json", ""]
    made = "document.querySelectorAll('img, b b, svg svg svg, [onload], [onerror]')"
    assert window.run(f"{made}.length") == 0
    seen = window.run("document.body.innerText")
    for text in html_runs.MARKUP:
        assert text in seen
    assert "\u27e8U+202E\u27e9" in seen and "\u202e" not in seen
    hrefs = window.run("[...document.links].map(a => a.protocol)")
    assert set(hrefs) <= {"https:", "file:"}
    assert window.log("browser") == []


def test_a_script_that_gets_in_all_the_same_does_not_run(
    window: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "broken.html"
    text = render(html_runs.check(), "html")
    attack = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    page.write_text(text.replace("<footer>", f"<footer>{attack}"), encoding="utf-8")
    window.open(page)
    assert window.run("window.hacked") is None
    assert any("Content Security Policy" in e["message"] for e in window.log("browser"))
    assert len(window.run(SHOWN)) == 5  # while the page's own script does run


@pytest.mark.slow
def test_five_thousand_findings_can_be_worked_with(
    window: Browser, tmp_path: Path
) -> None:
    run = html_runs.many(5000)
    opened(window, run, tmp_path)
    spent = window.run(
        "performance.timing.loadEventEnd - performance.timing.fetchStart"
    )
    assert 0 < spent < 10_000, f"opened after {spent} ms"
    assert len(window.run(SHOWN)) == 100
    assert re.search(r"\b5000\b.*\b100\b", window.run("count.textContent"))

    timed = """(() => {
      const start = performance.now();
      search.value = arguments[0];
      search.dispatchEvent(new Event("input", {bubbles: true}));
      document.body.getBoundingClientRect();
      return performance.now() - start;
    }).apply(null, arguments)"""
    for word, number in (("layer4321.", 1), ("module_7.py", 100), ("", 100)):
        spent = window.run(timed, word)
        assert spent < 2000, f"{word!r} took {spent} ms"
        assert len(window.run(SHOWN)) == number
    window.run("document.querySelector('input[value=high]').click()")
    assert set(window.run(SHOWN)) == {"medium"}
    window.run("more.click()")
    assert len(window.run(SHOWN)) == 200


def test_a_link_to_a_finding_opens_it(window: Browser, tmp_path: Path) -> None:
    run = html_runs.many(350)
    last = [found for found in run.findings if found.severity == "low"][-1]
    opened(window, run, tmp_path, f"#f-{last.identity}")
    found = f"document.getElementById('f-{last.identity}')"
    assert window.run(f"{found}.open") is True
    top = window.run(f"{found}.getBoundingClientRect().top")
    assert 0 <= top < 800


def test_without_scripts_the_page_is_still_a_report(
    window: Browser, tmp_path: Path
) -> None:
    window.cdp("Emulation.setScriptExecutionDisabled", value=True)
    opened(window, html_runs.many(150), tmp_path)
    text = window.cdp(
        "Runtime.evaluate", expression="document.body.innerText", returnByValue=True
    )["result"]["value"]
    assert "100 of 150 findings" in text
    state = window.cdp(
        "Runtime.evaluate",
        expression="JSON.stringify([filters.checkVisibility(), theme.checkVisibility(),"
        f" {LISTED}.length])",
    )["result"]["value"]
    assert json.loads(state) == [False, False, 100]


def test_on_paper_nothing_stays_folded(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.check(), tmp_path)
    window.cdp("Emulation.setEmulatedMedia", media="print")
    assert window.run("document.querySelector('nav').checkVisibility()") is False
    assert window.run("filters.checkVisibility()") is False
    folded = f"{LISTED}[1]"
    assert window.run(f"{folded}.open") is False
    assert (
        window.run(f"{folded}.querySelector('.why').getBoundingClientRect().height")
        > 20
    )


def test_every_control_has_a_name(window: Browser, tmp_path: Path) -> None:
    opened(window, html_runs.check(), tmp_path)
    tree = window.cdp("Accessibility.getFullAXTree")["nodes"]
    roles = {
        "button",
        "searchbox",
        "checkbox",
        "combobox",
        "link",
        "DisclosureTriangle",
    }
    nameless = [
        node["role"]["value"]
        for node in tree
        if not node.get("ignored")
        and node["role"]["value"] in roles
        and not node.get("name", {}).get("value")
    ]
    found = {node["role"]["value"] for node in tree if not node.get("ignored")}
    assert {"searchbox", "checkbox", "combobox", "button", "link"} <= found
    assert nameless == []
