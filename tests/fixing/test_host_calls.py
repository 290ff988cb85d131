"""Work that leaves the graph: calls on the host, and what runs before the graph."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from sites import program, site
from test_fixer import fixed

from torchproof.fixing.observed_calls import ObservedCall, Value
from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.host_calls import call
from torchproof.fixing.rewrites.host_prefix import split

HELPER = """
import torch


def positions(ids, start):
    return torch.stack([torch.arange(n) for n in ids.tolist()])


def step(x, ids):
    where = positions(ids, 1)  # <- positions(ids, 1)
    return x[where]
"""


def seen(count: int, given: str, **changes: object) -> ObservedCall:
    ids = Value("tensor", (count,), "torch.int64", "cpu")
    result = Value("tensor", (count, 4), "torch.int64", "cpu")
    known = ObservedCall({"0": ids}, (result,), False, given)
    return replace(known, **changes)  # type: ignore[arg-type]


def drafted(*observed: ObservedCall) -> str:
    at = replace(site(HELPER), inner="positions", probe=lambda text: observed)
    return call(at).text


def test_sizes_are_those_of_an_argument_or_constants() -> None:
    text = drafted(seen(2, "a"), seen(3, "b"))
    assert "from torchproof import host_call\n" in text
    new = """\
    where = host_call(
        positions, ids, 1, like=ids.new_empty((ids.shape[0], 4), dtype=torch.int64)
    )
"""
    assert "".join(new.split()).replace(",)", ")") in "".join(text.split()).replace(
        ",)", ")"
    )


OTHER = Value("tensor", (2, 5), "torch.int64", "cpu")
REFUSED = {
    "is not known before": (seen(2, "a"), seen(2, "b", results=(OTHER,))),
    "always gets the same values": (seen(2, "a"), seen(3, "a")),
    "changes an argument": (seen(2, "a", problem="it changes an argument"),),
    "does not run": (),
    "not tensors": (seen(2, "a", results=(Value("other", dtype="list"),)),),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_known_shape_is_refused(reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        drafted(*REFUSED[reason])


ON_HOST = """
import numpy as np
import torch

def spans(shape, lengths):
    mask = np.zeros(shape, dtype=bool)
    for row, limit in enumerate(lengths.tolist()):
        start = np.random.randint(0, max(limit - 2, 1))
        mask[row, start : start + 2] = True
    return mask

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, lengths):
        y = self.linear(x)
        mask = spans((x.shape[0], x.shape[1]), lengths)
        mask = torch.tensor(mask, device=x.device)
        return y * mask[..., None]

def make():
    lengths = [torch.tensor([3, 6]), torch.tensor([5, 4]), torch.tensor([6, 6])]
    return Net(), [(torch.randn(2, 6, 8), each) for each in lengths]
"""


def test_a_call_that_draws_random_numbers_runs_on_the_host(tmp_path: Path) -> None:
    run = fixed(tmp_path, ON_HOST)
    (accepted,) = [each for each in run.fixes if each.status == "verified"]
    assert "on the host" in accepted.title and accepted.tier == "safe"
    assert "torch.as_tensor(mask" in accepted.diff
    assert accepted.receipt is not None
    assert accepted.receipt.graphs[1] == 1 and accepted.receipt.breaks[1] == 0


TOKENIZER = """
import re
import torch

class Tokenizer:
    def __init__(self):
        self.known = {}

    def __call__(self, text):
        words = re.findall("[a-z]+", text)
        return [self.known.setdefault(word, len(self.known)) for word in words]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = Tokenizer()
        self.embed = torch.nn.Embedding(50, 8)

    def forward(self, text, scale=2.0):
        ids = torch.tensor(self.tokenizer(text))
        x = self.embed(ids)
        return x.relu() * scale

def make():
    texts = ["a quick brown fox", "jumps over the dog", "and over the fox"]
    return Net(), [(text,) for text in texts]
"""


def test_a_tokenizer_runs_before_the_graph(tmp_path: Path) -> None:
    run = fixed(tmp_path, TOKENIZER)
    (accepted,) = [each for each in run.fixes if each.status == "verified"]
    assert "before the graph" in accepted.title
    assert accepted.receipt is not None
    assert accepted.receipt.recompiles == (2, 0) and accepted.receipt.graphs == (3, 1)


def forward(lines: str, decorator: str = "") -> str:
    head = "import torch\n\n\nclass Net(torch.nn.Module):\n"
    method = f"{decorator}def forward(self, x, sizes):\n"
    block = textwrap.indent(textwrap.dedent(lines).strip("\n"), "    ")
    return head + textwrap.indent(f"{method}{block}\n", "    ")


def test_live_variables_become_parameters() -> None:
    text = forward(
        """
        n = sizes.tolist()  # <-
        y = self.linear(x)
        return torch.split(y, n)
        """
    )
    record = ObservedCall({}, (), False, "")
    at = replace(site(text), is_root=True, probe=lambda text: [record])
    assert split(at).text == program(
        """
        import torch


        class Net(torch.nn.Module):
            @torch.compiler.disable(recursive=False)
            def forward(self, x, sizes):
                n = self._before_forward(sizes)
                return self._compiled_forward(x, n)

            @torch.compiler.disable
            def _before_forward(self, sizes):
                n = sizes.tolist()
                return n

            def _compiled_forward(self, x, n):
                y = self.linear(x)
                return torch.split(y, n)
        """
    )


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("n = sizes.tolist()  # <-\nreturn n", "nothing to compile"),
        (
            "if x is None:\n    n = 1\nm = sizes.tolist()  # <-\nreturn self.f(n, m)",
            "not assigned on every path",
        ),
        (
            "if x is None:\n    return 1\nm = sizes.tolist()  # <-\nreturn self.f(m)",
            "returns",
        ),
        ("n = sizes.tolist()  # <-\ndel x\nreturn self.f(n)", "`del`"),
        ("n = sizes.tolist()  # <-\nyield self.f(n)", "`yield`"),
    ],
)
def test_a_forward_that_cannot_be_split_is_refused(lines: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        split(replace(site(forward(lines)), is_root=True))


def test_statements_that_use_parameters_stay_in_the_graph() -> None:
    text = forward("y = self.a(x)\nn = sizes.tolist()  # <-\nreturn self.f(y, n)")
    record = ObservedCall({}, (), False, "", problem="they compute with parameters")
    at = replace(site(text), is_root=True, probe=lambda text: [record])
    with pytest.raises(Refused, match="would run eagerly"):
        split(at)
