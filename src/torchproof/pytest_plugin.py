"""What pytest loads: markers and fixtures for budgets of compiling and of latency.

The rest of torchproof, and torch, are imported by the first test that uses one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from torchproof.checking import Budget, LatencyBudget, Watch
    from torchproof.records import Run

_MARK = "compile_budget"
_HELP = (
    f"{_MARK}(graph_breaks=N, recompiles=N, graphs=N, skipped_frames=N,"
    " cudagraph_skips=N, findings=N, high=N, medium=N, low=N): fail the test if what it"
    " compiles exceeds a limit, or if it compiles nothing (torchproof)"
)
_LATENCY_MARK = "latency_budget"
_LATENCY_HELP = (
    f"{_LATENCY_MARK}(p99_ms=MS, rate=R, requests=N): fail the test if what it serves"
    " with latency_check exceeds a limit, or if it serves nothing (torchproof)"
)
_WATCH: pytest.StashKey[tuple[Budget, Watch]] = pytest.StashKey()
_CHECKED: pytest.StashKey[list[Run]] = pytest.StashKey()  # in other processes
_LATENCY: pytest.StashKey[LatencyBudget] = pytest.StashKey()
_SERVED: pytest.StashKey[list[Run]] = pytest.StashKey()
_TOLD: pytest.StashKey[list[Run]] = pytest.StashKey()  # shown if the test fails

_Made = TypeVar("_Made")


def _or_fail(make: Callable[[], _Made], about: str = "") -> _Made:
    """The result of `make`; a `UserError` fails the test with its one line."""
    from torchproof.records import UserError

    try:
        return make()
    except UserError as error:
        message = f"{about}{error}"
    pytest.fail(message, pytrace=False)  # outside, or pytest would tell of two errors


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """pytest rewrites each `assert` of a package that brings a plugin.

    Those of torchproof stay as they are: compilers trace some, and what production code
    runs is what tests should run. Without the private name, they are rewritten.
    """
    marked: set[str] = getattr(pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked.discard("torchproof")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)
    config.addinivalue_line("markers", _LATENCY_HELP)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """After marks that skip a test, before its fixtures, which may compile as well."""
    if marks := [(mark.args, mark.kwargs) for mark in item.iter_markers(_LATENCY_MARK)]:
        from torchproof.checking import latency_budget

        limits = _or_fail(lambda: latency_budget.LatencyBudget.of(reversed(marks)))
        item.stash[_LATENCY] = limits
    if marks := [(mark.args, mark.kwargs) for mark in item.iter_markers(_MARK)]:
        from torchproof.checking import budget

        allowed = _or_fail(lambda: budget.Budget.of(reversed(marks)))
        watch = budget.Watch(generate_code=allowed.generate_code)
        item.stash[_WATCH] = item.config.stash[_WATCH] = (allowed, watch)
        watch.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield  # a failure of the test's own goes past what follows
    if _WATCH in item.stash:
        _judge(item)
    if _LATENCY in item.stash:
        _judge_latency(item)
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


def _judge_latency(item: pytest.Item) -> None:
    limits, runs = item.stash[_LATENCY], item.stash.get(_SERVED, [])
    if not runs:
        pytest.fail(limits.unused(), pytrace=False)
    for run in runs:
        if message := limits.broken_by(run):
            item.stash[_TOLD] = [run]
            pytest.fail(message, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if _WATCH in item.stash:
        item.stash[_WATCH][1].stop()
    own: tuple[pytest.StashKey[Any], ...] = (_WATCH, _CHECKED, _TOLD)
    for key in (*own, _LATENCY, _SERVED):  # items live as long as the session
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
            served = run.verb == "loadtest"
            text = (
                reports.render(run, "text") if served else reports.render_findings(run)
            )
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

        def make() -> Run:
            if isinstance(fn, str):
                folder = request.getfixturevalue("tmp_path") / "runs"
                return budget.check_target(fn, save_in=folder, **options)
            return budget.check(fn, calls, name=_name(fn), **options)

        run = _or_fail(make, "compile_check: ")
        if isinstance(fn, str):
            item.stash.setdefault(_CHECKED, []).append(run)
        item.stash.setdefault(_TOLD, []).append(run)
        return run

    return check


@pytest.fixture
def latency_check(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """`latency_check(fn, calls)`: serves `fn` under the load of the test's mark.

    Keyword arguments change the load: `rate=20, requests=500`. In place of `fn`, the
    text of a target is served in a process of its own, by the strategy `strategy`.
    """
    item = request.node

    def check(
        fn: Callable[..., Any] | str,
        calls: Sequence[Any] = (),
        *,
        strategy: str = "full",
        **load: Any,
    ) -> Run:
        from torchproof.checking import latency_budget

        limits = item.stash.get(_LATENCY, latency_budget.LatencyBudget())

        def make() -> Run:
            if isinstance(fn, str):
                options = limits.options(**load, strategy=strategy)
                return latency_budget.check_target(fn, options)
            return latency_budget.check(
                fn,
                calls,
                limits.options(**load),
                name=_name(fn),
                folder=request.getfixturevalue("tmp_path"),
            )

        run = _or_fail(make, "latency_check: ")
        item.stash.setdefault(_SERVED, []).append(run)
        return run

    return check


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))
