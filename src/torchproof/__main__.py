"""`python -m torchproof` is the command line."""

import sys

# `python -m` searches the working directory first, where a file may have the name of a
# module that the command line imports. The command `torchproof` does not search it.
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from torchproof.cli import main

sys.exit(main())
