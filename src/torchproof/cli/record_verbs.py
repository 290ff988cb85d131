"""The verbs on saved runs: `compare`, `show`, `log`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.cli import exit_codes, output
from torchproof.cli.commands import Compare, Log, Show
from torchproof.records import Run, UserError, document, line, store, unbroken


def compare(options: Compare) -> int:
    from torchproof import api, report

    output.assert_writable(options.output)
    limits = api.Thresholds.parse(options.threshold)
    comparison = api.compare(store.load(options.a), store.load(options.b), limits)
    columns = output.width(options)
    text = report.render_comparison(comparison, options.format, width=columns)
    output.write(text, options)
    return exit_codes.comparison_code(comparison)


def show(options: Show) -> int:
    from torchproof import api

    output.assert_writable(options.output)
    if options.caches or options.clear:
        return _show_caches(options)
    if options.list:
        return _list_runs(options)
    if options.run and api.is_pack(options.run):
        return _show_pack(options.run, options)
    output.show(store.load(options.run), options)
    return 0


def _show_pack(pack: str, options: Show) -> int:
    """Prints a pack without running any of it; exit code 1 if it is damaged."""
    from torchproof import api
    from torchproof.report import pack as pack_report

    if options.format not in pack_report.FORMATS:
        formats = ", ".join(pack_report.FORMATS)
        raise UserError(f"--format {options.format}: a pack is shown as {formats}")
    inspection = api.inspect(pack, api.read_key())
    width = output.width(options)
    output.write(pack_report.render(inspection, options.format, width=width), options)
    return int(not inspection.is_intact)


def _show_caches(options: Show) -> int:
    """Lists the compile caches, after deleting what `--clear` names."""
    from torchproof.report import cache_folders

    if not options.caches:
        raise UserError("--clear needs --caches")
    if options.format not in ("text", "json"):
        raise UserError(f"--format {options.format}: caches are shown as text or json")
    if options.run is not None or options.list:
        raise UserError("--caches cannot be combined with a run or --list")
    folders = cache_folders.listing()
    cleared = cache_folders.cleared(folders, options.clear) if options.clear else None
    output.write(cache_folders.render(folders, cleared, options.format), options)
    return 0


def _list_runs(options: Show) -> int:
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for run in _saved(notes):
        findings = run.fixing.remaining if run.fixing else run.findings
        count = sum(f.status == "open" for f in findings)
        row = {"id": run.id, "verb": run.verb, "target": run.target}
        rows.append(row | {"ending": run.ending, "open_findings": count})
    form = "{id}  {verb} {target}  {ending}, open findings {open_findings}"
    output.rows(rows, lambda row: unbroken(form.format(**row)), options)
    for note in notes:
        output.note(note)
    return 0


def _saved(notes: list[str]) -> Iterator[Run]:
    """The saved runs. One that cannot be read is noted and skipped."""
    for folder in store.listing():
        try:
            yield store.read(folder / "run.json")
        except UserError as error:
            notes.append(f"torchproof: {error}")


def log(options: Log) -> int:
    from torchproof.report import log as experiment_log

    for flag in options.flags:  # of another action, without effect
        if flag not in ("--file", *Log.ACTIONS[options.action]):
            action = f"log {options.action}" if options.action else "log"
            raise UserError(f"torchproof {action} does not take {flag}")
    file, what, again = Path(options.file), options.what, options.again
    notes: list[str] = []
    if options.action is None:
        return _print_log(file, options)
    if options.action == "add":
        added = experiment_log.add(
            file, store.load(what), came_from=what or "", again=again
        )
    elif options.action == "plan":
        expect, target = options.expect, options.target
        added = experiment_log.plan(file, what or "", expect=expect, target=target)
    else:
        added = experiment_log.retrospective(
            file, [*_saved(notes)], name=what, again=again
        )
    print(line(f"{file}:{added.line}: {added.kind} {added.id}"))
    if added.note:
        notes.append(f"torchproof: {file}: {added.note}")
    for note in notes:
        output.note(note)
    return 0


def _print_log(file: Path, options: Log) -> int:
    from torchproof.report import log as experiment_log

    text = experiment_log.read(file)
    if text is None:
        print(
            f"There is no {line(file)} here. Start one with\n"
            '  torchproof log plan "what you will try"\n'
            "  torchproof log add RUN"
        )
    elif options.list:
        for entry in experiment_log.entries(text):
            text = f"{entry.id or '-'}  {entry.date}  {entry.kind}: {entry.title}"
            print(unbroken(text))
    else:
        sys.stdout.write(document(text))
    return 0
