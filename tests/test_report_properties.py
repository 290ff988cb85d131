"""What holds for the report of any run: valid, escaped, complete, within its width."""

from __future__ import annotations

import base64
import cProfile
import difflib
import functools
import hashlib
import html
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import check_runs
import jsonschema
import pytest
from check_runs import DRAFTED, FULL, ITEM, NOWHERE, READ, SET, SIZE, check
from hypothesis import HealthCheck, Phase, given, settings
from markdown_it import MarkdownIt
from report_readers import ACTS, Page, sarif_run
from report_runs import RUNS

from torchproof.checking import rules
from torchproof.cli.commands import Check
from torchproof.cli.parser import parsed
from torchproof.fixing.edits import replacements
from torchproof.records import Baseline, CauseTree, Finding, Fix, Fixing, Run
from torchproof.records.fixes import Remedy, Replacement
from torchproof.records.run import Symptom
from torchproof.records.severity import SEVERITIES
from torchproof.report import finding_block, formats, render, run_words, sarif, text
from torchproof.report.finding_block import Findings

# GitLab's app/validators/json_schemas/codeclimate.json, and what its documents add.
GITLAB_ENTRY = {
    "type": "object",
    "required": ["description", "check_name", "fingerprint", "severity", "location"],
    "additionalProperties": False,
    "properties": {
        "description": {"type": "string", "minLength": 1},
        "check_name": {"type": "string", "minLength": 1},
        "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
        "location": {
            "type": "object",
            "required": ["path", "lines"],
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "lines": {
                    "type": "object",
                    "required": ["begin"],
                    "properties": {"begin": {"type": "integer", "minimum": 1}},
                },
            },
        },
    },
}
# A command as GitHub's runner takes it apart.
GITHUB = re.compile(r"::(\w+) ([^:]*)::(.*)")
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def element(text: str, start: str, name: str) -> str:
    return text.partition(start)[2].partition(f"</{name}>")[0]


def open_findings(run: Run) -> list[Finding]:
    return [finding for finding in run.findings if finding.status == "open"]


# -- each format -----------------------------------------------------------------------


def assert_sarif(run: Run, text: str) -> None:
    found = sarif_run(run)
    for result in found["results"]:
        assert result["locations"] and result["message"]["text"]
        rule = found["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]


def assert_gitlab(run: Run, text: str) -> None:
    entries = json.loads(text)
    jsonschema.validate(entries, {"type": "array", "items": GITLAB_ENTRY})
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    assert len(entries) == len(open_findings(run)) + len(run_words.failures(run))


def assert_github(run: Run, text: str) -> None:
    *commands, summary = text.removesuffix("\n").split("\n")
    assert all(GITHUB.fullmatch(line) for line in commands)
    assert not summary.lstrip().startswith("::")
    assert len(commands) == len(open_findings(run)) + len(run_words.failures(run))
    assert not ACTS.search(text)


def assert_agent(run: Run, text: str) -> None:
    assert not ACTS.search(text)
    if run.verb == "check":
        count = len(CauseTree(run.findings).causes)
        heads = re.findall(r"^(\d+)\. [A-Z]+\d+ ", text, re.MULTILINE)
        if all(re.fullmatch(r"[A-Z]+\d+", each.code) for each in run.findings):
            assert heads == [str(number + 1) for number in range(count)]
        assert len(re.findall(r"^verify: ", text, re.MULTILINE)) == count


def assert_markdown(run: Run, text: str) -> None:
    tokens = READER.parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    assert not {t.type for t in (*tokens, *inner)} & {"html_block", "html_inline"}
    assert not any(t.type == "link_open" and t.info != "auto" for t in inner)
    assert not ACTS.search(text)
    if run.verb == "check":
        boxes = re.findall(r"^- \[ \] ", text, re.MULTILINE)
        assert len(boxes) == sum(not each.cause_of for each in open_findings(run))
        split = [sum(f.severity == s for f in open_findings(run)) for s in SEVERITIES]
        total = " | ".join(map(str, (*split, sum(split))))
        assert re.search(rf"^\| \**Total\** \| {re.escape(total)} \|$", text, re.M)


def assert_html(run: Run, text: str) -> None:
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= known_tags()
    loads = {"img", "link", "iframe", "object", "embed", "audio", "video", "source"}
    for tag, values in page.tags:
        if tag in loads:
            assert (tag, values["rel"]) == ("link", "icon")
            assert str(values["href"]).startswith("data:")
        assert not [name for name in values if name.startswith("on")], tag
        assert "src" not in values and "style" not in values, tag
        assert tag != "a" or re.match(r"#|https://", str(values["href"]))
    assert not ACTS.search(page.text)
    listed = [v for tag, v in page.tags if tag == "details" and v.get("data-severity")]
    shown = Counter((v["data-severity"], v["data-status"]) for v in listed)
    if run.verb == "check":
        assert shown == Counter((f.severity, f.status) for f in run.findings)
        assert len({v["id"] for v in listed}) == len(run.findings)


def assert_json(run: Run, text: str) -> None:
    assert json.loads(text)["id"] == run.id


def assert_text(run: Run, text: str) -> None:
    assert not ACTS.search(text)


@functools.cache
def known_tags() -> set[str]:
    """The tags of pages whose texts have no markup."""
    pages = (run for name, run in RUNS.items() if name != "check-hostile")
    tags = {tag for run in pages for tag, _ in Page(render(run, "html")).tags}
    return tags | {"a", "code", "mark"}


VALID: dict[str, Callable[[Run, str], None]] = {
    "text": assert_text,
    "md": assert_markdown,
    "html": assert_html,
    "json": assert_json,
    "sarif": assert_sarif,
    "github": assert_github,
    "gitlab": assert_gitlab,
    "agent": assert_agent,
}


@pytest.mark.parametrize("format", VALID)
@pytest.mark.parametrize("name", RUNS)
def test_report_is_valid(name: str, format: str) -> None:
    text = render(RUNS[name], format)
    text.encode()
    VALID[format](RUNS[name], text)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "check-hostile"])
def test_json_is_the_whole_run(name: str) -> None:
    text = render(RUNS[name], "json")
    assert Run.from_json(json.loads(text)) == RUNS[name]


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
@given(check_runs.runs())
def test_report_of_any_check_is_valid(run: Run) -> None:
    for format, assert_valid in VALID.items():
        text = render(run, format)
        text.encode()  # it can be written to a file
        assert_valid(run, text)


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("name", [name for name in RUNS if name != "check-hostile"])
def test_text_keeps_to_its_width(name: str, width: int) -> None:
    # Source, commands, diffs and places of files are not wrapped.
    whole = re.compile(
        r" *\d* \| |\S+\.py:|[-+@ ]{4}|[-+@] |.*torchproof |- {2}[A-Z]{2}"
    )
    lines = render(RUNS[name], "text", width=width).splitlines()
    long = [line for line in lines if len(line) > width]
    assert not [line for line in long if not whole.match(line)]


SOURCE = ("for block in self.blocks", "def forward(self, tokens)", "SECRET_LINE")
SOURCE += ("HIDDEN_LINE", "if loss.item() > limit", "bool(loss > limit)")


@pytest.mark.parametrize("format", VALID)
def test_without_source_no_line_of_the_program_is_shown(format: str) -> None:
    shown = hidden = ""
    for name in ("check", "fix"):
        shown += render(RUNS[name], format)
        hidden += render(RUNS[name], format, source=False)
    assert not [line for line in SOURCE if line in hidden]
    if format in ("json", "html"):
        assert all(line in html.unescape(shown) for line in SOURCE)


# Each as a rule or torch writes it, with a line of the program that says PLANTED.
QUOTES = (
    "0/1: ___stack0 == -4.84 # if PLANTED.item() > 0: # m.py:7 in forward",
    'L[x] == 1  # File "m.py", line 7, in f return PLANTED',
    'mutated inputs. Found from : \n   File "m.py", line 7, in f\n  PLANTED.add_(1)',
    'Error: no from user code: File "m.py", line 7, in f PLANTED()',
    "in src/m.py:7 Net.forward: return f(PLANTED): 1",
    "in In [3], line 7 <lambda>: PLANTED",
    "called at src/m.py:7 main: net(PLANTED)",
)


LONG = "a sentence of an older version, " * 20
OLD = check(replace(ITEM, message=LONG, cause=LONG, fix=LONG))


@pytest.mark.parametrize("run", [*RUNS.values(), OLD, check(DRAFTED, SET)])
def test_a_finding_has_12_lines_unless_its_edit_is_longer(run: Run) -> None:
    for block in finding_block.everything(finding_block.blocks(run)):
        alone = Findings((replace(block, effects=()),))
        count = text.render([alone], width=100).count("\n")
        edit = block.diff.text.count("\n")
        assert count <= max(12, 8 + edit), block.finding.code


def test_a_diff_has_the_lines_of_the_file_and_of_its_result() -> None:
    old = "".join(f"line {number}\n" for number in range(1, 9))
    new = old.replace("line 2\n", "line 2\nmore\n").replace("line 5\nline 6\n", "5\n")
    changes = replacements("model.py", old, new)
    expected = difflib.unified_diff(
        old.splitlines(True), new.splitlines(True), "a/model.py", "b/model.py", n=0
    )
    assert finding_block.unified(changes) == "".join(expected)


@pytest.mark.parametrize("format", VALID)
@pytest.mark.parametrize("quote", QUOTES)
def test_without_source_no_quote_of_the_program_is_shown(
    format: str, quote: str
) -> None:
    edit = Replacement("m.py", 7, ("PLANTED",), ("PLANTED + 1",))
    found = replace(
        ITEM,
        evidence=(quote, "torch: a type: its reason"),
        symptom=Symptom("a type", quote),
        fix="write `PLANTED + 1` instead",
        remedy=Remedy(
            "edit", replacements=(edit,), title="write `PLANTED + 1` instead"
        ),
    )
    proposed = Fix("write `PLANTED + 1` instead", "safe", "verified", ("GB101",))
    run = replace(check(found), fixes=(proposed,))
    fixing = Fixing(1, 1, 1.0, {}, remaining=(found,))
    for each in (run, replace(run, verb="fix", fixing=fixing)):
        hidden = render(each, format, source=False)
        assert "PLANTED" not in hidden
        if format == "json":
            assert "PLANTED" in render(each, format)
            assert "torch: a type: its reason" in hidden


# -- HTML ------------------------------------------------------------------------------


def test_policy_allows_only_the_style_and_script_of_the_page() -> None:
    text = render(FULL, "html")
    found = re.search(r'Policy" content="([^"]*)"', text)
    assert found
    policy = html.unescape(found[1])
    for name in ("style", "script"):
        own = element(text, f"<{name}>", name)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "http" not in policy
    style = element(text, "<style>", "style")
    assert "url(" not in style and "@import" not in style
    assert len(text.encode()) < 150_000


def test_page_contains_its_run_as_data() -> None:
    run = RUNS["check-hostile"]
    start = '<script type="application/json" id="run-json">'
    data = element(render(run, "html"), start, "script")
    assert not set(data) & set("<>&") and data.isascii()
    assert json.loads(data)["id"] == run.id


# -- SARIF and annotations -------------------------------------------------------------


def test_every_rule_fits_what_github_requires() -> None:
    findings = [replace(ITEM, code=rule.code) for rule in rules.RULES]
    found = sarif_run(check(*findings))["tool"]["driver"]["rules"]
    assert [item["id"] for item in found] == [rule.code for rule in rules.RULES]
    for item in found:
        assert 0 < len(item["name"]) <= 255 and item["help"]["text"]
        for name in ("shortDescription", "fullDescription"):
            assert 0 < len(item[name]["text"]) <= 1024


@pytest.mark.parametrize("target", ["workload:gpt", "package.module:make"])
def test_sarif_of_a_target_without_file_is_a_notification(target: str) -> None:
    found = sarif_run(check(NOWHERE, target=target))
    (note,) = found["invocations"][0]["toolExecutionNotifications"]
    assert found["results"] == [] and note["associatedRule"]["id"] == "NC806"


@pytest.mark.parametrize(
    ("file", "uri", "relative"),
    [
        ("./a b/model#1.py", "a%20b/model%231.py", True),
        ("/env/lib/x.py", "file:///env/lib/x.py", False),
        ("m\u00f6del.py", "m%C3%B6del.py", True),
    ],
)
def test_file_becomes_a_uri(file: str, uri: str, relative: bool) -> None:
    found = sarif.artifact(file)
    assert found["uri"] == uri and ("uriBaseId" in found) is relative


@pytest.mark.parametrize(("text", "inserted"), [("a = 1\r\n", 1), ("a = '\x1b'\n", 0)])
def test_sarif_inserts_a_line_as_it_is_or_not_at_all(text: str, inserted: int) -> None:
    edit = Replacement("model.py", 64, ("a = 0\r\n",), (text,), 64)
    remedy = Remedy("edit", replacements=(edit,), title="write 1")
    [result] = sarif_run(check(replace(DRAFTED, remedy=remedy)))["results"]
    texts = [
        each["insertedContent"]["text"]
        for fix in result.get("fixes", ())
        for change in fix["artifactChanges"]
        for each in change["replacements"]
    ]
    assert texts == [text] * inserted


def test_sarif_keeps_the_worst_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sarif.MOST == 5000
    monkeypatch.setattr(sarif, "MOST", 20)
    low = [replace(READ, line=number + 1) for number in range(20)]
    found = sarif_run(check(*low, SIZE, ITEM))
    levels = [result["level"] for result in found["results"]]
    assert len(levels) == 20 and levels[:3] == ["error", "warning", "note"]
    assert len(found["invocations"][0]["toolExecutionNotifications"]) == 1


def test_gitlab_fingerprint_does_not_depend_on_the_line() -> None:
    def fingerprints(*findings: Finding) -> list[str]:
        text = render(check(*findings), "gitlab")
        return [entry["fingerprint"] for entry in json.loads(text)]

    one, second = fingerprints(ITEM, replace(ITEM, line=43))
    assert fingerprints(replace(ITEM, line=99)) == [one] != [second]


# -- agents ----------------------------------------------------------------------------


def test_commands_for_agents_are_ones_that_the_program_takes() -> None:
    commands = re.findall(r"^[^:]+: (torchproof .+)$", render(FULL, "agent"), re.M)
    assert len(commands) >= 6
    for command in commands:
        _, *words = shlex.split(command)
        options = parsed(words)
        if isinstance(options, Check) and "--select" in words:
            assert options.format == "agent" and options.fail_on == "low"


# -- size ------------------------------------------------------------------------------


def _run(size: int, *, chain: bool) -> Run:
    """Findings that follow from the first, or each from the one before it."""
    found = [replace(ITEM, function=f"Net.f{n}", context=()) for n in range(size)]
    findings = [found[0]]
    for number, each in enumerate(found[1:]):
        above = found[number] if chain else found[0]
        links = {"cause_of": (above.identity,), "certainty": "likely"}
        findings.append(replace(each, **links))  # type: ignore[arg-type]
    known = tuple(f.identity for f in found)
    fix = Fix("title", "safe", "verified", ("GB101",), findings=known)
    before = Baseline(id="earlier", identities=known)
    return check(*findings, baseline=before, fixes=(fix,))


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("format", formats.FORMATS)
def test_work_grows_with_the_number_of_findings(format: str, chain: bool) -> None:
    calls = []
    for size in (20, 80):
        profile = cProfile.Profile()
        assert profile.runcall(formats.render, _run(size, chain=chain), format)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[1] <= 5 * calls[0]
