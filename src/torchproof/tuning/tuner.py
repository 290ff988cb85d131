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
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torchproof import measure
from torchproof.records import Run, SearchState, Trial, UserError, files, store
from torchproof.records.mappings import JsonObject
from torchproof.records.options import TuneOptions
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
from torchproof.tuning.search import Search, too_small


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
            raise ExecutorLost(f"{tuning.lost}; --resume reuses the finished trials")
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


class _Tuning:
    """One search, from its first process to its result."""

    search: Search  # set once eager is measured
    key = ""  # trials of a search are valid for another one with the same key
    where = ""  # the executor, as reports name it
    lost: ExecutorLost | None = None  # ended the search

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

    def run(self, folder: Path, runs: Path) -> Trial | None:
        """The winner; None if the search was interrupted."""
        executor = self._executor(folder)
        try:
            eager = self._probe(executor)
            self.key = _key(self.target, self.options, self.tune_options, eager)
            earlier = self._earlier(runs) if self.tune_options.resume else {}
            self.search = Search(
                executor,
                self.tune_options,
                eager=eager,
                deadline=self.begun + self.tune_options.budget_s,
                timeout_s=self.options.timeout_s,
                earlier=earlier,
                show=self.watcher.show,
            )
            return self.search.run(self._candidates(eager))
        except (KeyboardInterrupt, ExecutorLost) as error:
            if not hasattr(self, "search"):
                raise  # nothing was tried yet
            self.lost = error if isinstance(error, ExecutorLost) else None
        finally:
            self.where = executor.name  # nodes of a cluster may have joined
            executor.close()
        return None

    def _executor(self, folder: Path) -> Executor:
        options, tune_options = self.options, self.tune_options
        plan = measure.Plan(
            self.target,
            (),
            train=options.train,
            device=options.device,
            size=options.size,
            timeout_s=options.timeout_s,
            quiet=True,  # the output of strategies is no progress
            ranks=tune_options.ranks,
            wrap=tune_options.wrap,
        )
        cold = tune_options.objective.needs_cold_starts
        task = Task(plan, folder, shares_caches=not cold)
        if tune_options.ray is None:
            return Local(task, self.watcher)
        from torchproof.tuning.cluster import Cluster

        return Cluster(task, self.watcher, tune_options.ray)

    def _probe(self, executor: Executor) -> Eager:
        budget_s = self.tune_options.budget_s
        try:
            return executor.probe(budget_s)
        except UserError:
            if time.monotonic() - self.begun < budget_s:
                raise
            raise too_small(budget_s, "eager alone takes longer") from None

    def _earlier(self, runs: Path) -> dict[str, Trial]:
        """The trials of the last search with this key, to go on with."""
        trials = earlier_trials(runs, self.target.text, self.key)
        if trials:
            self.watcher(f"resuming with {len(trials)} earlier trials")
        else:
            self.watcher(
                "nothing to resume: no earlier search of this target, code and machine"
            )
        return trials

    def _candidates(self, eager: Eager) -> list[Candidate]:
        tune_options, compile_with = self.tune_options, self.options.compile
        if tune_options.names:
            return candidates.named(tune_options.names, compile_with)
        device, objective = eager.environment.get("device"), tune_options.objective
        return candidates.candidates(eager.probe, device, objective, compile_with)


# -- what a search resumes -------------------------------------------------------------


def _key(
    target: Target, options: Options, tune_options: TuneOptions, eager: Eager
) -> str:
    """A hash of all that trials depend on."""
    environment = eager.environment
    about = {
        "target": target.text,
        "options": {name: getattr(options, name) for name in _KEY_OPTIONS},
        "cold": tune_options.objective.needs_cold_starts,
        "ranks": [tune_options.ranks, tune_options.wrap],
        "environment": [
            matching.environment_of(environment),
            environment.get("size"),
        ],
        "code": _code(target, eager),
    }
    text = json.dumps(about, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_KEY_OPTIONS = ("compile", "train", "device", "size")


def _code(target: Target, eager: Eager) -> JsonObject:
    """The model's fingerprint, and the hash of the file that builds it."""
    fingerprint, file = eager.probe.get("fingerprint"), own_file(target)
    try:
        digest = code_hash(file.read_bytes()) if file else None
    except (OSError, SyntaxError, ValueError):
        digest = None
    if fingerprint is None or digest is None:  # a key that matches no earlier one
        return {"unknown": f"{time.time_ns()}"}
    return {"model": fingerprint, "factory": digest}


def earlier_trials(runs: Path, target: str, key: str) -> dict[str, Trial]:
    """The trials of the latest saved search with this key, without eager's."""
    folders = store.listing(runs)
    folders = sorted(folders, key=lambda f: (f / "run.json").stat().st_mtime)
    for folder in reversed(folders):
        try:
            run = store.read(folder / "run.json")
        except UserError:
            continue  # damaged: the search tries its candidates again
        if run.target == target and run.tuning and run.tuning.key == key:
            trials = {t.name: t for t in run.tuning.trials if not t.is_eager}
            if trials:
                return trials
    return {}
