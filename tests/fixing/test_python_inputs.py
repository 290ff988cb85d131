"""Tokenizers and other Python objects in compiled functions run before the graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fix_runs import fixed, verified
from sites import program, site

from torchproof.fixing.rewrites import Refused
from torchproof.fixing.rewrites.python_inputs import first


def net(*lines: str, parameters: str = "texts, image") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"import torch\n\nclass Net:\n    def forward(self, {parameters}):\n{body}\n"


def drafted(text: str, subject: str = "") -> str:
    return first(replace(site(text, "RC210"), subject=subject)).text


def test_what_reads_the_texts_runs_before_the_graph() -> None:
    text = net(
        "hidden = self.vision(image)",
        "ids = self.tokenizer(texts).to(image.device)  # <-",
        "return self.embed(ids) + hidden",
    )
    assert drafted(text, "texts[0]") == program(
        """
        import torch
        from torchproof import on_host

        class Net:
            @on_host
            def forward(self, texts, image):
                ids = self.tokenizer(texts).to(image.device)
                return self._forward_in_graph(image, ids)

            def _forward_in_graph(self, image, ids):
                hidden = self.vision(image)
                return self.embed(ids) + hidden
        """
    )


def test_python_values_made_from_the_texts_move_too() -> None:
    text = net(
        "rows = []",
        "hidden = self.vision(image)",
        "for text in texts:",
        "    rows.append([self.vocab[word] for word in text.split()])  # <-",
        "ids = torch.tensor(rows)",
        "return self.embed(ids) + hidden",
    )
    edited = drafted(text, "texts")
    host, graph = edited.split("def _forward_in_graph(self, image, ids):")
    assert "rows = []" in host and "ids = torch.tensor(rows)" in host
    assert "texts" not in graph and "rows" not in graph


def test_tensors_made_of_what_a_call_returns_move_too() -> None:
    text = net(
        "ids = self.tokenizer.encode(texts)  # <-",
        "ids = torch.tensor(ids)",
        "return self.embed(ids) + image",
    )
    host, graph = drafted(text, "texts").split("def _forward_in_graph")
    assert "torch.tensor(ids)" in host and "embed" in graph


def test_a_call_that_dynamo_cannot_trace_runs_before_the_graph() -> None:
    text = net(
        "hidden = self.vision(image)",
        "ids = torch.tensor(self.tokenizer.encode(texts))"
        "  # <- self.tokenizer.encode(texts)",
        "return self.embed(ids) + hidden",
    )
    host = drafted(text).split("def _forward_in_graph")[0]
    assert "self.tokenizer.encode(texts)" in host and "vision" not in host


def test_python_code_does_not_become_a_graph_of_its_own() -> None:
    text = net("ids = self.tokenizer(texts)  # <-", "return self.embed(ids)")
    at = replace(site(text, "RC210"), subject="texts[0]", inner="__call__")
    assert "ids = torch.compiler.disable(self.tokenizer)(texts)\n" in first(at).text


def test_each_call_of_python_code_stays_out_of_graphs() -> None:
    text = net("ids = self.pad(self.tokenizer(texts))  # <-", "return self.embed(ids)")
    at = replace(site(text, "RC210"), subject="texts[0]", inner="__call__")
    call = "torch.compiler.disable(self.pad)(torch.compiler.disable(self.tokenizer)("
    assert call in first(at).text


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("self.seen[0] = image", True),
        ("self.seen.append(image)", True),
        ("self.last = image", True),
        ("image = image + 1", False),
    ],
)
def test_a_method_that_changes_objects_keeps_its_place(
    line: str, refused: bool
) -> None:
    text = net(
        "hidden = self.look(image)",
        "ids = self.tokenizer(texts)  # <-",
        "return self.embed(ids) + hidden",
    )
    text += f"\n    def look(self, image):\n        {line}\n        return image\n"
    if refused:
        with pytest.raises(Refused, match="may change what a moved"):
            drafted(text, "texts")
    else:
        assert "_forward_in_graph" in drafted(text, "texts")


def test_a_tensor_that_changes_before_the_call_is_not_read_too_early() -> None:
    text = net(
        "hidden = image.clamp_(0, 1)",
        "n = self.count(image)  # <- self.count(image)",
        "return hidden * n",
    )
    with pytest.raises(Refused, match="uses `image` before"):
        drafted(text)


REFUSED = [
    (
        ("mixed = self.fuse(texts, image)  # <-", "return self.head(mixed)"),
        "also takes `image`, which may be a tensor",
    ),
    (
        (
            "hidden = self.vision(image)",
            "out = self.read(texts, hidden)  # <-",
            "return self.head(out)",
        ),
        "needs `hidden`, which the graph computes",
    ),
    (
        (
            "self.tokenizer.fit(image)",
            "ids = self.tokenizer(texts)  # <-",
            "return self.embed(ids)",
        ),
        "may change what",
    ),
    (
        (
            "hidden = self.vision(image)",
            "image = self.tokenizer(texts)  # <-",
            "return self.embed(image) + hidden",
        ),
        "uses `image` before",
    ),
    (
        (
            "rows = [0] * 3",
            "hidden = image * rows[0]",
            "for i, text in enumerate(texts):",
            "    rows[i] = self.vocab[text]  # <-",
            "return self.embed(rows) + hidden",
        ),
        "uses `rows` before",
    ),
    (
        (
            "self.state, hidden = self.rnn(image)",
            "ids = self.tokenizer(texts)  # <-",
            "return self.embed(ids) + hidden",
        ),
        "may change what",
    ),
    (
        ("texts = self.clean(texts)  # <-", "return self.embed(texts)"),
        "`texts` is not an argument",
    ),
    (
        ("return self.encode(image)  # <-",),
        "`texts` is read in a function that the graph calls",
    ),
]


@pytest.mark.parametrize(("lines", "why"), REFUSED)
def test_what_depends_on_tensors_stays(lines: tuple[str, ...], why: str) -> None:
    with pytest.raises(Refused, match=why):
        drafted(net(*lines), "texts")


TOKENIZER = """
import torch

class Tokenizer:
    def __init__(self):
        self.vocab = {"a": 1, "cat": 2, "dog": 3, "sat": 4}

    def __call__(self, texts):
        return torch.tensor([[self.vocab.get(w, 0) for w in t.split()] for t in texts])

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = Tokenizer()
        self.embed = torch.nn.Embedding(8, 4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, texts, scale):
        hidden = self.linear(scale)
        ids = self.tokenizer(texts)
        return self.embed(ids) * hidden

def make():
    texts = ["a cat", "a dog", "cat sat", "dog sat"]
    return Net(), [([text], torch.ones(4)) for text in texts]
"""


@pytest.mark.slow
def test_texts_do_not_recompile(tmp_path: Path) -> None:
    run = fixed(tmp_path, TOKENIZER)
    (accepted,) = verified(run)
    assert accepted.codes == ("RC210",) and accepted.receipt is not None
    assert accepted.receipt.recompiles == (3, 0)
    assert run.fixing is not None and run.fixing.remaining == ()
