"""Runs targets as `torchproof check` does, with one `import torch` for them all."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import forked_commands
import pytest

from torchproof import __version__
from torchproof.observe import gathering
from torchproof.process import Followed
from torchproof.records.events import Observation
from torchproof.records.options import Options
from torchproof.targets.job import Job
from torchproof.targets.target import parse

# Programs run in folders of their own, and the fork server of Python 3.11 looks for
# what it preloads on PYTHONPATH alone: so both roots are there, absolute.
HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
# Inductor trusts what the processor says of its vector instructions. Otherwise it
# builds a library for each of them, 12 s with an empty cache, and loads it, 1 s in each
# process.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

Observe = Callable[..., Observation]
Answer = tuple[int, str, str]  # exit code, stdout, stderr
ObserveAll = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], list[Observation]]


def _use_default_signals() -> None:
    """Undoes what `nohup` and shells without job control let a program inherit.

    They ignore SIGHUP and SIGINT, and so would all processes that tests start. A signal
    with a handler has its default in a new program, so `nohup make test` survives.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts


_use_default_signals()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew", action="store_true", help="write tests/snapshots anew")


@pytest.fixture
def renew(request: pytest.FixtureRequest) -> bool:
    """Whether snapshots are written instead of compared."""
    return bool(request.config.getoption("--renew"))


@pytest.fixture
def snapshot(renew: bool) -> Callable[[str, str], None]:
    """`snapshot(name, text)` compares a text with the file tests/snapshots/name."""

    def compare(name: str, text: str) -> None:
        path = HERE / "snapshots" / name
        text = text.replace(__version__, "VERSION")
        if renew:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), "run the test with --renew"
        assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()

    return compare


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """`answer("show", "--list")` runs a command in this process, in an own folder."""
    from torchproof.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Answer:
        try:
            code = main([*words])
        except SystemExit as end:
            code = int(str(end.code))
        return code, *capfd.readouterr()

    return run


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    """A command that runs in the process of the tests changes what SIGTERM does."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def pytest_collection_finish() -> None:
    """After the imports of all test modules."""
    if "torch" in sys.modules:
        forked_commands.skip_guard_latency()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """`pytest -m gpu` needs torch alone: files that need more are skipped."""
    report = yield
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    if collector.config.option.markexpr.startswith("gpu") and call and call.excinfo:
        cause = call.excinfo.value.__cause__
        if isinstance(cause, ModuleNotFoundError):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 1, f"{cause.name} is missing")
    return report


@pytest.fixture(scope="session")
def observe_all(tmp_path_factory: pytest.TempPathFactory) -> ObserveAll:
    """`observe_all([(target, options), ...])`: one child, forked where torch is loaded,
    runs all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm_torch", "torchproof.observe.child"])

    def run(targets: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Observation]:
        folder = tmp_path_factory.mktemp("streams")
        streams = [folder / f"{number}.jsonl" for number in range(len(targets))]
        for stream in streams:
            stream.touch()
        parsed = [parse(target) for target, _ in targets]
        jobs = [
            json.dumps(Job.of(target, Options(**options)).to_json())
            for target, (_, options) in zip(parsed, targets, strict=True)
        ]
        process = context.Process(
            target=forked_commands.observed_in_turn,
            args=(jobs, list(map(str, streams))),
        )
        process.start()
        process.join(120 + 10 * len(jobs))
        if process.is_alive():
            process.kill()
            raise AssertionError(f"{targets[0][0]} did not end")
        written = (map(json.loads, each.read_text().splitlines()) for each in streams)
        return [
            gathering.gather(Followed([*entries], code=process.exitcode), target)
            for entries, target in zip(written, parsed, strict=True)
        ]

    return run


@pytest.fixture(scope="session")
def observe(observe_all: ObserveAll) -> Observe:
    """`observe(target, **options)`: as `observe_all`, one target."""

    def run(target: str, **options: object) -> Observation:
        [observation] = observe_all([(target, options)])
        return observation

    return run
