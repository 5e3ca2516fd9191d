"""compute-sanitizer's memcheck and racecheck over a small case of every kernel.

    python kernels/benchmarks/check_memory.py              # all, side by side
    python kernels/benchmarks/check_memory.py --small moe  # one case without a sanitizer: what it is given to run

Racecheck of the Hopper form is `check_races.py`'s, since the kernel has to be shown to it in another shape. The
compute-sanitizer is that on the PATH, or the one COMPUTE_SANITIZER names: racecheck 2025.3 breaks off in the MoE case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch
from attention_cases import MAX_ERROR, make_case
from check_races import Outcome, find_sanitizer, run, tool_failure
from dsv4_kernels._device import describe_device
from dsv4_kernels.decode import Variant, run_call, run_choice
from dsv4_kernels.hopper_select import FORMS, Choice
from dsv4_kernels.hopper_support import unavailable
from dsv4_kernels.indexer import indexer_logits, indexer_topk
from dsv4_kernels.mhc import hc_head, mhc_post, mhc_pre
from dsv4_kernels.moe_fp4 import moe_fp4, random_experts, route
from dsv4_kernels.reference import reference_attention, relative_error
from dsv4_kernels.select import combine_config
from graph_timing import relative
from indexer import compare_topk, generate_pool
from mhc import generate_site

ATTENTION = ("simt", "mma", "split_k", "hopper")
# What the sanitizer instruments: torch's own kernels are not ours to check, and slow under it.
OUR_KERNELS = ("sparse_mla", "_moe_", "_indexer_", "_mhc_", "_hc_head")


def small_attention(variant: Variant) -> bool:
    """One small ragged case; split-K and Hopper in each of their loop forms."""
    call = make_case(3, (128, 512), "ragged", seed=3)
    expected = reference_attention(call)[0]
    # The choice for this size takes one block a program; 8 and 2 splits make it loop, 1 writes the output itself.
    counts = (None, 8, 2, 1) if variant in ("split_k", "hopper") else (None,)
    error = max(relative_error(run_call(call, variant, count)[0], expected) for count in counts)
    if variant == "hopper":  # its other forms, which this size would not choose
        for form in FORMS:
            choice = Choice(form, combine_config(call.rows, call.heads))
            for count in (7, 2, 1):
                error = max(error, relative_error(run_choice(call, choice, count)[0], expected))
    print(f"small {variant}: relative error {error:.2e}")
    return error <= MAX_ERROR


def small_moe() -> bool:
    """Routing plain, biased, with most experts barred and by table; experts in both formats, few and many tokens."""
    good = True
    for tokens in (1, 5, 40):
        logits, bias = torch.randn(tokens, 16, device="cuda"), torch.randn(16, device="cuda")
        barred = torch.where(torch.arange(16, device="cuda") < 9, float("-inf"), bias)
        ids, weights = route(logits, bias=bias, variant="triton")
        for name, given in (("plain", None), ("bias", bias), ("barred", barred)):
            chosen, shares = route(logits, bias=given, variant="triton")
            want_ids, want_shares = route(logits, bias=given, variant="torch")
            right = torch.equal(chosen, want_ids) and relative(shares, want_shares) < 1e-4
            good &= right
            if not right:
                print(f"small moe: route {name}, {tokens} tokens: wrong")
        # Three experts left for six places: those three first, then barred ones, none twice.
        scarce = torch.where(torch.arange(16, device="cuda") < 13, float("-inf"), bias)
        chosen, want_ids = (route(logits, bias=scarce, variant=variant)[0] for variant in ("triton", "torch"))
        distinct = (chosen.sort(dim=1).values.diff(dim=1) > 0).all()
        good &= bool(distinct) and torch.equal(chosen[:, :3], want_ids[:, :3])
        by_table = route(logits, hash_ids=ids, variant="triton")[1]
        good &= relative(by_table, route(logits, hash_ids=ids, variant="torch")[1]) < 1e-4
        for fmt in ("mxfp4", "nvfp4"):
            experts = random_experts(16, 256, 256, fmt, device="cuda")
            x = torch.randn(tokens, 256, device="cuda").bfloat16()
            want = moe_fp4(x, experts, ids, weights, variant="torch")
            error = relative(moe_fp4(x, experts, ids, weights, variant="triton"), want)
            print(f"small moe: {fmt}, {tokens} tokens: relative error {error:.1e}")
            good &= error < 8e-3
    return good


def small_indexer() -> bool:
    """Logits of both query dtypes and the selection, lengths 0 to past a tile, pages scattered."""
    pool, width = generate_pool(64), 4096
    lengths = torch.tensor([0, 1, 700, width], dtype=torch.int32, device="cuda")
    table = torch.stack([torch.randperm(64, device="cuda") for _ in lengths]).int()
    q = torch.randn(4, 64, 128, device="cuda").to(torch.float8_e4m3fn)
    weights = torch.randn(4, 64, device="cuda")
    want = indexer_logits(q, pool, weights, table, lengths, variant="torch_fp32")
    worst = 0.0
    for query in (q, q.to(torch.bfloat16)):
        got = indexer_logits(query, pool, weights, table, lengths, variant="triton")
        worst = max(
            [worst, *(relative(got[i, :n], want[i, :n]) for i, n in enumerate(lengths.tolist()) if n)]
        )
    slots = indexer_topk(want, lengths, table, 512, variant="triton")
    compare_topk(want, lengths, table, 512, slots)
    print(f"small indexer: relative error {worst:.1e}, selection exact")
    return worst < 2e-3


def small_mhc() -> bool:
    """The four mHC kernels at one and at 17 tokens."""
    worst = 0.0
    for tokens in (1, 17):
        x, site = generate_site(tokens)
        first, head = site.fn[:4].contiguous(), (site.scale[:1], site.base[:4])
        got, want = (mhc_pre(x, site, variant=variant) for variant in ("fused", "torch"))
        mixed, mixed_want = (mhc_post(got[0], x, *got[1:], variant=variant) for variant in ("fused", "torch"))
        heads, heads_want = (hc_head(x, first, *head, variant=variant) for variant in ("fused", "torch"))
        pairs = [*zip(got, want, strict=True), (mixed, mixed_want), (heads, heads_want)]
        worst = max([worst, *(relative(a, b) for a, b in pairs)])
    print(f"small mhc: relative error {worst:.1e}")
    return worst < 2e-3


OTHERS: dict[str, Callable[[], bool]] = {"moe": small_moe, "indexer": small_indexer, "mhc": small_mhc}


def run_small(name: str) -> bool:
    """Run the small case of one kernel; True if it is right."""
    torch.manual_seed(0)
    return OTHERS[name]() if name in OTHERS else small_attention(cast(Variant, name))


def check_memory(names: Sequence[str]) -> bool:
    """Both tools over the small cases of ``names``, side by side; True if neither has anything to report."""
    tool = find_sanitizer()
    if tool is None:
        print("sanitizer: NOT RUN, no compute-sanitizer on the PATH")
        return True

    def start(name: str, check: str) -> Outcome:
        only = [part for kernel in OUR_KERNELS for part in ("--kernel-name", f"kernel_substring={kernel}")]
        command = [tool, "--tool", check, "--error-exitcode", "9", *only, sys.executable, __file__]
        return run([*command, "--small", name], 200)

    if not names:
        return True
    pairs = [(n, c) for n in names for c in ("memcheck", "racecheck") if (n, c) != ("hopper", "racecheck")]
    good = True
    with ThreadPoolExecutor(12) as pool:
        for (name, check), outcome in zip(pairs, pool.map(start, *zip(*pairs, strict=True)), strict=True):
            lines = [line for line in outcome.text.splitlines() if "SUMMARY" in line]
            good &= outcome.status == 0
            verdict = lines[-1].strip("= ") if lines else outcome.text.strip().splitlines()[-1:]
            verdict = tool_failure(outcome.text) or verdict
            status = "ran past its time" if outcome.status is None else f"exit {outcome.status}"
            print(f"sanitizer {check} {name}: {status}, {verdict}", flush=True)
            if outcome.status != 0:  # the reports themselves, without the program's own calls
                told = [
                    line for line in outcome.text.splitlines() if "Frame" not in line and line.strip("= ")
                ]
                print("\n".join(told[:60]))
    return good


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (*ATTENTION, *OTHERS)
    parser.add_argument("--small", choices=names, help="run the small case of one kernel and nothing else")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("check_memory.py: no CUDA device")
    if options.small:
        sys.exit(0 if run_small(options.small) else 1)
    reason = unavailable(describe_device(torch.empty(0, device="cuda")))
    if reason and "hopper" in options.only:
        print(f"hopper: NOT RUN, needs {reason}")
        options.only.remove("hopper")
    sys.exit(0 if check_memory(options.only) else 1)


if __name__ == "__main__":
    main()
