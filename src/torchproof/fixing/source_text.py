"""Source files as text: read, digested, and written so that only the edits differ."""

from __future__ import annotations

import hashlib
import io
import tokenize
from dataclasses import dataclass

from torchproof.records import UserError, cells


@dataclass(frozen=True)
class SourceText:
    """The text of a source file with its line endings, and its encoding."""

    text: str
    encoding: str  # with `utf-8-sig`, the file begins with a mark that is not in `text`

    def encoded(self, text: str) -> bytes:
        """Another text in the same encoding."""
        return text.encode(self.encoding)


def read_source(file: str) -> SourceText:
    """Reads a file as Python does; raises `UserError` if that is not possible."""
    try:
        content = cells.read_source(file)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceText(content.decode(encoding), encoding)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the source {file}: {why}") from None


def digest(text: str) -> str:
    """The SHA-256 of a text; line endings do not count."""
    lines = "\n".join(text.splitlines())
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
