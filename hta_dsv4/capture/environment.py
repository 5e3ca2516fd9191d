"""Which machine and which software made a trace: for the manifest, never with the machine's own name."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"


def query_driver() -> subprocess.Popen[str] | None:
    """Start asking ``nvidia-smi`` for driver and clocks; ``None`` where there is none.

    Started while steps run and read afterwards, so that the clocks are those of a busy GPU and no step waits.
    """
    index = torch.cuda.current_device()
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", str(index)]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def device_facts(driver: subprocess.Popen[str] | None = None) -> dict[str, Any]:
    """The GPU in use: name, SMs, memory, capability; driver, clocks (MHz) and power limit (W) where known.

    Args:
        driver: what :func:`query_driver` returned.
    """
    if not torch.cuda.is_available():
        return {"name": "cpu", "threads": torch.get_num_threads()}
    p = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts: dict[str, Any] = {
        "name": p.name,
        "sms": p.multi_processor_count,
        "memory_gib": round(p.total_memory / 2**30, 1),
        "capability": f"{p.major}.{p.minor}",
    }
    if driver is None:
        return facts
    try:
        text, _ = driver.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.communicate()
        return facts
    values = [v.strip() for v in text.strip().split(",")]
    if len(values) == len(_QUERY.split(",")):
        facts["driver"] = values[0]
        names = ("clock_sm_mhz", "clock_memory_mhz", "clock_sm_max_mhz", "power_limit_w")
        for name, value in zip(names, values[1:], strict=True):
            try:
                facts[name] = int(float(value))
            except ValueError:  # "[N/A]" under some hypervisors
                continue
    return facts


def software_versions() -> dict[str, str]:
    """Versions of torch, triton, CUDA, Python and this package, those that are there."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for name in ("triton", "hta-dsv4"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, ``-dirty`` where tracked files differ from it.

    ``HTA_DSV4_COMMIT`` says it where ``.git`` did not travel.
    """
    if said := os.environ.get("HTA_DSV4_COMMIT"):
        return said
    here = Path(__file__).resolve()
    if not _git(here.parent, "ls-files", "--error-unmatch", here.name):
        return None  # installed inside some other project's checkout
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *words: str) -> str | None:
    """What git says of a folder; ``None`` where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.strip() or None) if done.returncode == 0 else None
