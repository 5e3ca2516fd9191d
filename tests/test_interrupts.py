"""What the first signal does, what more of them do, and when: processes that interrupt themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.heed import heed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
START = """
import atexit, logging, os, signal, sys, threading, time, warnings
from hta_dsv4.cli import interrupts
from hta_dsv4.cli.exit import run_and_exit

def poke(name="SIGINT"):
    os.kill(os.getpid(), getattr(signal, name))

def pause():
    time.sleep(30)

{before}
interrupts.take_signals(interrupts.interrupt)

def command():
{body}

run_and_exit(command)
"""
SAID = "hta-dsv4: interrupted\n"


def run(body: str, before: str = "", **env: str) -> tuple[int, str]:
    """Exit code and stderr of a command of that body."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", START.format(body=lines, before=before)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **env},
        preexec_fn=heed,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_one_ends_the_command(name):
    """Ctrl-C, a polite kill, a closed terminal -> one line, exit 130."""
    assert run(f"poke('{name}'); pause()") == (130, SAID)


def test_more_while_things_are_put_in_order():
    """A second and third one in the cleaning up of the first -> it is done, once."""
    body = """
try:
    poke(); pause()
finally:
    poke(); time.sleep(0.1); poke("SIGTERM"); time.sleep(0.1)
    print("in order", file=sys.stderr)
"""
    assert run(body) == (130, "in order\n" + SAID)


def test_one_more_after_a_while_breaks_off():
    """Cleaning up that hangs -> after the patience another ends it."""
    body = """
try:
    poke(); pause()
finally:
    time.sleep(0.2); poke(); time.sleep(20)
"""
    assert run(body, "interrupts.PATIENCE_S = 0.1") == (130, SAID)


def test_one_more_as_the_interpreter_ends():
    """A thread that Python waits for at its end, and another signal -> leaves at once, no traceback."""
    body = """
threading.Thread(target=lambda: (time.sleep(0.5), poke(), time.sleep(20))).start()
poke(); pause()
"""
    assert run(body, "interrupts.PATIENCE_S = 0.1") == (130, SAID)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_one_more_at_the_very_end(name):
    """Another signal while objects are taken away after all is over -> exit 130, not killed by that signal."""
    before = f"""
class Late:
    def __init__(self):
        self.kill, self.pid, self.number = os.kill, os.getpid(), signal.{name}
    def __del__(self):
        self.kill(self.pid, self.number)
sys.modules["late"] = Late()
"""
    assert run("poke(); pause()", before) == (130, SAID)


def test_what_falls_over_says_nothing():
    """Logs, warnings, threads and destructors that fail because of an interrupt -> not a word of theirs."""
    body = """
class Broken:
    def __del__(self):
        raise ValueError("destructor")
try:
    poke(); pause()
finally:
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    warnings.warn("never awaited")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start(); thread.join()
    Broken()
"""
    assert run(body) == (130, SAID)


def test_in_a_destructor():
    """A signal while an object is taken away, where Python drops what is raised -> raised again, the command ends."""
    body = """
class Slow:
    def __del__(self):
        poke()
Slow()
pause()
"""
    assert run(body) == (130, SAID)


def test_in_code_made_of_text(tmp_path):
    """A signal in ``exec`` of a string (as dataclasses are made), which Python notes -> exit 130, no end by SIGINT."""
    (tmp_path / "made.py").write_text(START.format(body="    exec('poke(); pause()')", before=""))
    done = subprocess.run(
        [sys.executable, "-m", "made"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        preexec_fn=heed,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, SAID)


def test_caught_by_a_library():
    """A signal whose exception a library catches -> the command goes on to its own end, with its own exit code."""
    body = """
try:
    exec("poke(); pause()")
except BaseException:
    pass
print("out")
raise OSError(28, "full")
"""
    code, said = run(body)
    assert code == 2
    assert said.startswith("hta-dsv4: ")


def test_ignored_in_the_background():
    """SIGINT and SIGHUP ignored by who started it -> the command goes on."""
    before = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert run("poke(); poke('SIGHUP')", before) == (0, "")


def test_a_handler_of_somebody_else_stays():
    """SIGTERM handled by the program around -> its handler is called."""
    before = "signal.signal(signal.SIGTERM, lambda *_: print('mine', file=sys.stderr))"
    assert run("poke('SIGTERM')", before) == (0, "mine\n")


def test_under_torchrun():
    """Ctrl-C to all ranks -> the first says so; SIGTERM is left to the capture, which knows what it means there."""
    ranks = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}
    assert run("poke(); pause()", **ranks, RANK="0") == (130, SAID)
    assert run("poke(); pause()", **ranks, RANK="1") == (130, "")
    assert run("poke('SIGTERM'); pause()", **ranks, RANK="1") == (-signal.SIGTERM, "")
