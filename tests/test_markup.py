"""Text in Markdown: read back by a real Markdown reader, it is what it was."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from torchproof.report import markup

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = (
    "<img src=x onerror=alert(1)> & &lt; </td>",
    "[a](javascript:x) ![i](y) [x]: z [a][b]",
    "*b* **b** _i_ __init__ ~~c~~ a*b*c $x$",
    "`` `x` ``` odd ` tick ````",
    "# h",
    "1. one",
    "- item",
    "> quoted",
    "--- | --- | `a|b` \\| \\",
    "two\nlines\r\nand\u2028more",
    "\u202eturned\u200b \ud800 \x00 \x1b[31m",
    "@torch.compiler.disable torch._dynamo.config.x_y https://a.b/c_d_e.html.",
)
TEXT = st.text(
    st.characters() | st.sampled_from("`*_[]()<>|\\~#$&!@-. \n"), max_size=60
)


class Reader(HTMLParser):
    """The words of a page, and the elements that it is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def words(text: str) -> str:
    """Without white space and backticks, which say what is code."""
    return "".join(text.replace("`", "").split())


def with_hostile(test: Callable[[str], None]) -> Callable[[], None]:
    for text in HOSTILE:
        test = example(text)(test)
    return settings(max_examples=50, deadline=None)(given(TEXT)(test))


@with_hostile
def test_paragraph_is_its_text_and_nothing_else(text: str) -> None:
    page = Reader(READER.render(markup.prose(text)))
    assert page.tags <= {"p", "code"}
    assert words(page.text) == words(markup.line(text))
    markup.prose(text).encode()  # can be written to a file


@with_hostile
def test_a_cell_is_one_cell(text: str) -> None:
    shown = READER.render(markup.table(("a", "b"), [(markup.inline(text), "end")]))
    assert shown.count("<td>") == 2 and shown.count("<tr>") == 2
    assert Reader(shown).tags <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


@with_hostile
def test_a_code_span_is_one_span(text: str) -> None:
    shown = READER.render(f"x {markup.code(text)} y")
    assert shown.count("<code>") == 1
    assert words(Reader(shown).text) == words(f"x{markup.line(text)}y")


@with_hostile
def test_a_fence_ends_where_it_should(text: str) -> None:
    shown = READER.render(f"{markup.fence(text, 'python')}\n\nafter")
    assert shown.count("<pre>") == 1 and shown.endswith("<p>after</p>\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("`x.item()` ends it", "`x.item()` ends it"),
        ("2 <= x.size()[0] and a_b > 3", "2 <= x.size()[0] and a_b > 3"),
        ("set torch._dynamo.config.y", "set `torch._dynamo.config.y`"),
        ("is marked @torch.compiler.disable", "is marked `@torch.compiler.disable`"),
        ("see https://a.org/b_c.html.", "see https://a.org/b_c.html."),
        ("- 3 ms", "\\- 3 ms"),
    ],
)
def test_harmless_text_stays_readable(text: str, written: str) -> None:
    assert markup.prose(text) == written


def test_invisible_characters_are_shown() -> None:
    assert markup.inline("a\u202eb\ud800c\x00") == "a\\u202eb\\ud800c\\x00"
