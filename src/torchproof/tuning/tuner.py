"""`torchproof tune`: searches for the fastest safe strategy within a time budget.

Takes a target, an objective and a budget, returns the saved run with all trials and the
recipe. This module does not import torch: trials run in their own processes, as those
of `bench` do.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torchproof import measure
from torchproof.records import Run, SearchState, Trial, UserError, files, store
from torchproof.strategies import code_hash
from torchproof.strategies import parse as parse_strategy
from torchproof.targets import (
    Options,
    Target,
    assert_size,
    instead_of_script,
    own_file,
)
from torchproof.targets import parse as parse_target
from torchproof.tuning import outcome, space
from torchproof.tuning.candidate import Eager
from torchproof.tuning.executors import Executor, Local, Task
from torchproof.tuning.objectives import Objective
from torchproof.tuning.search import Effort, Search, SearchOptions, least_budget_s
from torchproof.tuning.space import Space
from torchproof.tuning.trial_store import SEARCHES, TrialStore, key_of

BUDGET_S = 600.0
LEAST_GAIN = 1.05  # times as fast as eager, as in bench


class Watcher(Protocol):
    """Receives the progress of a search: lines of text, and its state."""

    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None: ...


class NoWatcher:
    def __call__(self, text: str) -> None: ...

    def show(self, state: SearchState) -> None: ...


@dataclass(frozen=True)
class TuneOptions:
    """The options of a search; `names` limits it to these strategies."""

    objective: Objective = field(default_factory=Objective)
    budget_s: float = BUDGET_S
    effort: Effort = "normal"
    least: float = LEAST_GAIN
    names: tuple[str, ...] = ()
    resume: bool = False
    ray: str | None = None  # the address of a Ray cluster
    ranks: int | None = None  # processes that run each trial; None: one
    wrap: str | None = None  # what wraps the model on each of them


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
        chosen = tuning.run(Path(work), save_in.parent / SEARCHES)
    run = outcome.run_of(
        tuning.search, chosen, environment=tuning.environment, executor=tuning.where
    )
    run = replace(
        run,
        id=f"{started:%Y%m%d-%H%M}-{target.name}",
        target=target.text,
        command=command,
        started=started.isoformat(timespec="seconds"),
    )
    if chosen is None:
        return store.save(run, save_in)
    recipe = outcome.recipe_of(tuning.search, chosen, run, train=tuning.trains)
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
        quiet=True,  # output of strategies would garble the live table
        ranks=tune_options.ranks,
        wrap=tune_options.wrap,
    )


class _Tuning:
    """One search, from its first process to its result."""

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
        self.eager: Eager

    def run(self, folder: Path, searches: Path) -> Trial | None:
        """The winner; None if the search was interrupted."""
        plan = _plan(self.target, self.options, self.tune_options)
        task = Task(plan, folder, self._shares_caches)
        executor = self._executor(task)
        try:
            self.eager = self._probe(executor)
            return self._run_search(executor, self._open_store(searches))
        finally:
            self.where = executor.name  # nodes of a cluster may have joined
            executor.close()

    def _probe(self, executor: Executor) -> Eager:
        budget_s = self.tune_options.budget_s
        try:
            return executor.probe(budget_s)
        except UserError:
            if time.monotonic() - self.begun < budget_s:
                raise
            raise UserError(
                f"--budget {budget_s:g}s is too small for one trial: eager alone takes"
                " longer; give at least --budget"
                f" {least_budget_s(budget_s, budget_s, 0.0)}s"
            ) from None

    def _run_search(self, executor: Executor, saved_trials: TrialStore) -> Trial | None:
        chosen = None
        executor.cache_in(saved_trials.folder / "caches")
        self.search = self._search(executor, saved_trials)
        try:
            chosen = self.search.run(self._forms())
        except KeyboardInterrupt:
            pass  # without a winner the run is saved as interrupted, and can go on
        finally:
            executor.close()  # before the store deletes the compiled code
            saved_trials.close(finished=chosen is not None)
        return chosen

    search: Search  # set once eager is measured

    @property
    def _shares_caches(self) -> bool:
        return not self.tune_options.objective.needs_cold_starts

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.eager.environment

    @property
    def trains(self) -> bool:
        """Whether a step has a backward pass, by option or in the target."""
        return bool(self.environment.get("train") or self.options.train)

    def _executor(self, task: Task) -> Executor:
        if self.tune_options.ray is None:
            return Local(task, self.watcher)
        from torchproof.tuning.cluster import Cluster

        return Cluster(task, self.watcher, self.tune_options.ray)

    def _open_store(self, searches: Path) -> TrialStore:
        options = {k: v for k, v in vars(self.options).items() if k in _KEY_OPTIONS}
        about = {"target": self.target.text, "cold": not self._shares_caches}
        if self.tune_options.ranks is not None:
            about |= {"ranks": self.tune_options.ranks, "wrap": self.tune_options.wrap}
        key = key_of(about | options, self.environment, self._code())
        saved_trials = TrialStore(key, resume=self.tune_options.resume, root=searches)
        if self.tune_options.resume:
            self.watcher(saved_trials.resume_message())
        return saved_trials

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

    def _search(self, executor: Executor, saved_trials: TrialStore) -> Search:
        tune_options = self.tune_options
        terms = SearchOptions(
            objective=tune_options.objective,
            effort=tune_options.effort,
            least=tune_options.least,
            budget_s=tune_options.budget_s,
            deadline=self.begun + tune_options.budget_s,
            timeout_s=self.options.timeout_s,
            device=self.environment["device"],
            probe=self.eager.probe,
        )
        return Search(
            executor,
            terms,
            saved_trials,
            eager=self.eager.trial,
            show=self.watcher.show,
        )

    def _forms(self) -> Space:
        about = (
            self.eager.probe,
            self.environment["device"],
            self.tune_options.objective,
        )
        if self.tune_options.names:
            order = space.Order.of(*about)
            return space.named(self.tune_options.names, order, self.options.compile)
        return space.forms(*about, self.options.compile)


_KEY_OPTIONS = ("compile", "train", "device", "size")  # trials depend on these
