"""`check --watch`: checks again after each save, and prints what changed.

Each check runs in a process of its own (`watch_worker.py`), so that a save can cancel
it with everything it started, and no check sees modules or caches of another.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torchproof.cli import check_verb, exit_codes, output
from torchproof.cli.watched_files import WatchedFiles, syntax_error
from torchproof.process import Child, Ended, Message, spawn
from torchproof.records import Run, UserError, blame, store

if TYPE_CHECKING:
    from torchproof.api import SeenSource, Target

_WORKER = "torchproof.cli.watch_worker"
_GRACE_S = 10.0  # for a cancelled check to end its children and remove its files
_MOST_NAMED = 3  # saved files in one line
_CHECKS = 3  # in a row in which a file changes: the check itself writes it


class _Saved(Exception):
    """Files were saved while a check ran."""

    def __init__(self, files: list[str]) -> None:
        self.files = files


def watch(options: argparse.Namespace) -> int:
    """Checks until Ctrl-C; what cannot be watched is a `UserError`."""
    from torchproof import api

    target = api.parse(options.target, options.script)
    _assert_watchable(options, target)
    output.end_as_interrupted()
    try:
        _Watch(options, target).run()
    except KeyboardInterrupt:
        if sys.stderr.isatty():  # the shell's prompt begins a line
            print(file=sys.stderr)
        return 130


def _assert_watchable(options: argparse.Namespace, target: Target) -> None:
    from torchproof import api

    if target.kind in ("workload", "trace") or not _own_files(target):
        raise UserError(
            f"{target.text} has no source file of yours: --watch takes a script, a"
            " factory or, with --effort static, a folder"
        )
    if options.format != "text":
        raise UserError(f"--watch prints text: leave out --format {options.format}")
    single = {"-o": options.output, "--trace": options.trace}
    for flag, value in {**single, "--baseline": options.baseline}.items():
        if value is not None:
            raise UserError(
                f"{flag} is for a single check: with --watch, each check is compared"
                " with the one before, and printed"
            )
    ranks = check_verb.rank_options(options)
    launched = api.ExistingLaunch.current() is not None
    if launched or (ranks is not None and ranks.spans_nodes):
        raise UserError("--watch starts its ranks itself, all on this machine")


def _own_files(target: Target) -> list[str]:
    """The file of a target, or the Python files of a folder."""
    from torchproof import api

    if target.kind == "source":
        return [str(file) for file in api.files_of(target)]
    file = api.own_file(target)
    return [] if file is None else [str(file)]


class _Watch:
    """The checks of one target, and what the last complete one saw."""

    def __init__(self, options: argparse.Namespace, target: Target) -> None:
        self._options, self._target = options, target
        words = shlex.split(options.command)[1:]
        cut = words.index("--") if "--" in words else len(words)
        self._words = [w for w in words[:cut] if w != "--watch"] + words[cut:]
        self._before: tuple[Run, SeenSource] | None = None
        self._own = _own_files(target)
        self._known = self._own  # the files of the last check
        # In how many checks in a row each of them has changed.
        self._changes: Counter[str] = Counter()
        self._failed = False  # the last check
        self._is_first = True
        self._files = WatchedFiles(self._folder)

    def run(self) -> NoReturn:
        """Checks and waits for a save, in turn."""
        changed = self._own if self._target.kind != "source" else []
        while True:
            self._files.begin(self._known)
            broken = next(filter(None, map(syntax_error, changed)), None)
            if broken is not None:
                output.note(f"{blame.shown(broken)}; waiting for the next save")
            elif changed := self._check():
                self._changes.update(changed)
                self._note(f"{_named(changed)} saved during the check: checking anew")
                continue
            changed = self._files.wait()
            if not any(map(syntax_error, changed)):
                self._note(f"{time.strftime('%H:%M:%S')} {_named(changed)} saved")

    def _folder(self) -> Sequence[str]:
        """The files of a folder; of another target, those beside it after a failure.

        An import fails because of a file that does not exist yet.
        """
        if self._target.kind == "source":
            return _own_files(self._target)
        if not self._failed:
            return ()
        folder = Path(self._own[0]).resolve().parent
        return [*map(str, folder.glob("*.py")), *map(str, folder.glob("[!.]*/*.py"))]

    def _check(self) -> list[str]:
        """One check, shown when it ends; the files whose save cancelled it."""
        # Python would take cached bytecode for an edit within the second in which a
        # file was saved, if its size is the same.
        variables = {"PYTHONDONTWRITEBYTECODE": "1"}
        with spawn("-m", _WORKER, environment=variables) as child:
            try:
                answer = self._answer(child)
            except _Saved as saved:
                if run := _interrupted(child):
                    store.discard(run)
                return saved.files
            except KeyboardInterrupt:
                if run := _interrupted(child):
                    self._note(f"interrupted; what was seen: torchproof show {run}")
                raise
            except Ended as error:
                answer = {"error": f"the check {error}", "begun": True}
        self._end(answer)
        return []

    def _answer(self, child: Child) -> Message:
        """The last message of a check."""
        before = self._before[0].to_json() if self._before else None
        job = {"words": self._words, "baseline": before}
        answer = child.ask(job, tick=self._raise_if_saved)
        if "files" in answer:
            self._known = [*self._own, *answer["files"]]
            self._files.watch(self._known)
            answer = child.receive(tick=self._raise_if_saved)
        return answer

    def _raise_if_saved(self) -> None:
        if changed := [f for f in self._files.saved() if not self._is_written(f)]:
            raise _Saved(changed)

    def _accept_written(self) -> None:
        """Accepts changes of files that every check writes, or there is no end."""
        changed = self._files.changed()
        self._changes = Counter({f: self._changes[f] + 1 for f in changed})
        if written := list(filter(self._is_written, changed)):
            self._files.accept(written)
            self._note(
                f"{_named(written)} changed during each of the last {_CHECKS} checks:"
                " not checked again until the next save"
            )

    def _is_written(self, file: str) -> bool:
        return self._changes[file] >= _CHECKS

    def _end(self, answer: Message) -> None:
        """Shows a check that has ended, and keeps it to compare the next one with."""
        from torchproof import api

        first, self._is_first = self._is_first, False
        if "error" in answer:
            if first and not answer["begun"]:  # no save corrects the command line
                raise UserError(answer["error"])
            output.note(f"torchproof: error: {answer['error']}")
            self._failed = True
        else:
            run = Run.from_json(answer["run"])
            seen = api.SeenSource.from_json(answer["seen"])
            self._known = [*self._known, *seen.texts]
            self._failed = bool(run.error) or run.ending != "finished"
            self._show(run)
            if not self._failed:
                self._before = run, seen
        self._accept_written()
        self._files.watch(self._known)
        self._note(f"watching {_count(len(self._files))}; Ctrl-C ends")

    def _show(self, run: Run) -> None:
        """The report of the first check, and of the others what changed.

        A check that did not complete cannot tell what is resolved.
        """
        from torchproof import api, report

        options = self._options
        if self._before is None or self._failed:
            output.show(run, options)
        else:
            before, seen = self._before
            text = report.render_changes(
                run,
                api.changes_since(before, run, seen),
                colour=output.coloured(options),
                width=output.width(options),
                verbose=options.verbose,
                source=not options.no_source,
            )
            output.write(text, options)
        sys.stdout.flush()
        if exit_codes.failed_code(run, options) is None:
            exit_codes.incomplete_code(run)

    def _note(self, text: str) -> None:
        if not self._options.quiet:
            output.note(text)


def _interrupted(child: Child) -> str | None:
    """Ends a check as Ctrl-C does; the id of the run that it saved, if it did."""
    try:
        os.kill(child.pid, signal.SIGTERM)
        while True:
            answer = child.receive(_GRACE_S)
            if "files" not in answer:
                return answer["run"]["id"] if "run" in answer else None
    except (Ended, TimeoutError, ProcessLookupError):
        return None


def _named(files: Sequence[str]) -> str:
    """`model.py, layers.py and 2 more`."""
    names = [blame.shown(file) for file in files[:_MOST_NAMED]]
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return ", ".join(names) + more


def _count(files: int) -> str:
    return f"{files} file{'' if files == 1 else 's'}"
