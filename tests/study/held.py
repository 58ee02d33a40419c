"""`isograd`, whose processes stop after HELD_AFTER steps each: what is spawned imports the program that spawns it.

With HELD_ENDED and HELD_IN, only the steps count that are taken when so many runs in that folder have ended.
"""

import os
import signal
import sys
from pathlib import Path

from isograd.cli import main
from tests.study.processes import hold

ENDED, FOLDER = int(os.environ.get("HELD_ENDED", "0")), Path(os.environ.get("HELD_IN", "."))

if __name__ in ("__main__", "__mp_main__"):
    hold(int(os.environ["HELD_AFTER"]), ready=lambda: len(list(FOLDER.glob("*/outcome.json"))) >= ENDED)
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests with '&'
    sys.exit(main())
