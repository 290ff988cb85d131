"""What pytest loads: marker `compile_budget`, fixture `compile_check`.

The rest of torchproof, and torch, are imported by the first test that uses one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchproof.checking import Budget, Watch
    from torchproof.records import Run

_MARK = "compile_budget"
_HELP = (
    f"{_MARK}(graph_breaks=N, recompiles=N, graphs=N, skipped_frames=N,"
    " cudagraph_skips=N, findings=N, high=N, medium=N, low=N): fail the test if what it"
    " compiles exceeds a limit, or if it compiles nothing (torchproof)"
)
_WATCH: pytest.StashKey[tuple[Budget, Watch]] = pytest.StashKey()
_CHECKED: pytest.StashKey[list[Run]] = pytest.StashKey()  # in other processes
_TOLD: pytest.StashKey[list[Run]] = pytest.StashKey()  # shown if the test fails


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """pytest rewrites each `assert` of a package that brings a plugin.

    Those of torchproof stay as they are: compilers trace some, and what production code
    runs is what tests should run. Without the private name, they are rewritten.
    """
    marked: set[str] = getattr(pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked.discard("torchproof")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """After marks that skip a test, before its fixtures, which may compile as well."""
    marks = [(mark.args, mark.kwargs) for mark in item.iter_markers(_MARK)]
    if not marks:
        return
    from torchproof.checking import budget
    from torchproof.records import UserError

    message = ""
    try:
        allowed = budget.Budget.of(reversed(marks))
    except UserError as error:
        message = str(error)
    if message:  # outside, or pytest would tell of two errors
        pytest.fail(message, pytrace=False)
    watch = budget.Watch(generate_code=allowed.generate_code)
    item.stash[_WATCH] = item.config.stash[_WATCH] = (allowed, watch)
    watch.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield  # a failure of the test's own goes past what follows
    if _WATCH in item.stash:
        _judge(item)
    return result


def _judge(item: pytest.Item) -> None:
    from torchproof.checking import compiled_anything

    allowed, watch = item.stash[_WATCH]
    runs = item.stash.get(_CHECKED, [])
    own = watch.run(item.nodeid)
    for run in [*runs, own] if compiled_anything(own) or not runs else runs:
        if message := allowed.broken_by(run):
            item.stash[_TOLD] = [run]
            where = "" if run is own else f" in {run.target}"
            pytest.fail(message + where, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if _WATCH in item.stash:
        item.stash[_WATCH][1].stop()
    keys: tuple[pytest.StashKey[Any], ...] = (_WATCH, _CHECKED, _TOLD)
    for key in keys:  # items live as long as the session
        if key in item.stash:
            del item.stash[key]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that is interrupted tears its last test down no more."""
    if _WATCH in session.config.stash:
        session.config.stash[_WATCH][1].stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" and report.failed and _TOLD in item.stash:
        from torchproof import report as reports

        for run in item.stash[_TOLD]:
            text = reports.render_findings(run)
            report.sections.append((f"torchproof, {run.target}", text))
    return report


@pytest.fixture
def compile_check(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """`compile_check(fn, calls, ...)`: compiles `fn`, makes the calls, returns a Run.

    Keyword arguments go to torch.compile; `train=True` adds a loss and backward(). In
    place of `fn`, the text of a target is checked in a process of its own.
    """
    item = request.node

    def check(
        fn: Callable[..., Any] | str, calls: Sequence[Any] = (), **options: Any
    ) -> Run:
        from torchproof.checking import budget
        from torchproof.records import UserError

        message = ""
        try:
            if isinstance(fn, str):
                folder = request.getfixturevalue("tmp_path")
                run = budget.check_target(fn, save_in=folder / "runs", **options)
                item.stash.setdefault(_CHECKED, []).append(run)
            else:
                name = getattr(fn, "__name__", type(fn).__name__)
                run = budget.check(fn, calls, name=name, **options)
        except UserError as error:
            message = str(error)
        if message:  # outside, or pytest would tell of two errors
            pytest.fail(f"compile_check: {message}", pytrace=False)
        item.stash.setdefault(_TOLD, []).append(run)
        return run

    return check
