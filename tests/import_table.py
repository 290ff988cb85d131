"""Which rooms of the package may import which others.

A room is a module or a folder directly under src/torchproof. `MAY_IMPORT` says which
other rooms it may import; `MAY_IMPORT_LATE` which ones only inside a function or under
`if TYPE_CHECKING`, so that loading the room does not load them.
"""

MAY_IMPORT: dict[str, set[str]] = {
    "identity": set(),
    "version": set(),
    # Text of unknown origin, safe to print.
    "printable": set(),
    "records": {"printable"},
    # What JSON must look like, first of all that of a run.
    "schema": {"printable", "records"},
    # State of threads that a fork leaves behind.
    "forks": set(),
    # Files that a user names: opened without blocking.
    "files": set(),
    "modules": set(),
    "samples": set(),
    "lifeline": set(),
    "layout": {"lifeline"},
    # Names, folders of people and secrets, out of any text.
    "redaction": set(),
    "torch_private": {"forks"},
    # Where a step begins; production code loads it.
    "boundary": {"forks", "records", "torch_private"},
    "workloads": {"boundary", "torch_private"},
    "guards": set(),
    "places": {"files", "records", "stacks"},
    "stacks": {"records"},
    "store": {"files", "records", "schema"},
    "decisive": {"records", "guards"},
    "arguments": {"guards", "places", "records"},
    "tracelog": {
        *("records", "arguments", "decisive", "guards", "places", "schema", "stacks"),
    },
    "reads": {"records", "places"},
    "rules": {"records", "arguments", "places", "guards"},
    "anatomy": {"records", "places"},
    "verdict": {"records", "samples"},
    # What a rule says of itself is part of a report.
    "report": {"cachefolders", "packs", "printable", "records", "rules", "verdict"}
    | {"version"},
    # Where compiled code is cached, found without torch.
    "cachefolders": {"records"},
    # What a pack is on disk; production code loads it.
    "packs": {"files", "records", "schema"},
    # Source that is read and never run.
    "static": {"files", "records", "modules", "places"},
    # The experiment log: a Markdown file that people write in as well.
    "journal": {"files", "records", "report", "store", "verdict"},
    # What pytest loads; at first use the rest.
    "pytest_plugin": {"records"},
    # What a test compiles, watched in its process; pytest_plugin loads it at first use.
    "budget": {"api", "calls", "capture", "environment", "observe", "records"}
    | {"checking", "report", "rules", "streams", "target", "torch_private"},
    "target": {"records", "modules", "workloads"},
    # In the child process, with torch.
    "introspect": {"records"},
    "streams": {"lifeline"},
    "script": {"streams", "target"},
    "entry_calls": {"places"},
    "observe": {"records", "entry_calls", "introspect", "streams", "tracelog"},
    "numerics": {"records", "torch_private"},
    "calls": {"records", "introspect", "places", "target", "workloads"},
    "environment": set(),
    "gauges": {"samples"},
    "caches": set(),
    "ledger": {"caches", "torch_private"},
    "steps": {"introspect", "torch_private"},
    "alternation": {"target", "environment", "gauges", "ledger", "samples"}
    | {"lifeline", "script", "steps", "streams", "torch_private"},
    "guard_filters": {"strategies"},
    "strategies": {"forks", "records", "guards", "torch_private"},
    # The chosen strategy as a file, and the model it was chosen for.
    "recipe": {"environment", "files", "records", "schema", "strategies"},
    "child": {"records", "observe", "target", "calls", "environment"}
    | {"lifeline", "script", "streams"},
    "probing": {"calls", "gauges", "recipe", "strategies", "target"}
    | {"torch_private"},
    "arm": {"records", "places", "target", "calls", "environment", "gauges"}
    | {"probing"}
    | {"guard_filters"}
    | {"ledger"}
    | {"anatomy", "diagnosis", "numerics", "samples", "strategies", "torch_private"},
    "diagnosis": {"records", "target", "calls", "introspect", "numerics", "places"}
    | {"reads", "stacks", "torch_private"},
    "audit": {"records", "calls", "capture", "environment", "introspect", "places"}
    | {"lifeline", "script", "stacks", "streams", "target", "torch_private"},
    # What production code loads; its own file only records, the rest at first use.
    "tensors": {"forks"},
    "runtime": {"forks", "records", "recipe", "samples", "strategies", "tensors"}
    | {"torch_private"},
    "replay": {"forks", "records", "places", "recipe", "strategies", "tensors"}
    | {"torch_private"},
    # A deploy pack put to use by production code.
    "loading": {"environment", "forks", "modules", "packs", "recipe", "records"}
    | {"runtime", "schema", "tensors", "torch_private"},
    # Deploy packs: made in one child, tried in another.
    "deploy": {"calls", "capture", "environment", "introspect", "lifeline"}
    | {"loading", "numerics", "packs", "places", "recipe", "records", "redaction"}
    | {"runtime", "strategies", "streams", "target", "tensors", "torch_private"}
    | {"version"},
    # Starts the child and reads its stream, without torch.
    "capture": {"records", "places", "stacks", "streams", "target", "tracelog"},
    "measure": {"records", "layout", "samples", "strategies", "streams", "target"}
    | {"lifeline", "tracelog"},
    "questions": {"records", "guard_filters", "measure", "strategies"},
    # `check`: its parts, the source read beside them, and what an earlier run had.
    "checking": {"records", "audit", "capture", "measure", "places", "rules", "static"}
    | {"store", "strategies", "target"},
    # `tune`: which way to run a target is tried next, and which one is chosen.
    "tuning": {"records", "capture", "checking", "files", "measure", "recipe"}
    | {"lifeline", "schema", "store", "strategies", "target"},
    # Repro packs: a failure as a program that needs torch alone.
    "repro": {"calls", "capture", "environment", "lifeline", "modules"}
    | {"packs", "places", "records", "redaction", "script", "streams", "target"}
    | {"torch_private", "version"},
    # `pack`: which of the two kinds of pack is made, and of what.
    "packing": {"records", "capture", "checking", "store", "target"},
    "api": {"records", "store", "target", "capture", "checking", "measure"}
    | {"packing", "questions", "tuning"},
    "flags": {"records"},
    # What a search is doing, live.
    "board": {"printable", "report"},
    "output": {"board", "files", "packs", "printable", "records", "report"}
    | {"verdict"},
    "showing": {"cachefolders", "output", "packs", "records", "report"},
    "cli": {"flags", "printable", "records", "store", "rules", "report", "target"}
    | {"capture", "journal", "output", "packs", "questions", "showing", "verdict"}
    | {"version", "workloads"},
    "__init__": {"version"},
    "__main__": {"cli"},
}
MAY_IMPORT_LATE = {
    "records": {"identity"},
    "cli": {"api", "deploy", "repro"},
    "packing": {"deploy", "packs", "repro"},
    "pytest_plugin": {"budget", "report"},
    "__init__": {"api", "boundary", "loading", "records", "replay", "runtime"}
    | {"verdict"},
    "observe": {"torch_private"},
    "anatomy": {"torch_private"},
    "runtime": {"replay"},
}

# Rooms that never import torch, not even inside a function.
DESK: tuple[str, ...] = ("identity", "version", "records", "files", "modules")
DESK += ("arguments", "forks", "samples")
DESK += ("layout", "places", "guards", "stacks", "reads", "tracelog", "store", "rules")
DESK += ("verdict", "recipe", "report", "streams", "capture", "measure", "questions")
DESK += ("checking", "api", "tuning", "flags", "board", "output", "static", "journal")
DESK += ("cli", "printable", "schema")
DESK += ("cachefolders", "packing", "showing")
DESK += ("packs", "redaction", "decisive", "lifeline", "__init__", "__main__")
# Of those, what only a process of its own loads, where the extra `ray` is installed.
WITH_RAY = tuple(f"tuning/cluster/{name}.py" for name in ("bridge", "crew"))
