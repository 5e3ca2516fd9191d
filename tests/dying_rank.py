"""Run by test_dying_rank, as several processes: ``hta-dsv4 capture`` of which one rank ends badly.

The first word is how (``die``: without a word; ``stop``: it is stopped, as by SIGSTOP; ``fail``: by a fault of its own;
``hang-up``: when all traces are written), the second which rank, the others are the command line's.
"""

from __future__ import annotations

import os
import signal
import sys

import torch

from hta_dsv4.capture import lookout, one_voice, rank_files
from hta_dsv4.capture.workload import DecodeStep
from hta_dsv4.cli.main import main
from hta_dsv4.errors import HtaDsv4Error

HOW, WHO = sys.argv[1], int(sys.argv[2])
MINE = int(os.environ["RANK"]) == WHO
STEPS = 3


def die() -> None:
    """As when the system kills a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """As when the system freezes a process; what ends it is a kill."""
    os.kill(os.getpid(), signal.SIGSTOP)


def plant() -> None:
    """Have this rank end in its third step, or when its trace is written."""
    torch.set_num_threads(1)
    lookout.SILENT_S, one_voice.SPOKEN_S, one_voice._STORE_S = 6.0, 4.0, 2.0
    if not MINE:
        return
    if HOW == "hang-up":
        rank_files.of_all_ranks = lambda *_: die()  # type: ignore[assignment]
        return
    whole, calls = DecodeStep.__call__, 0

    def step(self: DecodeStep) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == STEPS:
            if HOW == "fail":
                raise HtaDsv4Error("out of memory (planted)")
            {"die": die, "stop": stop}[HOW]()
        return whole(self)

    DecodeStep.__call__ = step  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main(sys.argv[3:])
