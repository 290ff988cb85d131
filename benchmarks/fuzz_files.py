"""Every file format that torchproof reads, mutated at random, and what it makes of it.

    python -m benchmarks.fuzz_files [--cases 500] [--seed 0] [--only FORMAT] [--write]

A case is a format and a number: it writes files, some of them damaged, and hands them
to the command line or to the function that reads them. A finding is: an exception that
is not a documented one, an exit code other than 0, 1 and 2, a refusal of another form
than one line on stderr, a control character in the output, JSON that is none, a file
changed that is not to be changed, or more than `LIMIT_S` seconds. Exit code 1 if there
is one. Numbers make a case again: `--only FORMAT --case NUMBER`.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import itertools
import json
import logging
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fuzz_documents import (
    A_TRIAL,
    CODINGS,
    EXPRESSIONS,
    LOG,
    SOURCE,
    TRACE,
    run_documents,
)
from benchmarks.fuzz_mutations import (
    HOSTILE,
    changed,
    json_file,
    spoilt,
    written,
)
from benchmarks.fuzz_oracle import (
    LIMIT_S,
    UNSEEN,
    Case,
    Finding,
    Tally,
    Wrong,
    judge,
    time_limit,
)

HERE = Path(__file__).resolve().parent
# -- formats ---------------------------------------------------------------------------


def shows(path: str) -> list[list[str]]:
    formats = ("text", "json", "md", "html", "sarif", "github")
    return [
        *(["show", path, "--format", name] for name in formats),
        ["show", path, "-v"],
        ["show", path, "--no-source"],
    ]


def run_json(case: Case) -> None:
    document = case.chance.choice(run_documents())
    sound = str(case.write("sound.json", written(document).encode()))
    file = str(case.write("run.json", json_file(document, case.chance)))
    case.write("model.py", b"import torch\nx = 1\n")
    case.pick(shows(file), 2)
    case.pick([["compare", file, sound], ["compare", sound, file]], 1)
    static = ["check", "model.py", "--effort", "static", "-q", "--baseline", file]
    log = str(case.folder / "log.md")
    case.pick([static, ["pack", file, "--for", "repro", "-q", "--dest", "out"]], 1)
    case.pick(
        [
            ["compare", file, file, "--format", "json"],
            ["compare", sound, file, "--format", "md"],
            ["log", "add", file, "--file", log],
        ],
        1,
    )


def run_folder(case: Case) -> None:
    """Saved runs, some of them damaged, in a folder of their own."""
    runs = Path(".torchproof/runs")
    for number in range(3):
        document = case.chance.choice(run_documents())
        name = case.chance.choice((f"2026-{number}", "\x1b[1m", "a\nb", "x" * 200))
        case.write(str(runs / name / "run.json"), json_file(document, case.chance))
    case.write(str(runs / "good" / "run.json"), written(run_documents()[0]).encode())
    odd = case.folder / runs / "odd"
    odd.mkdir()
    kind = case.chance.randrange(4)
    if kind == 0:
        (odd / "run.json").mkdir()
    elif kind == 1:
        (odd / "run.json").symlink_to(odd / "run.json")
    elif kind == 2:
        os.mkfifo(odd / "run.json")
    commands = [["show", "--list"], ["show", "2026"], ["show", "odd"], ["show"]]
    commands += [
        ["show", str(odd / "run.json")],
        ["show", "--list", "--format", "json"],
    ]
    commands += [["compare", "good", "2026-0"], ["log", "retrospective"]]
    case.pick(commands, 3)


def trace_folder(case: Case) -> None:
    lines = []
    for number, (metadata, payload) in enumerate(TRACE):
        plain = (
            changed(metadata, case.chance) if case.chance.random() < 0.3 else metadata
        )
        text = written(plain).replace("\n", " ")
        lines.append(
            f"V1115 10:00:0{number % 10}.000000 7 torch/_dynamo/a.py:1] {text}"
        )
        lines += [f"\t{line}" for line in payload.splitlines()]
    content = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    if case.chance.random() < 0.4:
        content = spoilt(content, case.chance)
    case.write("trace/dedicated_log_torch_trace_1.log", content)
    case.write("model.py", b"import torch\ndef f(x):\n    return x.item()\n")
    quick = ["check", "trace:trace", "-q", "--effort", "quick"]
    case.pick([quick, [*quick, "--format", "json"], [*quick, "--format", "md"]], 1)


def source_files(case: Case) -> None:
    """A folder with a sound file, an odd one, and things that are no files."""
    chance = case.chance
    case.write("pkg/sound.py", SOURCE)
    head = b""
    if chance.random() < 0.5:
        head = b"# -*- coding: " + chance.choice(CODINGS).encode() + b" -*-\n"
        head = chance.choice((b"", b"\xef\xbb\xbf", b"#!x\n")) + head
    body = SOURCE
    if chance.random() < 0.3:
        body += b"z = " + chance.choice(EXPRESSIONS) + b"\n"
    content = head + body
    case.write(
        "pkg/odd.py", spoilt(content, chance) if chance.random() < 0.5 else content
    )
    folder = case.folder / "pkg"
    extra = chance.randrange(5)
    if extra == 0:
        os.mkfifo(folder / "pipe.py")
    elif extra == 1:
        (folder / "loop.py").symlink_to("loop.py")
    elif extra == 2:
        (folder / "gone.py").symlink_to("nowhere.py")
    elif extra == 3:
        (folder / "folder.py").mkdir()
    static = ["--effort", "static", "-q"]
    told = json.loads(case.command("check", "pkg", *static, "--format", "json"))
    if not any("sound.py" in str(each["file"]) for each in told["findings"]):
        raise Wrong("check pkg: the sound file was not read")
    case.pick(
        [["check", "pkg/odd.py", *static], ["check", "pkg/odd.py:make", *static]], 1
    )


def experiment_log(case: Case) -> None:
    content = LOG
    for _ in range(case.chance.randrange(3)):
        odd = case.chance.choice([e for e in HOSTILE if type(e) is str])
        at = case.chance.randrange(len(content))
        content = content[:at] + odd.encode("utf-8", "replace") + content[at:]
    if case.chance.random() < 0.7:
        content = spoilt(content, case.chance)
    file = str(case.write("log.md", content))
    run = str(case.write("run.json", written(run_documents()[1]).encode()))
    case.pick([["log", "--file", file], ["log", "--list", "--file", file]], 1)
    odd = case.chance.choice([e for e in HOSTILE if type(e) is str and "\0" not in e])
    added = [
        ["log", "plan", f"x{odd}", "--file", file],
        ["log", "add", run, "--file", file],
        ["log", "retrospective", "--file", file],
    ]
    case.command(*case.chance.choice(added), writes=("log.md",))
    if not (case.folder / "log.md").read_bytes().startswith(content):
        raise Wrong("the log as it was is not the beginning of the log as it is")


def recipe_toml(case: Case) -> None:
    from torch import nn

    from torchproof.records.run import UserError
    from torchproof.strategies import recipe
    from torchproof.strategies.recipe import adoption, toml

    model = nn.Sequential(nn.Linear(2, 2))
    plain = tomllib.loads(sound_recipe(model, "regional").dumps())
    mutated = changed(plain, case.chance)
    try:
        text = toml.dumps(mutated if isinstance(mutated, dict) else plain)
    except (ValueError, TypeError, RecursionError, AttributeError):
        text = toml.dumps(plain)  # what TOML has no form for
    content = text.encode("utf-8", "replace")
    if case.chance.random() < 0.4:
        content = spoilt(content, case.chance)
    odd = (b"a = " + b"[" * 5000, b"x = " + b"9" * 5000, b"[" + b"a." * 3000 + b"a]")
    if case.chance.random() < 0.1:
        content += b"\n" + case.chance.choice(odd)
    file = case.write("torchproof.toml", content)
    given = case.function("recipe.load", lambda: recipe.load(file), (UserError,))
    if given is not None:
        found = adoption.RecipeSource(given, str(file)).adopted(model)
        if UNSEEN.search(found.why_not or "") or "\n" in (found.why_not or ""):
            raise Wrong(f"why_not is no plain line: {found.why_not!r:.200}")
        case.function("dumps", given.dumps, ())


def sound_recipe(model: Any, strategy: str) -> Any:
    from torchproof.strategies.plan import Plan, Site
    from torchproof.strategies.recipe import Recipe
    from torchproof.strategies.recipe.fingerprint import fingerprint
    from torchproof.strategies.recipe.matching import environment_here
    from torchproof.strategies.strategy import parse

    site = Site("torch.nn.Linear", "Linear", ("0",), {(0,): (0,)})
    return Recipe(
        parse(strategy),
        plan=Plan((site,)) if strategy == "regional" else Plan(),
        environment=environment_here(model),
        model=fingerprint(model),
        target="a.py:make",
        lines="m = torch.compile(m)\nm(x)",
    )


def _deployed(case: Case, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The details and the files of a deploy pack that nothing was compiled for."""
    import torch

    from torchproof.records import schema
    from torchproof.runtime.loading import compatibility, example_inputs
    from torchproof.strategies.recipe import FILE

    call = {
        "inputs": schema.to_plain(example_inputs.describe((torch.ones(3, 4),))),
        "state": {"training": False, "others": []},
        "gradients": False,
        "keys": ["k"],
        "entry": {"why_not": "x"},
    }
    details = {
        "artifact": "caches",
        "strategy": "eager",
        "train": False,
        "graphs": 1,
        "calls": [call],
        "code": {"a": {"file": "a.py", "sha256": "0", "code": None}},
        "place": schema.to_plain(compatibility.place_here("cpu")),
        "switches": {},
        "verified": {
            "seconds": 1.0,
            "numerics": {"verdict": "same"},
            "graphs": 1,
            "of": 1,
        },
        "symptom": {"ids": ["a"], "headline": "b"},
    }
    recipe = sound_recipe(model, "eager")
    facts = {"gm": {"digest": "g", "text": None}, "x": {"digest": "d", "text": "t"}}
    graphs = [{"key": "k", "facts": facts}]
    files = {FILE: recipe.dumps().encode(), "graphs.json": written(graphs).encode()}
    if case.chance.random() < 0.5:
        files["graphs.json"] = json_file(graphs, case.chance)
    files["caches/ab/code.py"] = b"x = 1\n"
    return details, files


def deploy_pack(case: Case) -> None:
    """Resealed: the manifest fits its files, whatever it says."""
    from torch import nn

    import torchproof
    from torchproof import packs

    model = nn.Linear(4, 4).eval()
    details, files = _deployed(case, model)
    if case.chance.random() < 0.2:
        details["artifact"] = case.chance.choice(("aoti", "torchscript"))
    mutated = changed(details, case.chance) if case.chance.random() < 0.7 else details
    pack = case.folder / "pack"
    manifest = {
        "schema": 1,
        "kind": "deploy",
        "name": "net",
        "torchproof": "0",
        "made": "",
        "target": "a.py:make",
        "command": "",
        "environment": {"torch": "2.13.0"},
        "details": mutated if isinstance(mutated, dict) else details,
    }
    sealed(case, pack, manifest, files)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(case.folder / "cache")
    case.pick([["show", "pack", "--format", f] for f in ("text", "json", "md")], 1)
    loaded = case.function(
        "torchproof.load(pack, model)", lambda: torchproof.load(pack, model), ()
    )
    told = torchproof.status(loaded).pack
    if told is None or UNSEEN.search(str(told["why_not"])):
        raise Wrong(f"status does not tell of the pack in a plain line: {told!r:.200}")
    refusals = (packs.Refused,)
    fresh = nn.Linear(4, 4).eval()
    case.function(
        "load(strict)", lambda: torchproof.load(pack, fresh, strict=True), refusals
    )


def sealed(
    case: Case, pack: Path, manifest: dict[str, Any], files: dict[str, bytes]
) -> None:
    """Files and a manifest whose hashes and whose own seal are right."""
    listed = {
        name: {
            "sha256": hashlib.sha256(raw).hexdigest(),
            "bytes": len(raw),
            "about": "",
        }
        for name, raw in files.items()
    }
    whole = manifest | {"files": listed}
    if case.chance.random() < 0.2:
        mutated = changed(whole, case.chance)
        whole = mutated if isinstance(mutated, dict) else whole
    body = written(whole).encode("utf-8", "surrogatepass")
    if not body.endswith(b"\n}"):
        body = b"{\n}"
    digest = hashlib.sha256(body).hexdigest().encode()
    raw = body.removesuffix(b"\n}") + b',\n "sha256": "' + digest + b'"\n}\n'
    for name, content in {**files, "manifest.json": raw}.items():
        case.write(str(pack / name), content)


def repro_pack(case: Case) -> None:
    """Folders and archives, damaged anywhere, with and without a key."""
    from torchproof import packs

    chance = case.chance
    archive = chance.random() < 0.6
    path = case.folder / ("pack.tar.gz" if archive else "pack")
    with (packs.archive if archive else packs.folder)(path) as stage:
        (stage.path / "repro.py").write_text("print(1)\n")
        (stage.path / "logs").mkdir()
        (stage.path / "logs/out.txt").write_text("x" * 900)
        odd = chance.choice([e for e in HOSTILE if type(e) is str])
        environment = {"torch": odd.encode("utf-8", "replace").decode()}
        manifest = packs.Manifest("repro", "a", "0.1.0", environment=environment)
        stage.seal(manifest, {"repro.py": "the program"}, key=None)
    case.tally.files += 1
    where = (
        path if archive else chance.choice([p for p in path.rglob("*") if p.is_file()])
    )
    content = where.read_bytes()
    if archive and chance.random() < 0.5:
        content = gzip.compress(spoilt(gzip.decompress(content), chance))
    else:
        content = spoilt(content, chance)
    where.write_bytes(content)
    key = case.write("key", chance.choice((b"", b"k" * 32, chance.randbytes(70_000))))
    key.chmod(chance.choice((0o600, 0o644)))
    if chance.random() < 0.3:
        os.environ["TORCHPROOF_PACK_KEY"] = str(key)
    try:
        case.pick(
            [["show", path.name, "--format", f] for f in ("text", "json", "md")], 2
        )
    finally:
        os.environ.pop("TORCHPROOF_PACK_KEY", None)


def trial_files(case: Case) -> None:
    """The trials that `tune --resume` goes on with."""
    from torchproof.records import Trial
    from torchproof.tuning.trial_store import TrialStore

    facts = {
        "pass_ms": 1,
        "first_call_s": 1,
        "compile_s": {},
        "counts": {},
        "steady": 1,
    }
    known = set(Trial.__dataclass_fields__)
    sound = {k: v for k, v in A_TRIAL.items() if k in known} | {"facts": facts}
    book = TrialStore({"a": 1}, resume=False, root=case.folder)
    book.close(finished=False)
    folder = book.folder
    case.write(str(folder / "trial-001.json"), written(sound | {"name": "a"}).encode())
    case.write(str(folder / "trial-002.json"), json_file(sound, case.chance))
    again = case.function(
        "TrialStore(resume=True)",
        lambda: TrialStore({"a": 1}, resume=True, root=case.folder),
        (),
    )
    again.close(finished=False)
    if "a" not in again.trials:
        raise Wrong("a sound trial beside a damaged one was lost")
    for trial in again.trials.values():
        again.find(trial.name, 1.0)
        case.function("Trial.to_json", trial.to_json, ())


def stream_lines(case: Case) -> None:
    """What a child process writes, a line of JSON each."""
    from torchproof.process import Channel, Ended, Garbled

    entries = [{"kind": "plan", "calls": 3}, {"kind": "environment", "torch": "2"}]
    lines = [written(entries[0]).replace("\n", "").encode()]
    lines += [json_file(e, case.chance).replace(b"\n", b" ") for e in entries]
    path = case.write("stream.jsonl", b"\n".join(lines) + b"\n")

    def read() -> list[Any]:
        near, far = socket.socketpair()

        def write() -> None:
            with far:
                far.sendall(path.read_bytes())

        threading.Thread(target=write).start()
        channel = Channel(near)
        received: list[Any] = []
        with contextlib.suppress(Ended), contextlib.closing(channel):
            while True:
                with contextlib.suppress(Garbled):
                    received.append(channel.receive())
        return received

    found = case.function("reading a stream", read, ())
    if entries[0] not in found or not all(isinstance(each, dict) for each in found):
        raise Wrong("a sound line is lost, or one that is no message is kept")


FORMATS: dict[str, Callable[[Case], None]] = {
    "run JSON": run_json,
    "run folders": run_folder,
    "trace folders": trace_folder,
    "Python source": source_files,
    "experiment log": experiment_log,
    "recipe TOML": recipe_toml,
    "deploy packs": deploy_pack,
    "repro packs, keys": repro_pack,
    "trials of tune": trial_files,
    "lines of a child": stream_lines,
}


# -- running ---------------------------------------------------------------------------


def one_case(name: str, number: int, seed: int, tally: Tally) -> None:
    """Adds what the case gave to the tally."""
    tally.cases += 1
    home, begun = os.getcwd(), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="torchproof-fuzz-"))
    os.chdir(folder)
    try:
        with time_limit(LIMIT_S):
            FORMATS[name](Case(folder, random.Random(f"{seed} {name} {number}"), tally))
    except Wrong as error:
        tally.findings.append(Finding(name, number, str(error)))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        what = f"{type(error).__name__}: {error!s:.200} at {where}"
        tally.findings.append(Finding(name, number, what))
    finally:
        os.chdir(home)
        shutil.rmtree(folder, ignore_errors=True)
        tally.seconds += time.monotonic() - begun


def fuzz(formats: Sequence[str], cases: int, seed: int) -> dict[str, Tally]:
    """Cases of each format in turn."""
    logging.getLogger("torchproof").setLevel(logging.CRITICAL)
    found = {name: Tally() for name in formats}
    for number, name in itertools.product(range(cases), formats):
        one_case(name, number, seed, found[name])
    return found


def as_processes(cases: int, seed: int) -> Tally:
    """Some run files in processes of their own, as people call them."""
    tally, chance = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            path = Path(folder, f"{number}.json")
            document = chance.choice(run_documents())
            path.write_bytes(json_file(document, chance))
            command = chance.choice(
                [*shows(str(path)), ["compare", str(path), str(path)]]
            )
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "torchproof", *command],
                capture_output=True,
                text=True,
                timeout=3 * LIMIT_S,
                check=False,
            )
            tally.cases, tally.files = tally.cases + 1, tally.files + 1
            tally.calls += 1
            tally.seconds += time.monotonic() - begun
            tally.refused += done.returncode == 2
            tally.accepted += done.returncode != 2
            try:
                out, err = done.stdout, done.stderr
                judge("process", command, done.returncode, out=out, err=err)
            except Wrong as error:
                tally.findings.append(Finding("processes", number, str(error)))
    return tally


def lines(found: dict[str, Tally]) -> Iterator[str]:
    for name, tally in found.items():
        counts = f"{tally.cases} cases, {tally.files} files, {tally.calls} calls"
        came = f"{tally.accepted} accepted, {tally.refused} refused"
        yield f"{name}: {counts}, {came}, {tally.seconds:.0f} s"
        for each in tally.findings:
            yield f"  case {each.case}: {each.what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", type=int, default=500, help="of each format")
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(FORMATS))
    parser.add_argument("--case", type=int, help="this one alone, with --only")
    parser.add_argument("--write", action="store_true", help="keep the numbers")
    arguments = parser.parse_args()
    formats = [arguments.only] if arguments.only else list(FORMATS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if arguments.case is not None:
        found = {arguments.only: Tally()}
        one_case(arguments.only, arguments.case, arguments.seed, found[arguments.only])
    else:
        found = fuzz(formats, arguments.cases, arguments.seed)
        if not arguments.only:
            found["processes"] = as_processes(arguments.processes, arguments.seed)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print("\n".join([*lines(found), f"memory grew by {grown} MiB"]))
    if arguments.write:
        kept = {"seed": arguments.seed, "memory_mib": grown}
        kept["formats"] = {name: asdict(tally) for name, tally in found.items()}
        path = HERE / "results" / "fuzz-files.json"
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return int(any(tally.findings for tally in found.values()))


if __name__ == "__main__":
    sys.exit(main())
