"""The command line's start, as a script and as ``python -m hta_dsv4``: Ctrl-C ends it as at any later time.

Imports take about a second; an interrupt in them comes out of whichever library is being read, and as any error.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Import the command line and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, _leave)
    try:
        from hta_dsv4.cli.main import main as run
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
    run()


def _leave(_number: int, _frame: object) -> None:
    """Nothing has been opened or written yet."""
    os.write(2, b"hta-dsv4: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
