"""`isograd`, whose processes stop after HELD_AFTER steps each: what is spawned imports the program that spawns it."""

import os
import sys

from isograd.cli import main
from tests.study.processes import hold

if __name__ in ("__main__", "__mp_main__"):
    hold(int(os.environ["HELD_AFTER"]))
if __name__ == "__main__":
    sys.exit(main())
