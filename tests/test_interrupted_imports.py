"""Ctrl-C before the command line has been imported."""

from __future__ import annotations

import subprocess
import sys

from tests.heed import heed

START = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.{number})
sys.meta_path.insert(0, Interrupts())
{before}
sys.argv = ["hta-dsv4", "--version"]
runpy.run_module("hta_dsv4", run_name="__main__")
"""


def start(name: str, before: str = "", number: str = "SIGINT") -> tuple[int, bytes]:
    """Exit code and stderr of a start that is interrupted when ``name`` is imported."""
    code = START.format(name=name, before=before, number=number)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, preexec_fn=heed)
    return done.returncode, done.stderr


def test_interrupted_while_importing():
    """SIGINT or SIGTERM while a library is imported -> interrupted, exit 130, no traceback."""
    for name, number in (
        ("hta_dsv4.cli.main", "SIGINT"),
        ("pandas", "SIGTERM"),
        ("hta_dsv4.cli.sweep", "SIGINT"),
    ):
        assert start(name, number=number) == (130, b"hta-dsv4: interrupted\n")


def test_started_in_the_background():
    """SIGINT ignored by who started it -> goes on."""
    assert start("pandas", "signal.signal(signal.SIGINT, signal.SIG_IGN)") == (0, b"")
