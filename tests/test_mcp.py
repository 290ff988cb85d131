"""`torchproof mcp` as a client of the official SDK meets it, over real stdio."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_for_ends

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp", reason="the extra `mcp` is not there")

from mcp import Client, StdioServerParameters, stdio_client  # noqa: E402

from torchproof.cli import mcp_server  # noqa: E402
from torchproof.cli.commands import COMMANDS, Check, Command  # noqa: E402
from torchproof.cli.parser import parsed  # noqa: E402
from torchproof.records import option_values  # noqa: E402
from torchproof.records.option import Option, options_of  # noqa: E402

SOURCE = Path(__file__).resolve().parent.parent / "src"
BREAKS = """\
import torch


@torch.compile
def step(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def make():
    return step, [(torch.ones(4),), (-torch.ones(4),)]
"""
WORKS = BREAKS.replace(
    """    if x.sum() > 0:
        return x + 1
    return x - 1
""",
    "    return torch.where(x.sum() > 0, x + 1, x - 1)\n",
)
# Hangs, with a child that has left the session.
HANGS = """\
import os, subprocess, sys, time

sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep, start_new_session=True)
with open("pids.part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("pids.part", "pids")
time.sleep(600)
"""


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[Client]:
    path = os.pathsep.join([str(SOURCE), *filter(None, sys.path)])
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "torchproof", "mcp", "--directory", str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
    )
    async with Client(stdio_client(server)) as client:
        yield client


def talk(folder: Path, script: Callable[[Client], Any]) -> Any:
    async def run() -> Any:
        async with connected(folder) as client:
            return await script(client)

    return anyio.run(run)


async def call(client: Client, tool: str, **arguments: Any) -> tuple[str, Any]:
    """The text and the structured answer; fails on an error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    return result.content[0].text, result.structured_content


def verification(text: str) -> dict[str, Any]:
    """The arguments of `check` that are the command of the first finding."""
    [command, *_] = [x for x in text.splitlines() if x.startswith("verify: ")]
    _, *words = shlex.split(command.removeprefix("verify: "))
    done = parsed(words)
    tool = {}
    for each in options_of(Check):
        if each.option.for_agents and each.flag in (None, *done.flags):
            value = getattr(done, each.key)
            tool[each.word] = ",".join(value) if isinstance(value, tuple) else value
    return tool


# A call that is refused, and the command line with the same error.
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("check", {"target": "no.py:make"}, ["check", "no.py:make", "-q"]),
    ("explain", {"code": "GB999"}, ["rule", "GB999"]),
    ("fix", {"target": "--write"}, []),
    ("check", {"target": "no.py:make", "fail-on": "low"}, []),
    (
        "check",
        {"target": "a.py:make", "timeout": 0},
        ["check", "a.py:make", "-q", "--timeout=0.0"],
    ),
]


def test_find_edit_and_verify_without_running_the_target(
    tmp_path: Path, answer: Any
) -> None:
    (tmp_path / "model.py").write_text(BREAKS)

    async def script(client: Client) -> list[str]:
        text, first = await call(client, "check", target="model.py", effort="static")
        assert "GB102 " in text and text.startswith("exit code: ")
        before = (tmp_path / "model.py").read_text()
        assert before == BREAKS  # nothing but the run is written
        assert sorted(os.listdir(tmp_path)) == [".torchproof", "model.py"]
        wanted = verification(text)
        (tmp_path / "model.py").write_text(WORKS)
        text, last = await call(client, "check", **wanted)
        assert last["exit_code"] == 0 and "verify: " not in text
        text, compared = await call(client, "compare", a=first["run"], b=last["run"])
        assert compared["exit_code"] == 0 and "gone: " in text
        text, _ = await call(client, "explain", code="gb102", run=first["run"])
        rule, found = text.split("\n[\n", 1)
        assert "## Why" in rule and json.loads("[" + found)[0]["code"] == "GB102"
        rest, _ = await call(client, "show", run=first["run"], start=3)
        assert rest.startswith("exit code: 0\nto fix: ")
        results = [await client.call_tool(tool, given) for tool, given, _ in REFUSED]
        assert all(result.is_error for result in results)
        return [result.content[0].text for result in results]

    errors = talk(tmp_path, script)
    for error, (*_, words) in zip(errors, REFUSED, strict=True):
        assert not words or answer(*words) == (2, "", f"{error}\n")
    assert errors[2] == "torchproof: error: '--write' is not a target, run or code"
    assert "fail-on" in errors[3]


def samples(option: Option) -> list[tuple[Any, Any]]:
    """Values of an argument as agents give them, and as the verb gets them."""
    if option.choices:
        return [(choice, choice) for choice in option.choices]
    if option.metavar == "KEY=VALUE,...":
        return [("dynamic=true", {"dynamic": True})]
    if option.read is option_values.seconds:
        return [(1, 1.0), (2.5, 2.5)]
    read = option.read or str
    return [(text, read(text)) for text in ("normal", "text", "0", "False")]


def test_each_given_argument_reaches_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    async def record(words: list[str], context: Any) -> mcp_server._Answer:
        commands.append(words)
        return mcp_server._Answer(0, "text")

    async def calls() -> list[tuple[str, Any]]:
        given = []
        for tool in await (server := mcp_server.server()).list_tools():
            options = options_of(COMMANDS.get(tool.name, Command))
            for each in options if "target" in tool.input_schema["properties"] else ():
                if not each.option.for_agents or each.word == "target":
                    continue
                switch = [(True, not each.default)]
                for value, read in switch if each.is_switch else samples(each.option):
                    call = {"target": "model.py:make", each.word: value}
                    result = await server.call_tool(tool.name, call)
                    assert not result.is_error, (tool.name, call)
                    given.append((each.key, read))
        call = {"target": "model.py", "arguments": ["normal", "--high"]}
        await server.call_tool("check", call)
        return [*given, ("script", ("normal", "--high"))]

    monkeypatch.setattr(mcp_server, "_run", record)
    given = anyio.run(calls)
    assert len(given) == len(commands) > 60
    for (name, value), words in zip(given, commands, strict=True):
        command: Any = parsed(words)
        assert command.target.startswith("model.py") and command.format == "agent"
        assert getattr(command, name) == value, words


async def hanging(client: Client, folder: Path, scope: Any) -> list[int]:
    """The processes of a check that hangs, once they run; then calls `scope`."""
    file = folder / "pids"

    async def wait() -> None:
        with anyio.fail_after(240):
            while not file.exists():
                await anyio.sleep(0.05)
        scope(tasks)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await client.call_tool("check", {"target": "hangs.py", "effort": "quick"})
    pids = [int(word) for word in file.read_text().split()]
    assert len(pids) == 2
    return pids


def test_cancelled_check_ends_with_all_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)

    async def script(client: Client) -> None:
        pids = await hanging(
            client, tmp_path, lambda tasks: tasks.cancel_scope.cancel()
        )
        await anyio.to_thread.run_sync(wait_for_ends, pids)
        text, _ = await call(client, "explain", code="GB101")  # it still serves
        assert "GB101" in text

    talk(tmp_path, script)


def kill_the_server(tasks: Any) -> None:
    for child in psutil.Process().children():
        if "mcp" in child.cmdline():
            child.send_signal(signal.SIGKILL)


def leave(tasks: Any) -> None:
    raise ConnectionAbortedError


@pytest.mark.slow
@pytest.mark.parametrize("end", [kill_the_server, leave])
def test_end_of_server_or_client_leaves_no_process(
    end: Callable[[Any], None], tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)

    async def script(client: Client) -> None:
        await hanging(client, tmp_path, end)

    with contextlib.suppress(Exception, BaseExceptionGroup):
        talk(tmp_path, script)
    wait_for_ends(map(int, (tmp_path / "pids").read_text().split()))


@pytest.mark.slow
def test_find_fix_and_verify_with_proofs(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(BREAKS.replace("@torch.compile\n", ""))
    reports: list[tuple[float, str]] = []

    async def progress(count: float, total: float | None, text: str | None) -> None:
        reports.append((count, text or ""))

    async def script(client: Client) -> None:
        quick = {"target": "model.py:make", "effort": "quick"}
        text, first = await call(client, "check", **quick)
        assert first["exit_code"] == 1 and "GB102 high graph_break model.py:5" in text
        result = await client.call_tool("fix", quick, progress_callback=progress)
        assert result.structured_content["exit_code"] == 1
        assert "torch.where" in result.content[0].text
        assert "torch.where" not in file.read_text()  # nobody asked for it
        run = result.structured_content["run"]
        _, written = await call(client, "fix", target=run, write=True)
        assert written["exit_code"] == 0 and "torch.where" in file.read_text()
        _, done = await call(client, "check", **verification(text))
        assert done["exit_code"] == 0

    talk(tmp_path, script)
    counts = [count for count, _ in reports]
    assert counts == sorted(set(counts)) and any("proof" in text for _, text in reports)


def test_every_argument_of_a_tool_is_described() -> None:
    tools = anyio.run(mcp_server.server().list_tools)
    names = [tool.name for tool in tools]
    assert names == ["check", "bench", "fix", "compare", "show", "explain"]
    for tool in tools:
        assert tool.description and len(tool.description) < 500
        assert not tool.input_schema["additionalProperties"]
        for name, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), f"{tool.name}: {name}"
    writes = {t.name for t in tools if "write" in t.input_schema["properties"]}
    assert (
        writes == {t.name for t in tools if t.annotations.destructive_hint} == {"fix"}
    )


def test_a_long_answer_is_cut_between_lines_and_can_be_continued() -> None:
    text = "".join(f"line {n} {'x' * 90}\n" for n in range(1, 500))
    lines: list[str] = []
    start = 1
    while True:
        part = mcp_server._cut(text, start, "the-run")
        assert len(part) <= mcp_server.MOST_CHARACTERS + 200
        *some, end = part.splitlines()
        if not end.startswith("cut: "):
            lines += [*some, end]
            break
        lines += some
        start = len(lines) + 1
        assert end.endswith(f'show(run="the-run", start={start})')
    assert lines == text.splitlines()


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = answer("mcp")
    assert (code, err.count("\n")) == (2, 1) and "pip install 'torchproof[mcp]'" in err
