"""The examples with the libraries themselves: as documented, and right."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import commands
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "integrations.md").read_text()


def need(library: str, extra: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: the extra `{extra}` has it")


def run(folder: Path, *arguments: str) -> str:
    path = [os.environ["PYTHONPATH"], str(EXAMPLES), str(ROOT)]
    variables = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    variables |= {"PYTHONPATH": os.pathsep.join(path), "TORCHPROOF_DEADLINE_S": "inf"}
    variables |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = commands.run([sys.executable, *arguments], folder, variables, 1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documented(file: str) -> list[str]:
    """The arguments of the page's command that runs this example."""
    [command] = re.findall(rf"^(.*\b{file}.*)$", PAGE, re.M)
    return str(command).replace(f"examples/{file}", str(EXAMPLES / file)).split()


def answer(folder: Path, code: str) -> Any:
    return json.loads(run(folder, "-c", code).splitlines()[-1])


def test_accelerate_trains_as_without_compiling(tmp_path: Path) -> None:
    need("accelerate", "integrations")
    from safetensors import safe_open

    launch, name, *rest = documented("accelerate_training.py")
    assert (launch, name) == ("accelerate", "launch")
    program = ["-m", "accelerate.commands.accelerate_cli", "launch"]
    out = run(tmp_path, *program, *rest)
    [line] = [each for each in out.splitlines() if each.startswith("[")]
    assert "8 calls, 100% compiled" in out and "eager:" not in out
    code = "import accelerate_training as example\n"
    code += "print(example.train('plain', compile=lambda model: model)[1])"
    want = answer(tmp_path, code)
    assert ast.literal_eval(line) == pytest.approx(want, rel=1e-4)
    assert want[0] != pytest.approx(want[-1], rel=1e-4)  # it has learned
    with safe_open(tmp_path / rest[-1] / "model.safetensors", "pt") as saved:
        assert set(saved.keys()) == {"0.bias", "0.weight", "2.bias", "2.weight"}


# Without generated code, which takes minutes here and is not what the example shows.
COMPARE_IMAGES = """
import functools, json, numpy, torchproof
torchproof.compile = functools.partial(torchproof.compile, backend="eager")
import diffusers_pipeline as example
plain, compiled = example.small_pipeline(), example.small_pipeline()
example.compile_pipeline(compiled)
errors = [
    float(numpy.abs(example.image(plain, *size) - example.image(compiled, *size)).max())
    for size in example.SIZES
]
parts = [torchproof.status(each) for each in (compiled.unet, compiled.vae.decoder)]
print(json.dumps({"errors": errors, "parts": [each.to_json() for each in parts]}))
"""


def test_diffusers_makes_images_of_all_sizes_with_one_graph(tmp_path: Path) -> None:
    need("diffusers", "integrations")
    found = answer(tmp_path, COMPARE_IMAGES)
    assert max(found["errors"]) < 1e-3  # of values from 0 to 1
    denoiser, decoder = found["parts"]
    assert denoiser["calls"] == 9 and decoder["calls"] == 3
    for part in found["parts"]:
        assert part["compiled_share"] == part["graphs"] == 1
        assert part["recompiles"] == 0 and not part["fallbacks"]
    assert documented("diffusers_pipeline.py")[0] == "python"


DECLARED = """
from benchmarks.zoo_models import declare_missing_operators
declare_missing_operators()
"""
RUN_WITH_TIMM = f"""{DECLARED}
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
"""
COMPARE_TIMM = f"""{DECLARED}
import json, torch, torchproof
import timm_model as example
plain, compiled = example.make(), torchproof.compile(example.make())
for one, other in zip(example.outputs(plain), example.outputs(compiled), strict=True):
    torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
losses = [example.fine_tune(each) for each in (plain, compiled)]
same = list(plain.state_dict()) == list(compiled.state_dict())
status = torchproof.status(compiled).to_json()
print(json.dumps(dict(losses=losses, same=same, status=status)))
"""


def test_timm_serves_and_trains_as_without_compiling(tmp_path: Path) -> None:
    """Where torchvision is built for another torch, its operators are declared."""
    need("timm", "zoo")
    need("torchvision", "zoo")
    found = answer(tmp_path, COMPARE_TIMM)
    plain, compiled = found["losses"]
    assert compiled == pytest.approx(plain, rel=1e-3) and found["same"]
    assert found["status"]["compiled_share"] == 1 and not found["status"]["fallbacks"]
    python, script = documented("timm_model.py")
    assert python == "python"
    assert "(4, 10)" in run(tmp_path, "-c", RUN_WITH_TIMM, script)
