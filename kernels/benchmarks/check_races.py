"""Is the Hopper form free of races? What three checkers say of it, of planted faults, and of hand-overs that are right.

    python kernels/benchmarks/check_races.py                     # the forms; minutes, ConSan compiles for one each
    python kernels/benchmarks/check_races.py --faults --controls # and what shows that the checkers see anything

No checker sees everything, so three look (`kernels/README.md`, "Right", has the findings):

* *racecheck* (compute-sanitizer) follows plain loads and stores of shared memory, and an mbarrier only for the
  thread that arrives on it. Triton has one thread arrive for 128; so it is shown the kernel with each thread arriving
  (:mod:`ptx_handover`), which must have no report. `stmatrix`, `ldmatrix` and the products' reads it does not see.
* *ConSan* (Triton's concurrency sanitizer) follows whole groups of warps through mbarriers and sees tiles and
  products, but not what the warps of a group do to each other, nor a product that outlives its buffer by little.
* The code itself is read for that: a barrier of the group before each arrival, products ended, tiles fenced.

The compute-sanitizer is that on the PATH, or the one COMPUTE_SANITIZER names. Before 2026 it also reports the words
by which Triton hands its warps their jobs; those lie in `hopper.py`, which loads and stores no shared memory itself,
and are counted apart. Exit status 1 if a form fails, a fault is missed by all, or a right hand-over is reported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels.hopper_select import FORMS
from race_faults import FAULTS, plant

KERNELS = Path(__file__).resolve().parents[1]
# A report's accesses, by source line: "... in hopper_consume.py:157".
_ACCESS = re.compile(r"(?:Read|Write) access at .*? in (\S+?):(\d+)")
_TRITONS_OWN = "hopper.py"
# Where faults are planted: with splits 2 and 1 any form walks over its buffers more than once.
FAULTY_FORM = next(name for name, form in FORMS.items() if form.block_t == 64)


@dataclass(frozen=True)
class Outcome:
    """What a process left: its exit status (None if it was stopped at its time limit) and all that it printed."""

    status: int | None
    text: str


def run(command: list[str], limit: float, **environment: str) -> Outcome:
    """Run a command; stop it and all its children after ``limit`` seconds."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=os.environ | environment, start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return Outcome(None, text)
    return Outcome(process.returncode, text)


def find_sanitizer() -> str | None:
    """The compute-sanitizer to use, or None."""
    return os.environ.get("COMPUTE_SANITIZER") or shutil.which("compute-sanitizer")


def sanitizer_version(tool: str) -> str:
    """As it says itself, ``2025.3.1``; empty if it does not."""
    found = re.search(r"Version (\d+\.\d+\.\d+)", run([tool, "--version"], 60).text)
    return found[1] if found else ""


def tool_failure(text: str) -> str | None:
    """What the compute-sanitizer says of a failure of its own, which its summary counts as one hazard; None if none."""
    found = re.search(r"Internal Sanitizer Error: (.*)", text)
    return f"the tool itself failed ({found[1].strip().rstrip('.')})" if found else None


def split_reports(text: str) -> tuple[set[str], int]:
    """What racecheck reported: where the kernel's own lie, and how many concern Triton's words alone.

    Returns:
        ``file:line file:line`` of each pair of accesses (or ``?`` where a report names no source), and a count.
    """
    own: set[str] = set()
    tritons = 0
    for report in re.split(r"^=+ (?:Error|Warning): Race reported between ", text, flags=re.MULTILINE)[1:]:
        places = _ACCESS.findall(report)
        if places and all(file == _TRITONS_OWN for file, _ in places):
            tritons += 1
        else:
            own.add(" ".join(sorted({f"{file}:{line}" for file, line in places})) or "?")
    return own, tritons


def child_command(kernels: Path, *arguments: str) -> list[str]:
    """The program that runs a form, from another copy of the kernels if need be."""
    return [sys.executable, str(kernels / "benchmarks" / "run_hopper_form.py"), *arguments]


class Checks:
    """The checks, each a process of its own, side by side; the results are asked for afterwards."""

    def __init__(self, folder: Path, tool: str | None) -> None:
        self.folder, self.tool = folder, tool
        self.pool = ThreadPoolExecutor(15)
        self.caches = 0

    def _cached(self, command: list[str], limit: float, **environment: str) -> Future[Outcome]:
        # Another Triton cache for every process: what is cached is not compiled, so neither read nor rewritten.
        self.caches += 1
        cache = str(self.folder / f"cache{self.caches}")
        return self.pool.submit(run, command, limit, TRITON_CACHE_DIR=cache, **environment)

    def racecheck(self, kernels: Path, form: str, counts: tuple[int, ...]) -> Future[Outcome] | None:
        """Racecheck over a form in which every thread arrives."""
        if self.tool is None:
            return None
        command = child_command(kernels, form, "racecheck", *map(str, counts))
        only = ["--kernel-name", "kernel_substring=sparse_mla_hopper"]
        return self._cached([self.tool, "--tool", "racecheck", *only, *command], 150)

    def consan(self, kernels: Path, form: str, count: int) -> Future[Outcome]:
        """A form under Triton's concurrency sanitizer."""
        command = child_command(kernels, form, "consan", str(count))
        # A failed assertion is known at the launch that it was in.
        return self._cached(command, 200, CUDA_LAUNCH_BLOCKING="1")

    def plain(self, kernels: Path, form: str, counts: tuple[int, ...]) -> Future[Outcome]:
        """The results alone, 200 times each, and the code read."""
        return self._cached(child_command(kernels, form, "plain", *map(str, counts)), 90)

    def control(self, program: Path, case: str) -> Future[Outcome]:
        """Racecheck over one hand-over of ``racecheck_control.cu``."""
        assert self.tool is not None
        return self.pool.submit(run, [self.tool, "--tool", "racecheck", str(program), case], 60)


def say_racecheck(outcome: Outcome | None) -> tuple[str, bool | None]:
    """In words, and whether it saw a race in the kernel's own accesses; None if it did not run to its end."""
    if outcome is None:
        return "NOT RUN, no compute-sanitizer", None
    failure = tool_failure(outcome.text)
    if failure:
        return failure, None
    if "RACECHECK SUMMARY" not in outcome.text:
        return f"did not end ({(outcome.text.strip().splitlines() or ['no output'])[-1]})", None
    own, tritons = split_reports(outcome.text)
    words = f", {tritons} on Triton's own words" if tritons else ""
    return f"{len(own)} reports{words} {', '.join(sorted(own)[:3])}".rstrip(), bool(own)


def say_consan(outcome: Outcome) -> tuple[str, bool | None]:
    """In words, and whether it stopped the kernel; None if it neither did nor let it end."""
    asserted = re.search(r"(\w+\.py:\d+).*Assertion `(.*?)` failed", outcome.text)
    if asserted:
        return f"{asserted[1]}: {asserted[2]}", True
    if "result:" in outcome.text:
        return "silent", False
    return f"did not end ({(outcome.text.strip().splitlines() or ['no output'])[-1]})", None


def say_plain(outcome: Outcome) -> tuple[str, str, bool | None]:
    """Results and code in words, and whether the code has a fault; None if that was not read."""
    result = re.search(r"result: (.*)", outcome.text)
    code = re.findall(r"code: \d+ arrivals, faults: (.*)", outcome.text)
    faults = sorted(set(code) - {"none"})
    return result[1] if result else "did not end", "; ".join(faults) or "none", bool(faults) if code else None


def check_forms(checks: Checks) -> Callable[[], bool]:
    """Start every form under every checker; the function that is returned waits, prints and judges."""
    started = {
        form: (checks.racecheck(KERNELS, form, (7, 2, 1)), checks.plain(KERNELS, form, (7, 2, 1)),
               [checks.consan(KERNELS, form, count) for count in (2, 1)])
        for form in FORMS
    }  # fmt: skip

    def finish() -> bool:
        good = True
        hopper = (KERNELS / "dsv4_kernels" / _TRITONS_OWN).read_text(encoding="utf-8")
        if re.search(r"(?<!\bgl)\.(load|store)\(", hopper):
            good = False
            print(f"races: {_TRITONS_OWN} touches shared memory itself; reports there are not Triton's own")
        # Line by line as they end: what a time limit cuts off is then the rest only.
        for form, (racecheck, _, _) in started.items():
            words, raced = say_racecheck(racecheck.result() if racecheck else None)
            good &= raced is False or racecheck is None
            print(f"races {form:>11}: racecheck, every thread arriving: {words}", flush=True)
        for form, (_, plain, _) in started.items():
            results, code, faulty = say_plain(plain.result())
            good &= faulty is False and results.startswith("0 of")
            print(f"races {form:>11}: faults in the code: {code}; results: {results}", flush=True)
        for form, (_, _, consans) in started.items():
            for name, consan in zip(("split", "whole"), consans, strict=True):
                words, stopped = say_consan(consan.result())
                good &= stopped is False
                print(f"races {form:>11}: ConSan, {name}: {words}", flush=True)
        return good

    return finish


def check_faults(checks: Checks) -> Callable[[], bool]:
    """Start every planted fault under every checker, on one form."""
    started = {}
    for name in FAULTS:
        kernels = plant(name, KERNELS, checks.folder / name)
        started[name] = (checks.racecheck(kernels, FAULTY_FORM, (2, 1)), checks.consan(kernels, FAULTY_FORM, 2),
                         checks.plain(kernels, FAULTY_FORM, (2, 1)))  # fmt: skip

    def finish() -> bool:
        good = True
        print(f"{'fault':>14} | racecheck | ConSan | the code | results")
        for name, (racecheck, consan, plain) in started.items():
            race_words, raced = say_racecheck(racecheck.result() if racecheck else None)
            consan_words, stopped = say_consan(consan.result())
            results, code, faulty = say_plain(plain.result())
            good &= bool(raced or stopped or faulty)
            print(f"{name:>14} | {race_words} | {consan_words} | {code} | {results}")
        return good

    return finish


def check_controls(checks: Checks) -> Callable[[], bool]:
    """Start every hand-over of ``racecheck_control.cu``; right ones with all threads arriving must not be reported."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or checks.tool is None:
        print(f"controls: NOT RUN, no {'nvcc' if nvcc is None else 'compute-sanitizer'}")
        return lambda: True
    program = checks.folder / "control"
    source = str(Path(__file__).with_name("racecheck_control.cu"))
    subprocess.run(
        [nvcc, "-O2", "-lineinfo", "-gencode=arch=compute_90a,code=sm_90a", "-o", str(program), source],
        check=True,
    )
    started = {case: checks.control(program, case) for case in run([str(program)], 30).text.split()}

    def finish() -> bool:
        good = True
        shapes: dict[str, list[str]] = {}
        for case, future in started.items():
            shape, _, arrival = case.rpartition("-")
            text = future.result().text
            found = re.search(r"SUMMARY: (\d+) hazard", text)
            wrong = re.search(r"(\d+) of \d+ results wrong", text)
            shapes.setdefault(shape, []).append(
                f"{arrival} {found[1] if found else '?'} ({wrong[1] if wrong else '?'} wrong)"
            )
            if arrival == "all" and "matrix" not in shape:
                good &= found is not None and (int(found[1]) > 0) == shape.startswith("racy")
        for shape, words in shapes.items():
            print(f"control {shape:>13}: reports by who arrives: {', '.join(words)}")
        return good

    return finish


def check_all(forms: bool, faults: bool, controls: bool) -> bool:
    """Run what was asked for side by side; True if all is as it should be."""
    tool = find_sanitizer()
    print(f"races: compute-sanitizer {sanitizer_version(tool) if tool else 'NOT FOUND, racecheck not run'}")

    def waiting(checks: Checks) -> Iterator[Callable[[], bool]]:
        if forms:
            yield check_forms(checks)
        if faults:
            yield check_faults(checks)
        if controls:
            yield check_controls(checks)

    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(Path(folder), tool)
        with checks.pool:
            verdicts = [finish() for finish in list(waiting(checks))]
    return all(verdicts)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", action="store_true", help="also plant each fault and see who notices")
    parser.add_argument("--controls", action="store_true", help="also the hand-overs of racecheck_control.cu")
    parser.add_argument("--no-forms", action="store_true", help="leave the forms themselves out")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("check_races.py: no sm_90 GPU; what needs none is in kernels/tests/test_hopper_handover.py")
    good = check_all(not options.no_forms, options.faults, options.controls)
    print("all right" if good else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
