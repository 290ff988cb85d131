"""`torchproof tune`: searches for the fastest safe strategy within a time budget.

Takes a target, an objective and a budget, returns the saved run with all trials and the
recipe. This module does not import torch: trials run in their own processes, as those
of `bench` do.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torchproof import measure
from torchproof.records import Run, SearchState, Trial, UserError, files, store
from torchproof.strategies import code_hash, matching
from torchproof.strategies import parse as parse_strategy
from torchproof.targets import (
    Options,
    Target,
    assert_size,
    instead_of_script,
    own_file,
)
from torchproof.targets import parse as parse_target
from torchproof.tuning import candidates, outcome
from torchproof.tuning.candidates import Candidate, Eager
from torchproof.tuning.executors import Executor, ExecutorLost, Local, Task
from torchproof.tuning.search import Search, TuneOptions, too_small


class Watcher(Protocol):
    """Receives the progress of a search: lines of text, and its state."""

    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None: ...


class NoWatcher:
    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None: ...


def tune(
    target: str | Target,
    options: Options | None = None,
    *,
    tune_options: TuneOptions | None = None,
    recipe_file: str | Path | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    command: str = "",
    save_in: Path = store.RUNS,
) -> Run:
    """Search for the fastest safe recipe; save the run and return it.

    With `recipe_file`, the recipe is written to that file as well.
    """
    target = parse_target(target) if isinstance(target, str) else target
    options, tune_options = options or Options(), tune_options or TuneOptions()
    _assert_tunable(target, options, tune_options)
    store.assert_writable(save_in)
    if recipe_file is not None:
        assert_free(Path(recipe_file), overwrite=overwrite)
    started = datetime.datetime.now()
    tuning = _Tuning(target, options, tune_options, watcher or NoWatcher())
    with tempfile.TemporaryDirectory(prefix="torchproof-") as work:
        chosen = tuning.run(Path(work), save_in)
    run = outcome.run_of(
        tuning.search,
        chosen,
        executor=tuning.where,
        key=tuning.key,
        id=f"{started:%Y%m%d-%H%M}-{target.name}",
        target=target.text,
        command=command,
        started=started.isoformat(timespec="seconds"),
    )
    if chosen is None:
        run = store.save(run, save_in)
        if tuning.lost is not None:
            raise tuning.lost
        return run
    recipe = outcome.recipe_of(tuning.search, chosen, run, train=options.train)
    file = None if recipe_file is None else str(recipe_file)
    assert run.tuning is not None
    tuned = replace(run.tuning, recipe=recipe.to_json(), recipe_file=file)
    run = store.save(replace(run, tuning=tuned), save_in)
    if file is not None:
        replace(recipe, run=run.id).write(file, overwrite=overwrite)
    return run


def assert_free(path: Path, *, overwrite: bool) -> None:
    """Fail before the search if the recipe could not be written after it."""
    try:
        is_taken = files.is_taken(path)
    except OSError as error:
        raise UserError(f"--recipe {path}: {error.strerror}") from None
    if os.path.isdir(path):
        raise UserError(f"--recipe {path} is a directory: name a file in it")
    if is_taken and not overwrite:
        raise UserError(
            f"{path} exists: replace it with --overwrite, or name another file with"
            " --recipe FILE"
        )
    folder = path.absolute().parent
    if not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise UserError(f"--recipe {path}: {folder} is not a writable directory")


def _assert_tunable(
    target: Target, options: Options, tune_options: TuneOptions
) -> None:
    if target.kind == "script":
        raise UserError(
            f"{target.text} is a script, and tune builds its target many times:"
            f" {instead_of_script(target, 'tune')}"
        )
    if not target.can_run_again:
        raise UserError(
            f"{target.text} is a {target.form}: tune builds its target many times, so"
            " it needs a workload or a factory"
        )
    assert_size(target, options.size)
    measure.assert_on_ranks(target, tune_options.ranks, tune_options.wrap)
    if tune_options.ranks is not None and tune_options.ray is not None:
        raise UserError("--ray runs trials of one process: leave out --ranks or --ray")
    if options.as_written:
        raise UserError(
            "--as-written leaves no strategy to choose: use torchproof bench"
        )
    named = [parse_strategy(name) for name in tune_options.names]
    if named and all(strategy.as_is for strategy in named):
        raise UserError("--strategies names only eager: name another strategy")


def _plan(target: Target, options: Options, tune_options: TuneOptions) -> measure.Plan:
    return measure.Plan(
        target,
        (),
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout_s,
        quiet=True,  # the output of strategies is no progress
        ranks=tune_options.ranks,
        wrap=tune_options.wrap,
    )


class _Tuning:
    """One search, from its first process to its result."""

    eager: Eager
    search: Search  # set once eager is measured

    def __init__(
        self,
        target: Target,
        options: Options,
        tune_options: TuneOptions,
        watcher: Watcher,
    ) -> None:
        self.target, self.options, self.tune_options = target, options, tune_options
        self.watcher = watcher
        self.begun = time.monotonic()
        self.where = ""  # the executor, as reports name it
        self.key = ""
        self.lost: ExecutorLost | None = None  # ended the search

    def run(self, folder: Path, runs: Path) -> Trial | None:
        """The winner; None if the search was interrupted."""
        plan = _plan(self.target, self.options, self.tune_options)
        executor = self._executor(Task(plan, folder, self._shares_caches))
        try:
            self.eager = self._probe(executor)
            self.key = self._key()
            self.search = self._search(executor, self._earlier(runs))
            return self.search.run(self._candidates())
        except (KeyboardInterrupt, ExecutorLost) as error:
            if not hasattr(self, "search"):
                raise  # nothing was tried yet
            self.lost = error if isinstance(error, ExecutorLost) else None
        finally:
            self.where = executor.name  # nodes of a cluster may have joined
            executor.close()
        return None

    def _probe(self, executor: Executor) -> Eager:
        budget_s = self.tune_options.budget_s
        try:
            return executor.probe(budget_s)
        except UserError:
            if time.monotonic() - self.begun < budget_s:
                raise
            raise too_small(budget_s, "eager alone takes longer") from None

    @property
    def _shares_caches(self) -> bool:
        return not self.tune_options.objective.needs_cold_starts

    def _executor(self, task: Task) -> Executor:
        if self.tune_options.ray is None:
            return Local(task, self.watcher)
        from torchproof.tuning.cluster import Cluster

        return Cluster(task, self.watcher, self.tune_options.ray)

    def _key(self) -> str:
        """Trials of a search are valid for another one with the same key."""
        options = {k: v for k, v in vars(self.options).items() if k in _KEY_OPTIONS}
        tune_options, environment = self.tune_options, self.eager.environment
        about = {
            "target": self.target.text,
            "options": options,
            "cold": not self._shares_caches,
            "ranks": [tune_options.ranks, tune_options.wrap],
            "environment": [
                matching.environment_of(environment),
                environment.get("size"),
            ],
            "code": self._code(),
        }
        text = json.dumps(about, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _earlier(self, runs: Path) -> dict[str, Trial]:
        """The trials of the last search with this key, to go on with."""
        if not self.tune_options.resume:
            return {}
        trials = earlier_trials(runs, self.target.text, self.key)
        if trials:
            self.watcher(f"resuming with {len(trials)} earlier trials")
        else:
            self.watcher(
                "nothing to resume: no earlier search of this target, code and machine"
            )
        return trials

    def _code(self) -> dict[str, Any]:
        """The model's fingerprint, and the hash of the file that builds it."""
        fingerprint = self.eager.probe.get("fingerprint")
        file = own_file(self.target)
        try:
            digest = code_hash(file.read_bytes()) if file else None
        except (OSError, SyntaxError, ValueError):
            digest = None
        if fingerprint is None or digest is None:  # a key that matches no earlier one
            return {"unknown": f"{time.time_ns()}"}
        return {"model": fingerprint, "factory": digest}

    def _search(self, executor: Executor, earlier: Mapping[str, Trial]) -> Search:
        return Search(
            executor,
            self.tune_options,
            eager=self.eager,
            deadline=self.begun + self.tune_options.budget_s,
            timeout_s=self.options.timeout_s,
            earlier=earlier,
            show=self.watcher.show,
        )

    def _candidates(self) -> list[Candidate]:
        compile_with = self.options.compile
        if self.tune_options.names:
            return candidates.named(self.tune_options.names, compile_with)
        eager, objective = self.eager, self.tune_options.objective
        device = eager.environment["device"]
        return candidates.candidates(eager.probe, device, objective, compile_with)


def earlier_trials(runs: Path, target: str, key: str) -> dict[str, Trial]:
    """The trials of the latest saved search with this key, without eager's."""
    folders = sorted(store.listing(runs), key=_saved_at, reverse=True)
    for folder in folders:
        try:
            run = store.read(folder / "run.json")
        except UserError:
            continue  # damaged: the search tries its candidates again
        if run.target == target and run.tuning and run.tuning.key == key:
            trials = {t.name: t for t in run.tuning.trials if not t.is_eager}
            if trials:
                return trials
    return {}


def _saved_at(folder: Path) -> float:
    return (folder / "run.json").stat().st_mtime


# Trials depend on these.
_KEY_OPTIONS = ("compile", "train", "device", "size")
