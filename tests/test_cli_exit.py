"""How the command line ends: closed and full outputs, Ctrl-C, foreign encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hta_dsv4 import shipped
from tests.heed import heed

PROBE = str(shipped.traces()["h200_probe"])
COMMAND = f"{sys.executable} -m hta_dsv4"


def sh(line: str, data: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", line],
        input=data,
        capture_output=True,
        check=False,
        env={**os.environ, **env},
        timeout=120,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [f"shares {PROBE} --json", f"shares {PROBE}", "--help", "explain x --csv"])
def test_a_full_disk_is_one_line_and_exit_code_2(words):
    """Output that cannot be written -> one line, exit 2, no traceback, nothing more at exit."""
    done = sh(f"{COMMAND} {words} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "hta-dsv4: the output cannot be written: No space left on device"
    ]


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (f"{COMMAND} shares {PROBE} >&-", 2, "cannot be written"),
        (f"{COMMAND} explain - <&-", 2, "stdin is closed"),
        (f"{COMMAND} shares /nowhere 2>&-", 2, ""),
        (f"{COMMAND} shares {PROBE} >&- 2>&-", 2, ""),
        (f"{COMMAND} shares {PROBE} <&-", 0, ""),
    ],
)
def test_closed_streams_are_mistakes_of_one_line(line, code, says):
    """stdin, stdout or stderr closed -> at most one line, the right exit code."""
    done = sh(line)
    assert done.returncode == code
    assert says in done.stderr.decode()
    assert done.stderr.count(b"\n") == (1 if says else 0)


@pytest.mark.parametrize("words", [f"shares {PROBE} --by kernel", f"shares {PROBE} --json", "--help"])
def test_a_reader_that_leaves_is_no_error_in_any_form(words):
    """Output into a reader that never reads -> exit 0, nothing on stderr."""
    done = sh(f"{COMMAND} {words} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == (b"0\n", b"")


def test_names_on_stdin_are_utf8_in_every_locale_and_never_a_crash():
    """UTF-8 and stray bytes on stdin in the C locale -> names as written, stray bytes as escapes."""
    data = "核\n".encode() + b"a\xffb\n"
    for env in (
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "utf-8:strict"},
    ):
        done = sh(f"{COMMAND} explain - --json", data, **env)
        assert (done.returncode, done.stderr) == (0, b"")
        assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["核", "a\\xffb"]


def test_ctrl_c_during_a_read_is_one_line_and_130(tmp_path):
    """SIGINT while a trace is read from a pipe that stays open -> interrupted, exit 130."""
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    run = subprocess.Popen(
        [sys.executable, "-m", "hta_dsv4", "shares", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run started in the background ignores SIGINT, and its children inherit that.
        preexec_fn=heed,
    )
    with pipe.open("wb", buffering=0) as writer:  # opens once the command has opened its end
        writer.write(b'{"traceEvents": [')
        time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out, err) == (130, b"", b"hta-dsv4: interrupted\n")


def test_the_version_is_told():
    """--version -> one line with the version, exit 0."""
    done = sh(f"{COMMAND} --version")
    assert (done.returncode, done.stdout.split()[0]) == (0, b"hta-dsv4")
