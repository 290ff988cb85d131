"""`python -m torchproof` is the command line."""

import sys

from torchproof.cli import main

sys.exit(main())
