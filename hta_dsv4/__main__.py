"""The command line's start, as a script and as ``python -m hta_dsv4``: Ctrl-C ends it as at any later time.

Imports take about a second; an interrupt in them comes out of whichever library is being read, and as any error.
"""

from __future__ import annotations

import os

from hta_dsv4.cli.interrupts import interrupt, spoken_by_rank_0, take_signals


def main() -> None:
    """Import the command line and run it."""
    take_signals(_leave)
    from hta_dsv4.cli.main import main as run

    take_signals(interrupt)
    run()


def _leave(_number: int, _frame: object) -> None:
    """Nothing has been opened or written yet."""
    if not spoken_by_rank_0():
        os.write(2, b"hta-dsv4: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
