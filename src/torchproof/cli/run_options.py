"""How a target is run, as the flags of a verb say."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torchproof.cli import flags

if TYPE_CHECKING:
    from torchproof.api import Options


def run_options(options: argparse.Namespace) -> Options:
    from torchproof.api import Options

    return Options(
        compile=flags.compile_arguments(options.compile),
        as_written=options.as_written,
        train=options.train,
        device=options.device,
        size=options.size,
        timeout_s=options.timeout,
        quiet=options.quiet,
    )
