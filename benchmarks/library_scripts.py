"""Training scripts of library models: `check` against torch's own logs.

    python benchmarks/library_scripts.py [--write] [--only FAMILY,...] [--keep FOLDER]

Trains small models of transformers (benchmarks/library_families.py) with ragged
batches, labels, autocast, gradient accumulation and a logged loss, each as a factory
and as a script. `torchproof check --effort quick` runs both; the same script runs
plainly under TORCH_LOGS=graph_breaks,recompiles. All three must agree: see
`disagreements`. With `--write` the results go to
benchmarks/results/library_scripts.json, family by family: a run that was stopped
resumes, unless torch, transformers or the code of torchproof changed. Exit code 1 when
anything disagrees.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.library_families import FAMILIES, collate  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "library_scripts.json"
PLACED = ("graph_break", "skipped_frame", "compile_error")
AROUND = ("torch", "transformers")  # versions that the results hold for
COMPILER = ("torch", "functorch", "triton", "torchgen")

_LOADER = "DataLoader(samples, batch_size=3, collate_fn=collate)"
_BEGIN = """\
torch.manual_seed(0)
model, samples = FAMILY()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
_LOOP = f"""\
for step, batch in enumerate({_LOADER}):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = LOSS
    (loss / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
    print(step, loss.item())
"""
_TRAINER = f"""\
class Trainer:
    def __init__(self, model):
        self.model = torch.compile(model OPTIONS)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, number, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.model(**inputs).loss
        (loss / 2).backward()
        if number % 2:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


torch.manual_seed(0)
model, samples = FAMILY()
trainer = Trainer(model.train())
for number, batch in enumerate({_LOADER}):
    print(number, trainer.step(number, batch))
"""
_TOGETHER = """\
@torch.compile OPTIONS
def compute(model, batch):
    outputs = model(**batch)
    return outputs.loss / 2


"""
_MAIN = "def main():\n{}\n\nif __name__ == '__main__':\n    main()\n"


def _loop(compiling: str, loss: str) -> str:
    return f"{_BEGIN}{compiling}\n{_LOOP.replace('LOSS', loss)}"


# What a script may look like. OPTIONS stands where the plain run names a backend.
FORMS = {
    "model": _loop("compiled = torch.compile(model OPTIONS)", "compiled(**batch).loss"),
    "main": _MAIN.format(
        textwrap.indent(
            _loop("compiled = torch.compile(model OPTIONS)", "compiled(**batch).loss"),
            "    ",
        )
    ),
    "trainer": _TRAINER,
    "in place": _loop("model.compile( OPTIONS)", "model(**batch).loss"),
    "forward": _loop(
        "forward = torch.compile(model.forward OPTIONS)", "forward(**batch).loss"
    ),
    "partial": _loop(
        "call = functools.partial(torch.compile(model OPTIONS), return_dict=True)",
        "call(**batch).loss",
    ),
    "together": _TOGETHER + _loop("", "compute(model, batch)"),
}
REGIONS = {"together": "compute"}  # the script's own function that is compiled
HEAD = """\
import functools
from typing import Any

import torch
from torch.utils.data import DataLoader

Sample = dict[str, Any]


"""
FACTORY = f"""\
def make():
    torch.manual_seed(0)
    model, samples = FAMILY()
    return model.train(), list({_LOADER})


def before_call(fn, index):
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_enabled("cpu", True)
"""


def program(family: str, body: str, *, backend: str = "") -> str:
    """The source of one program; the backend does not change a line number."""
    parts = [inspect.getsource(collate), inspect.getsource(FAMILIES[family])]
    text = HEAD + "\n\n".join([*parts, body.replace("FAMILY", family)])
    option = f'backend="{backend}"' if backend else ""
    text = text.replace("@torch.compile OPTIONS", f"@torch.compile({option})")
    text = text.replace("( OPTIONS)", f"({option})")
    return text.replace(" OPTIONS", f", {option}" if option else "")


@dataclass(frozen=True)
class Recompile:
    """One recompile as torch logs it."""

    function: str
    guards: tuple[str, ...]


@dataclass
class Logged:
    """What torch's own log says of a run."""

    breaks: set[tuple[str, int]] = field(default_factory=set)
    recompiles: list[Recompile] = field(default_factory=list)


_LINE = re.compile(r"^V\d{4} \S+ \d+ \S+\] \[(?P<id>[^]]*)\] \[__(?P<log>\w+)\] ?")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_BREAK = re.compile(r"^Graph break .*in user code at (?P<file>.+):(?P<line>\d+)$")
_AGAIN = re.compile(r"^Recompiling function (?P<name>\S+) in (?P<file>.+):\d+$")
_GUARD = re.compile(r"^\s+- (?:\[?!?)[\d/_]+\]?: (?P<guard>.+)$")


def outside_torch(file: str) -> bool:
    """Whether a frame is neither torch's nor the standard library's."""
    installed = re.search(r"/(?:site|dist)-packages/([^/]+)", file)
    if installed:
        return installed[1].removesuffix(".py") not in COMPILER
    return not file.startswith("<") and not re.search(r"/lib/python3\.\d+/", file)


def read_log(text: str, script: str, region: str | None) -> Logged:
    """Places of breaks inside the compiled region, and recompiles with their guards."""
    logged = Logged()
    for record in _records(text):
        first = record[0]
        if match := _BREAK.match(first):
            traceback = filter(None, map(_FRAME.match, record))
            frames = [(f["file"], int(f["line"]), f["name"]) for f in traceback]
            # Torch prints no traceback where it met the same break before.
            frames = frames or [(match["file"], int(match["line"]), "")]
            if place := _place(frames, script, region):
                logged.breaks.add(place)
        elif match := _AGAIN.match(first):
            guards = [g["guard"] for line in record if (g := _GUARD.match(line))]
            logged.recompiles.append(Recompile(match["name"], tuple(guards)))
    return logged


def _records(text: str) -> Iterator[list[str]]:
    """The lines of each message: one begins where torch says what happened."""
    record: list[str] = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            said = line[match.end() :]
            if _BREAK.match(said) or _AGAIN.match(said):
                if record:
                    yield record
                record = []
            record.append(said)
    if record:
        yield record


def _place(
    frames: list[tuple[str, int, str]], script: str, region: str | None
) -> tuple[str, int] | None:
    """The script's frame in the region, else the innermost outside torch."""
    mine = [f for f in frames if f[0] == script and region and f[2] == region]
    others = [f for f in frames if outside_torch(f[0]) and f[0] != script]
    inside = mine or others
    return inside[-1][:2] if inside else None


def check(target: str, folder: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "torchproof", "check", target, "--effort", "quick"]
    done = subprocess.run(
        [*command, "--fail-on", "never", "--format", "json", "-q", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{target} in {folder}: {done.stderr}")
    run: dict[str, Any] = json.loads(done.stdout)
    run["findings"] = [f for f in run["findings"] if f["status"] == "open"]
    return run


def plain(script: Path, source: str) -> str:
    """Torch's own log of the script without torchproof; one that is kept is reused."""
    log = script.with_suffix(".log")
    if log.exists() and script.read_text() == source:
        return log.read_text()
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "TORCH_LOGS": "graph_breaks,recompiles"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{script}: {done.stderr[-2000:]}")
    log.write_text(done.stderr)
    return done.stderr


def places(run: dict[str, Any], folder: Path) -> set[tuple[str, int]]:
    """Where a run found breaks, skipped frames and errors."""
    return {
        (str(folder / f["file"]) if f["file"] else "-", f["line"])
        for f in run["findings"]
        if f["kind"] in PLACED and f["origin"] != "static"
    }


def disagreements(
    factory: set[tuple[str, int]], script: dict[str, Any], logged: Logged, text: str
) -> Iterator[str]:
    """What is wrong with the findings of a script, one line each."""
    here = Path(script["where"])
    said, wanted = places(script, here), logged.breaks
    if extra := said - wanted:
        yield f"script: torch logs no break at {_shown(extra)}"
    if missing := wanted - said:
        yield f"script: no finding where torch logs a break: {_shown(missing)}"
    if "compute" not in text and (other := factory ^ said):
        yield f"factory and script differ in {_shown(other)}"
    count = script["counts"]["recompiles"]
    if count != len(logged.recompiles):
        yield f"script: {count} recompiles, torch logs {len(logged.recompiles)}"
    found = [f for f in script["findings"] if f["kind"] == "recompile"]
    guards = [g for r in logged.recompiles for g in r.guards]
    for finding in found:
        yield from _recompile_faults(finding, guards, text)
    for finding in script["findings"]:
        if finding["function"] in ("<module>", "main") and finding["kind"] in PLACED:
            yield f"{finding['code']} blames {finding['function']}"


_MARK = re.compile(r"mark_\w+\((?P<what>.+?), \d+\)")


def _recompile_faults(
    finding: dict[str, Any], guards: list[str], text: str
) -> Iterator[str]:
    """A guard that torch does not log, or a fix that names what is not there."""
    quoted = [_lasting(e.split(": ", 1)[-1]) for e in finding["evidence"]]
    logged = {_lasting(guard) for guard in guards}
    if quoted and logged.isdisjoint(quoted):
        yield f"{finding['code']}: torch logs no guard like {quoted[0]!r}"
    if re.search(r"<module>|\bmain was recompiled", finding["message"]):
        yield f"{finding['code']} names the caller: {finding['message'][:80]}"
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    for match in _MARK.finditer(finding["fix"]):
        if unknown := set(re.findall(r"[A-Za-z_]\w*", match["what"])) - names:
            yield f"{finding['code']} names {sorted(unknown)}: not in the file"


def _lasting(guard: str) -> str:
    """The beginning of a guard, without the addresses of a run."""
    return re.sub(r"\d{9,}", "-", " ".join(guard.split()))[:45]


def _shown(several: set[tuple[str, int]]) -> str:
    return ", ".join(f"{Path(f).name}:{n}" for f, n in sorted(several, key=str))


@functools.cache
def factory_places(family: str, folder: Path) -> set[tuple[str, int]]:
    """Where the family's factory breaks, whatever form its scripts have."""
    (folder / "target.py").write_text(program(family, FACTORY))
    return places(check("target.py:make", folder, "--train"), folder)


def examine(family: str, form: str, above: Path) -> dict[str, Any]:
    """One family in one form, as a factory, as a script and under torch's logs."""
    begin = time.perf_counter()
    folder = above / form
    name, plainly = folder / "train.py", folder / "plain" / "train.py"
    folder.mkdir(parents=True, exist_ok=True)
    name.write_text(program(family, FORMS[form]))
    factory = factory_places(family, above)
    script = {**check("train.py", folder), "where": str(folder)}
    log = plain(plainly, program(family, FORMS[form], backend="eager"))
    logged = read_log(log, str(plainly), REGIONS.get(form))
    logged.breaks = {
        (str(name) if file == str(plainly) else file, line)
        for file, line in logged.breaks
    }
    kinds = Counter(f["kind"] for f in script["findings"])
    return {
        "form": form,
        "calls": script["counts"]["calls"],
        "places": sorted((Path(file).name, line) for file, line in logged.breaks),
        "recompiles": len(logged.recompiles),
        "kinds": dict(sorted(kinds.items())),
        "disagreements": list(disagreements(factory, script, logged, name.read_text())),
        "seconds": round(time.perf_counter() - begin, 1),
    }


@functools.cache
def state() -> str:
    """What the results hold for: the code of torchproof and the versions around it."""
    digest = hashlib.sha256()
    own = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("benchmarks/library_*.py")]
    for path in sorted(own):
        digest.update(path.read_bytes())
    for package in AROUND:
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:16]


def cases() -> list[tuple[str, str]]:
    """Every family trains a compiled model; one family in every other form as well."""
    first, *rest = FORMS
    several = [(family, first) for family in FAMILIES]
    return several + [("gpt2", form) for form in rest]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--only", default="", metavar="FAMILY,...")
    parser.add_argument("--form", choices=FORMS, help="only scripts of this form")
    parser.add_argument("--keep", type=Path, help="write the programs here")
    options = parser.parse_args()
    rows = kept_rows() if options.write else {}
    only = set(filter(None, options.only.split(",")))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        for family, form in cases():
            if (only and family not in only) or (options.form or form) != form:
                continue
            key = f"{family}, {form}"
            if key not in rows:
                rows[key] = examine(family, form, folder / family)
            if options.write:
                keep(rows)
            tell(key, rows[key])
    return int(any(row["disagreements"] for row in rows.values()))


def tell(key: str, row: dict[str, Any]) -> None:
    counts = {k: row[k] for k in ("recompiles", "kinds", "seconds")}
    at = [f"{file}:{line}" for file, line in row["places"]]
    print(key, at, counts, flush=True)
    for line in row["disagreements"]:
        print(f"  {line}", flush=True)


def kept_rows() -> dict[str, Any]:
    """The rows of an earlier run that still hold."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: dict[str, Any] = kept["rows"] if kept.get("state") == state() else {}
    return rows


def keep(rows: dict[str, Any]) -> None:
    kept: dict[str, Any] = {"command": "python benchmarks/library_scripts.py --write"}
    kept |= {name: importlib.metadata.version(name) for name in AROUND}
    kept |= {"state": state(), "rows": rows}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
