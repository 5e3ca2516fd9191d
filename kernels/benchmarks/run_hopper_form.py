"""Run one form of the Hopper kernel on a small ragged call, under whatever checks it; `check_races.py` starts this.

    python kernels/benchmarks/run_hopper_form.py loop plain 7 2 1   # form, way, split counts

The ways: ``racecheck`` lets every thread arrive on the mbarriers instead of one for its group, ``consan`` has Triton
instrument the kernel, ``plain`` runs it 200 times as it is. All print what :func:`ptx_handover.find_faults` finds in
the code, but for ``consan``, whose own code stands between barriers and arrivals. Exit status 1 if a result is off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
import triton
from attention_cases import MAX_ERROR, make_case
from dsv4_kernels.decode import run_choice
from dsv4_kernels.hopper_select import FORMS, Choice
from dsv4_kernels.reference import reference_attention, relative_error
from dsv4_kernels.select import combine_config
from graph_timing import need_gpu
from ptx_handover import count_arrivals, every_thread_arrives, find_faults
from triton.backends.nvidia.compiler import CUDABackend
from words import at_least_1


def prepare(way: str) -> None:
    """Have Triton's compiler do what ``way`` asks for; what is in its cache already does not come by here."""
    make_ptx: Callable[..., str] = CUDABackend.make_ptx

    def checked_ptx(self: CUDABackend, *arguments: object, **options: object) -> str:
        ptx = make_ptx(self, *arguments, **options)
        if count_arrivals(ptx) and way != "consan":
            print(f"code: {count_arrivals(ptx)} arrivals, faults: {'; '.join(find_faults(ptx)) or 'none'}")
        return every_thread_arrives(ptx) if way == "racecheck" else ptx

    CUDABackend.make_ptx = checked_ptx
    if way == "consan":
        triton.knobs.compilation.instrumentation_mode = "consan"
        triton.set_allocator(lambda size, _align, _stream: torch.empty(size, device="cuda", dtype=torch.int8))


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("form", choices=list(FORMS))
    parser.add_argument("way", choices=("plain", "racecheck", "consan"))
    parser.add_argument("splits", nargs="+", type=at_least_1)
    asked = parser.parse_args()
    form, way = asked.form, asked.way
    need_gpu("run_hopper_form.py")
    prepare(way)
    call = make_case(3, (128, 512), "ragged", seed=3)
    expected = reference_attention(call)[0]
    choice = Choice(form, combine_config(call.rows, call.heads))
    runs = [count for count in asked.splits for _ in range(200 if way == "plain" else 1)]
    errors = [relative_error(run_choice(call, choice, count)[0], expected) for count in runs]
    wrong = sum(not error <= MAX_ERROR for error in errors)
    print(f"result: {wrong} of {len(runs)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
