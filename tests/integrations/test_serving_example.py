"""The serving example as a user starts it: uvicorn, requests, health and metrics."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

for library in ("fastapi", "prometheus_client", "uvicorn"):
    pytest.importorskip(library, reason="the extra `serve` is not installed")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "serving"
PAGE = (ROOT / "docs" / "integrations.md").read_text()
PATIENCE_S = 600  # for a machine on which other tests leave no processor free
ROWS = [[float(row)] * 16 for row in range(8)]


class Service:
    """The command of the page as a process, asked over HTTP."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.log = folder / "log.txt"
        command = documented("uvicorn").split()
        assert command == ["uvicorn", "app:app"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", "0"],
                cwd=folder,
                env=os.environ
                | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
                | environment,
                stdout=log,
                stderr=log,
            )
        self.url = until(self._address, self)

    def _address(self) -> str | None:
        found = re.search(r"running on (http://\S+)", self.log.read_text())
        return found[1] if found else None

    def ask(self, path: str, row: list[float] | None = None) -> str:
        data = None if row is None else json.dumps(row).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, kind)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
            text: bytes = answer.read()
        return text.decode()

    def scores(self, row: list[float]) -> list[float]:
        scores: list[float] = json.loads(self.ask("/predict", row))
        return scores

    def health(self) -> dict[str, str]:
        health: dict[str, str] = json.loads(self.ask("/healthz"))
        assert set(health) == {"state", "strategy", "reason"}
        return health

    def metrics(self) -> dict[str, float]:
        """Samples by name; those of fallbacks by name and kind."""
        from prometheus_client.parser import text_string_to_metric_families as parsed

        return {
            sample.name + sample.labels.get("kind", ""): sample.value
            for family in parsed(self.ask("/metrics"))
            for sample in family.samples
            if sample.name.startswith("torchproof_")
        }

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        """Ends it; whatever it had started must have ended too."""
        children = self.children()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        assert not alive
        return code


def documented(word: str) -> str:
    """The command of the page with this word, without the variable before it."""
    [command] = re.findall(rf"^(?:PACK=\S+ )?({word} .+)$", PAGE, re.M)
    return str(command)


def until(look: Callable[[], Any], service: Service) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        text = service.log.read_text()
        assert service.process.poll() is None and time.monotonic() < end, text
        time.sleep(0.2)
    return found


def eager_scores(row: list[float]) -> list[float]:
    spec = importlib.util.spec_from_file_location("served_model", EXAMPLE / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        scores: list[float] = module.make()[0](torch.tensor([row]))[0].tolist()
    return scores


def fill_caches(folder: Path) -> None:
    code = "import torch, torchproof, model; made, calls = model.make()\n"
    code += "with torch.no_grad(): torchproof.compile(made)(*calls[0])"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
        check=True,
    )


def assert_right_at_once(service: Service) -> None:
    """Concurrent requests, while it may be compiling, get eager's answers."""
    want = [pytest.approx(eager_scores(row), rel=1e-4) for row in ROWS]
    with concurrent.futures.ThreadPoolExecutor(len(ROWS)) as pool:
        assert list(pool.map(service.scores, ROWS)) == want


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    folder = tmp_path / "serving"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    started: list[Service] = []

    def begin(**environment: str) -> Service:
        started.append(Service(folder, **environment))
        return started[-1]

    yield begin
    for service in started:
        service.process.kill()
        service.process.wait(PATIENCE_S)


def test_with_a_refused_pack_it_answers_while_it_compiles(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    """Its code is in torch's caches already.

    Code is generated in a process of idle priority, which got 4 percent of a processor
    that two others kept busy: minutes for this model.
    """
    refused = tmp_path / "empty"
    refused.mkdir()
    fill_caches(tmp_path / "serving")
    service = start(PACK=str(refused), TORCHPROOF_DEADLINE_S="inf")
    health = service.health()
    assert "manifest" in health["reason"] and health["strategy"] == "full"
    before = service.metrics()
    assert_right_at_once(service)
    after = service.metrics()
    assert after["torchproof_calls_total"] >= 1 + len(ROWS)  # the app calls it as well
    assert {name for name in before if after[name] < before[name]} == set()
    assert "torchproof_graph_hits_total" not in after  # there is no CUDA graph

    def is_compiled() -> bool:  # without a request, as a readiness probe asks
        state = service.health()["state"]
        assert state in ("compiling", "compiled")
        return state == "compiled"

    until(is_compiled, service)
    assert_right_at_once(service)
    metrics = service.metrics()
    assert metrics["torchproof_compiles_total"] == 1
    assert metrics["torchproof_compiled_calls_total"] >= 1
    assert metrics["torchproof_compile_seconds_total"] > 0
    assert metrics["torchproof_fallbacks_totaldeadline"] == 0
    assert service.end() == -signal.SIGTERM  # uvicorn ends as the signal asks
    assert "Application shutdown complete" in service.log.read_text()


def test_from_its_pack_the_first_request_is_compiled(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    command = documented("torchproof").split()
    subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path / "serving", check=True
    )
    service = start(PACK="served-pack")
    health = service.health()
    assert health["state"] == "compiled" and health["reason"] == "pack served-pack"
    assert_right_at_once(service)
    metrics = service.metrics()
    assert metrics["torchproof_compiled_calls_total"] >= len(ROWS)
    assert (
        metrics["torchproof_compiled_calls_total"] == metrics["torchproof_calls_total"]
    )
    assert metrics["torchproof_stalls_total"] == 0  # nothing was even traced
    service.end()
