"""`python -m isograd`, the same as the command `isograd` (for `torchrun -m isograd train ...`)."""

import sys

from isograd.cli import main

if __name__ == "__main__":
    sys.exit(main())
