"""The formats that torchproof reads: a case of each writes files and has them read."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz_documents import (
    CODINGS,
    EDITED,
    EXPRESSIONS,
    FIXED,
    LOG,
    REQUESTS,
    SOURCE,
    TRACE,
    run_documents,
    saved_runs,
)
from benchmarks.fuzz_engine import EVIL, UNSEEN, Case, Wrong
from benchmarks.fuzz_mutations import (
    MARKER,
    OUTSIDE,
    TEXTS,
    Chance,
    changed,
    json_file,
    other_than,
    spoilt,
    with_raw,
    written,
)

_SAVED = saved_runs()
RUNS = [*run_documents(), *_SAVED.values()]

FORMS = ((), ("--format", "json"), ("--format", "md"))


def no_file(path: Path, chance: Chance) -> None:
    """Something else than a file, or nothing."""
    kind = chance.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path)
    elif kind == 2:
        path.symlink_to("nowhere")
    elif kind == 3:
        os.mkfifo(path)


# -- runs ------------------------------------------------------------------------------

_PLAIN = ("id", "target", "strategy", "verb", "started", "command", "ending")


def shows(path: str) -> list[list[str]]:
    formats = ("text", "json", "md", "html", "sarif", "github", "gitlab", "agent")
    return [
        *(["show", path, "--format", name] for name in formats),
        ["show", path, "-v"],
        ["show", path, "--no-source"],
    ]


def run_json(case: Case) -> None:
    """Each file is shown; some are compared, logged, or the baseline of a check."""
    document = case.chance.choice(RUNS)
    file = str(case.damaged("run.json", json_file(document, case.chance)))
    case.write("model.py", b"import torch\nx = 1\n")
    command = case.chance.choice(shows(file))
    out = case.command(*command)
    if out and command[2:] == ["--format", "json"]:
        _assert_same_run(Path(file), out)
    if case.sometimes(0.2):
        sound = str(case.write("sound.json", written(document).encode()))
        form = case.chance.choice(FORMS)
        pair = case.chance.choice(((file, sound), (sound, file), (file, file)))
        case.command("compare", *pair, *form)
    if case.sometimes(0.05):
        case.command("log", "add", file, "--file", "log.md")
    if case.sometimes(0.02):
        static = ("check", "model.py", "--effort", "static", "-q")
        case.command(*static, "--baseline", file)


def _assert_same_run(file: Path, out: str) -> None:
    """What was read is what the file says."""
    given, report = json.loads(file.read_bytes()), json.loads(out)
    for name in _PLAIN:
        if isinstance(given.get(name), str) and report.get(name) != given[name]:
            raise Wrong(f"show: {name} is {report.get(name)!r:.80}, not as in the file")


def run_with_fixes(case: Case) -> None:
    """The only files that a run makes torchproof write: those that it fixes."""
    case.damaged("run.json", json_file(_SAVED["fix"], case.chance))
    model = case.write("model.py", FIXED)
    where = ("--write",) if case.sometimes(0.7) else ("--patch", "patches")
    form = case.chance.choice(FORMS)
    case.command("fix", "run.json", *where, *form, writes=model)
    if model.read_bytes() not in (FIXED, EDITED):
        raise Wrong("fix: the file is neither as it was nor as it was proved")


def run_folder(case: Case) -> None:
    """Saved runs, some of them damaged, in a folder of their own."""
    runs = Path(".torchproof/runs")
    for number in range(3):
        document = case.chance.choice(RUNS)
        name = case.chance.choice((f"2026-{number}", "\x1b[1m", "a\nb", "x" * 200))
        case.damaged(str(runs / name / "run.json"), json_file(document, case.chance))
    case.write(str(runs / "good" / "run.json"), written(RUNS[0]).encode())
    odd = case.folder / runs / "odd"
    odd.mkdir()
    no_file(odd / "run.json", case.chance)
    commands = [["show", "--list"], ["show", "2026"], ["show", "odd"], ["show"]]
    commands += [["show", f"{odd}/run.json"], ["show", "--list", "--format", "json"]]
    commands += [["compare", "good", "2026-0"], ["log", "retrospective"]]
    for command in case.chance.sample(commands, 2):
        case.command(*command)


# -- traces and source -----------------------------------------------------------------


def trace_text(chance: Chance | None = None) -> bytes:
    """A trace as torch writes it; with `chance`, some records are mutated."""
    lines = []
    for number, (metadata, payload) in enumerate(TRACE):
        mutates = chance is not None and chance.random() < 0.3
        plain = changed(metadata, chance) if chance and mutates else metadata
        lines.append(
            f"V1115 10:00:0{number % 10}.000000 7 torch/_dynamo/a.py:1]"
            f" {written(plain)}"
        )
        lines += [f"\t{line}" for line in payload.splitlines()]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


_TRACE = trace_text()


def trace_folder(case: Case) -> None:
    chance = case.chance

    def made() -> bytes:
        content = trace_text(chance) if chance.random() < 0.8 else _TRACE
        return spoilt(content, chance) if chance.random() < 0.4 else content

    case.damaged("trace/dedicated_log_torch_trace_1.log", other_than(_TRACE, made))
    case.write("model.py", b"import torch\ndef f(x):\n    return x.item()\n")
    form = chance.choice(FORMS)
    case.command("check", "trace:trace", "-q", "--effort", "quick", *form)


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
    if content == SOURCE or chance.random() < 0.5:
        content = other_than(SOURCE, lambda: spoilt(content, chance))
    case.damaged("pkg/odd.py", content)
    no_file(case.folder / "pkg" / "none.py", chance)
    static = ["--effort", "static", "-q"]
    report = json.loads(case.command("check", "pkg", *static, "--format", "json"))
    if not any("sound.py" in str(each["file"]) for each in report["findings"]):
        raise Wrong("check pkg: the sound file was not read")
    case.pick([["check", "pkg/odd.py", *static], ["check", "pkg/odd.py:make", *static]])


# -- the experiment log ----------------------------------------------------------------


def experiment_log(case: Case) -> None:
    """A log with odd text in it is printed, listed, and gets another entry."""
    chance = case.chance

    def made() -> bytes:
        content = LOG
        for _ in range(chance.randrange(3)):
            odd = chance.choice(TEXTS).encode("utf-8", "replace")
            at = chance.randrange(len(content))
            content = content[:at] + odd + content[at:]
        return spoilt(content, chance) if chance.random() < 0.7 else content

    content = other_than(LOG, made)
    file = case.damaged("log.md", content)
    place = ("--file", "log.md")
    case.pick([["log", *place], ["log", "--list", *place]])
    kind = chance.randrange(3)
    if kind == 0:
        odd = chance.choice([text for text in TEXTS if "\0" not in text])
        case.command("log", "plan", f"x{odd}", *place, writes=file)
    elif kind == 1:
        run = str(case.write("run.json", written(RUNS[1]).encode()))
        case.command("log", "add", run, *place, writes=file)
    else:
        case.command("log", "retrospective", *place, writes=file)
    if not file.read_bytes().startswith(content):
        raise Wrong("the log as it was is not the beginning of the log as it is")


# -- recipes ---------------------------------------------------------------------------

_TOML: tuple[bytes, ...] = (
    b"a = " + b"[" * 5000,
    b"x = " + b"9" * 5000,
    b"[" + b"a." * 3000 + b"a]",
    b"x = 2026-01-01T00:00:00Z",
    b"x = nan",
    b"x = 0x" + b"f" * 5000,
    b"[[regions]]",
    b"schema = 1",
)


@functools.cache
def _recipe_parts() -> tuple[Any, dict[str, Any], bytes]:
    """A model, and the sound recipe of it as data and as text."""
    from torch import nn

    model = nn.Sequential(nn.Linear(2, 2))
    text = sound_recipe(model, "regional").dumps()
    return model, tomllib.loads(text), text.encode()


def _recipe_text(plain: dict[str, Any], chance: Chance) -> bytes:
    from torchproof.strategies.recipe import toml

    mutated = changed(plain, chance) if chance.random() < 0.8 else plain
    try:
        text = with_raw(toml.dumps(mutated))
    except (ValueError, TypeError, RecursionError, AttributeError):
        text = toml.dumps(plain)  # TOML has no form for it
    content = text.encode("utf-8", "replace")
    if chance.random() < 0.4:
        content = spoilt(content, chance)
    if chance.random() < 0.1:
        content += b"\n" + chance.choice(_TOML)
    return content


def recipe_toml(case: Case) -> None:
    """A recipe is read, compared with a model, and written again."""
    from torchproof.records.run import UserError
    from torchproof.strategies import recipe
    from torchproof.strategies.recipe import adoption

    model, plain, sound = _recipe_parts()
    content = other_than(sound, lambda: _recipe_text(plain, case.chance))
    file = case.damaged("torchproof.toml", content)
    result = case.function("recipe.load", lambda: recipe.load(file), (UserError,))
    if result is not None:
        adopted = adoption.RecipeSource(result, str(file)).adopted(model)
        _assert_line("why_not", adopted.why_not)
        again = recipe.loads(case.function("dumps", result.dumps, ()))
        if repr(again.to_json()) != repr(result.to_json()):  # NaN is not equal to NaN
            raise Wrong("a recipe that is written again reads as another one")


def _assert_line(name: str, text: str | None) -> None:
    if UNSEEN.search(text or "") or "\n" in (text or ""):
        raise Wrong(f"{name} is no plain line: {text!r:.200}")


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


# -- packs -----------------------------------------------------------------------------


class _Payload:
    """Unpickling it makes the folder that shows that something was run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (MARKER,)


PICKLE = pickle.dumps(_Payload())
REPRO: dict[str, bytes] = {
    "repro.py": EVIL.encode(),
    "logs/out.txt": b"x" * 900,
    "state.pkl": PICKLE,
}


def listed(files: dict[str, bytes]) -> dict[str, Any]:
    return {
        name: {"sha256": _digest(raw), "bytes": len(raw), "about": ""}
        for name, raw in files.items()
    }


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def sealed(plain: Any) -> bytes:
    """A manifest whose own hash is right, whatever it says."""
    body = written(plain, indent=1).encode("utf-8", "surrogatepass")
    if not body.endswith(b"\n}"):
        body = b"{\n}"
    digest = _digest(body).encode()
    return body.removesuffix(b"\n}") + b',\n "sha256": "' + digest + b'"\n}\n'


def _manifest(kind: str, **more: Any) -> dict[str, Any]:
    texts = {"name": "net", "torchproof": "0", "target": "a.py:make"}
    texts |= {"made": "", "command": ""}
    where = {"torch": "2.13.0"}
    return {"schema": 1, "kind": kind, "environment": where, **texts, **more}


@functools.cache
def _signed_repro() -> tuple[dict[str, Any], dict[str, bytes], bytes]:
    """The manifest and the files of a sound repro pack, and the key that fits it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    from torchproof.runtime import keys

    private = ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    manifest = _manifest("repro", details={}, files=listed(REPRO))
    raw = sealed(manifest)
    files = {"manifest.json": raw, "manifest.sig": keys.signature(pem, raw), **REPRO}
    return manifest, files, public


def _archived(files: dict[str, bytes], chance: Chance) -> bytes:
    """A tar of the files; sometimes with an entry that no pack may have."""
    buffer = io.BytesIO()
    odd = chance.choice([*files]) if chance.random() < 0.4 else None
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, raw in files.items():
            entry = tarfile.TarInfo(f"pack/{name}")
            entry.size = len(raw)
            if name == odd:
                _make_odd(entry, chance)
            with contextlib.suppress(ValueError, OSError):  # no such header, or no end
                tar.addfile(entry, io.BytesIO(raw + b"\0" * 64))
    return buffer.getvalue()


_NAMES = (f"{OUTSIDE}.py", f"pack/../{OUTSIDE}.py", "/tmp/x", "pack", "pack/../x", "")
_TYPES = (
    *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE),
    *(tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME),
    *(tarfile.CONTTYPE, b"Z"),
)


def _make_odd(entry: tarfile.TarInfo, chance: Chance) -> None:
    kind = chance.randrange(5)
    if kind == 0:
        entry.name = chance.choice(_NAMES)
    elif kind == 1:
        entry.type, entry.linkname = chance.choice(_TYPES), f"{OUTSIDE}.py"
    elif kind == 2:
        entry.size = chance.choice((0, 1, 2**20, 8**11 - 1, entry.size + 1))
    elif kind == 3:
        entry.mode, entry.uid = (
            chance.choice((0, 0o7777)),
            chance.choice((0, 2**21 - 1)),
        )
    else:
        entry.name = chance.choice([text for text in TEXTS if "\0" not in text])[:90]


def _damaged_files(case: Case) -> dict[str, bytes]:
    """The files of a pack of which one is mutated, or its manifest in a right seal."""
    manifest, files, _ = _signed_repro()
    chance, files = case.chance, dict(files)
    if chance.random() < 0.5:
        files["manifest.json"] = sealed(changed(manifest, chance))
    else:
        name = chance.choice([*files])
        files[name] = other_than(files[name], lambda: spoilt(files[name], chance))
    if chance.random() < 0.1:
        files[chance.choice(("new.py", "logs/repro.py", "a/b/c"))] = EVIL.encode()
    return files


def repro_pack(case: Case) -> None:
    """Folders and archives, damaged anywhere, with and without a key."""
    chance = case.chance
    if chance.random() < 0.6:
        _, files, _ = _signed_repro()
        name, whole = "pack.tar.gz", _archived(files, chance)
        kind = chance.randrange(3)
        if kind == 0:
            tar = other_than(whole, lambda: spoilt(whole, chance))
            content = gzip.compress(tar, 1)
        elif kind == 1:
            content = gzip.compress(_archived(_damaged_files(case), chance), 1)
        else:
            content = spoilt(gzip.compress(whole, 1), chance)
        case.damaged(name, content)
    else:
        name = "pack"
        files = _damaged_files(case)
        case.tally.files += 1
        for each, content in files.items():
            case.write(f"pack/{each}", content)
    with _key(case):
        form = chance.choice(("text", "json", "md"))
        out = case.command("show", name, "--format", form)
    if form == "json" and out and name == "pack":
        _assert_inspection(json.loads(out), files)


@contextlib.contextmanager
def _key(case: Case) -> Any:
    """A key that fits, one that does not, or none, where `show` looks for it."""
    if not case.sometimes(0.4):
        yield
        return
    chance, public = case.chance, _signed_repro()[2]
    odd = (b"", b"k" * 32, b"k" * 70_000, *[spoilt(public, chance)] * 3)
    key = case.write("key", public if chance.random() < 0.5 else chance.choice(odd))
    key.chmod(chance.choice((0o600, 0o600, 0o644, 0o666)))
    os.environ["TORCHPROOF_PACK_KEY"] = str(key)
    try:
        yield
    finally:
        del os.environ["TORCHPROOF_PACK_KEY"]


def _assert_inspection(report: dict[str, Any], files: dict[str, bytes]) -> None:
    """A pack is called intact or signed only if it is, by hashes made here."""
    sound = _signed_repro()[1]
    # The file of the signature may differ in blanks.
    same = files["manifest.json"] == sound["manifest.json"]
    if report["signature"] == "fits" and not same:
        raise Wrong("show: the signature fits a pack that was changed")
    entries = report["manifest"]["files"]
    actual = listed({name: files.get(name, b"") for name in entries})
    intact = all(
        entries[name][fact] == actual[name][fact]
        for name in entries
        for fact in ("sha256", "bytes")
    )
    if report["intact"] != intact:
        raise Wrong(f"show: intact is {report['intact']}, and the hashes say {intact}")


@functools.cache
def _deploy_parts() -> tuple[dict[str, Any], dict[str, bytes]]:
    """The details and the files of a pack with no compiled code."""
    import torch
    from torch import nn

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
    hits = {"graphs": 1, "of": 1}
    details = {
        "artifact": "caches",
        "strategy": "eager",
        "train": False,
        "graphs": ["k"],
        "calls": [call],
        "code": {"a": {"file": "a.py", "sha256": "0", "code": None}},
        "place": schema.to_plain(compatibility.place_here("cpu")),
        "switches": {},
        "verified": {"seconds": 1.0, "numerics": {"verdict": "same"}} | hits,
        "symptom": {"ids": ["a"], "headline": "b"},
    }
    recipe = sound_recipe(nn.Linear(4, 4).eval(), "eager")
    files = {
        FILE: recipe.dumps().encode(),
        "caches/ab/code.py": EVIL.encode(),
        "caches/fxgraph/ab/k/0": PICKLE,
    }
    return details, files


def deploy_pack(case: Case) -> None:
    """Sealed again, so that the manifest fits its files, or with a file changed."""
    chance = case.chance
    details, files = _deploy_parts()
    files, mutated = dict(files), details
    if chance.random() < 0.7:
        mutated = changed(details, chance)
    if isinstance(mutated, dict) and chance.random() < 0.1:
        mutated = mutated | {"artifact": "aoti"}
    manifest = _manifest("deploy", details=mutated, files=listed(files))
    if chance.random() < 0.3:
        manifest = changed(manifest, chance)
    files["manifest.json"] = sealed(manifest)
    if chance.random() < 0.2:
        name = chance.choice([*files])
        files[name] = spoilt(files[name], chance)
    case.tally.files += 1
    for name, content in files.items():
        case.write(f"pack/{name}", content)
    if case.sometimes(0.3):
        case.pick([["show", "pack", "--format", f] for f in ("text", "json", "md")])
    else:
        _load_pack(case)


def _load_pack(case: Case) -> None:
    """Strictly: what `load` does without a pack starts the compile process."""
    from torch import nn

    import torchproof
    from torchproof import packs

    pack, model = case.folder / "pack", nn.Linear(4, 4).eval()
    loaded = case.function(
        "torchproof.load(pack, model, strict=True)",
        lambda: torchproof.load(pack, model, strict=True),
        (packs.Refused,),
    )
    if loaded is not None:
        report = torchproof.status(loaded).pack
        if report is None or not report["used"]:
            raise Wrong(f"a pack that was loaded is not used: {report!r:.200}")
        _assert_line("notes", "; ".join([*report["notes"], *report["misses"]]))


# -- load tests ------------------------------------------------------------------------


def arrivals(case: Case) -> None:
    """Requests as comma-separated values or as JSON, one per line."""
    from torchproof.measure.loadtest import LoadOptions, timetable
    from torchproof.records.run import UserError

    chance = case.chance
    lines: list[str] = []
    for time_s, more in REQUESTS:
        plain = {"time": time_s, **more}
        mutated = changed(plain, chance) if chance.random() < 0.4 else plain
        if chance.random() < 0.3 and isinstance(mutated, dict):
            lines.append(f"{mutated.get('time')},{mutated.get('call')}")
        else:
            lines.append(written(mutated))
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    if chance.random() < 0.5:
        content = spoilt(content, chance)
    path = str(case.damaged("requests.txt", content))
    trace = case.function(
        "read_trace", lambda: timetable.read_trace(path), (UserError,)
    )
    if trace is not None:
        options = LoadOptions(arrivals=path)
        case.function(
            "from_trace", lambda: timetable.from_trace(trace, options, 3), (UserError,)
        )


FORMATS: dict[str, Callable[[Case], None]] = {
    "run JSON": run_json,
    "recipe TOML": recipe_toml,
    "repro packs, keys": repro_pack,
    "deploy packs": deploy_pack,
    "trace folders": trace_folder,
    "experiment log": experiment_log,
    "runs with fixes": run_with_fixes,
    "run folders": run_folder,
    "arrivals": arrivals,
    "Python source": source_files,
}
# What a file of a format may name anywhere, and what is read there: the source of
# compiled functions, for lines of it; files to fix; and runs that a log mentions.
MAY_READ: dict[str, str] = {
    "runs with fixes": ".py",
    "trace folders": ".py",
    "Python source": ".py",
    "experiment log": ".json",
}
