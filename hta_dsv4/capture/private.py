"""Names of the machine and its user, taken out of a trace before it is kept. Torch-free."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_NUMBERS = frozenset({"Input Dims", "Input Strides"})  # large, and no names in them


def private_names() -> list[tuple[re.Pattern[str], str]]:
    """Patterns of what must not leave this machine and what stands in their place.

    Folders that Python imports from, the current folder and the one for temporary files become nothing (paths turn
    relative), the home folder ``~``, host and user name ``host`` and ``user``. Names of fewer than three letters and
    the generic ones (``root``, ``localhost``) identify nobody and stay.
    """
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], paths["stdlib"], os.getcwd(), tempfile.gettempdir()}
    folders |= {folder for folder in sys.path if os.path.isabs(folder)}
    longest_first = sorted((f.rstrip("/") + "/" for f in folders if len(f) > 1), key=len, reverse=True)
    found = [(re.compile(re.escape(f)), "") for f in longest_first]
    found.append((re.compile(re.escape(str(Path.home())) + r"(?=/|$)"), "~"))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user id without a name
        user = ""
    host = socket.gethostname()
    for name, stand_in in ((host, "host"), (host.split(".")[0], "host"), (user, "user")):
        if len(name) >= 3 and name not in {"localhost", "root", "user", "host"}:
            found.append((re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])"), stand_in))
            # the compiler's cache folder, whose files generated kernels are said to come from
            found.append((re.compile(rf"(?<=torchinductor_){re.escape(name)}(?![\w-])"), stand_in))
    return found


def hide_names(trace: dict[str, Any], events: Iterable[dict[str, Any]], name: str) -> str:
    """Replace, in place, what :func:`private_names` finds in a trace.

    Args:
        trace: the profiler's file, decoded.
        events: its ``traceEvents``.
        name: what the file is to be called; the profiler wrote the path of its own.

    Returns:
        One sentence on what was taken out.
    """
    patterns = private_names()

    @cache  # a trace repeats few distinct texts many times
    def text(value: str) -> str:
        for pattern, stand_in in patterns:
            value = pattern.sub(stand_in, value)
        return value

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [clean(v) for v in value]
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        return value

    for key in [k for k in trace if k != "traceEvents"]:
        trace[key] = clean(trace[key])
    trace["traceName"] = name
    if "host_name" in trace:  # newer profilers write it, however short it is
        trace["host_name"] = "host"
    for event in events:
        # Kernels, operators and launches are named by libraries; only these kinds are named by the machine's user.
        if event.get("ph") == "M" or event.get("cat") in (
            "python_function",
            "user_annotation",
            "gpu_user_annotation",
        ):
            event["name"] = clean(event.get("name", ""))
        # Any event's arguments may hold a path: an operator says which file its generated kernel came from.
        args = event.get("args")
        if args:
            for key, value in args.items():
                if key not in _NUMBERS and isinstance(value, (str, dict, list)):
                    args[key] = clean(value)
    return "host name, user name and user paths"
