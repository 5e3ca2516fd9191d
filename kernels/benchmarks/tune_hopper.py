"""Measure which form and which combine are the fastest on an sm_90 GPU, and write what "auto" looks up.

    python kernels/benchmarks/tune_hopper.py --out kernels/dsv4_kernels/hopper_choices.json

For every shape and batch: each form (the plain Triton split-K among them) with the combine tile that split-K would
take, then those within a tenth of the fastest with each combine tile. Times as in ``sparse_mla.py``, cold: every call
has its own data. About two minutes on an H200. One run; forms within a percent of each other may change places.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels._device import describe_device
from dsv4_kernels.call import DecodeCall
from dsv4_kernels.decode import run_choice
from dsv4_kernels.hopper_select import FORMS, Choice, hopper_splits
from dsv4_kernels.hopper_support import unavailable
from dsv4_kernels.layout import PagedKV
from dsv4_kernels.select import CombineConfig, combine_config, split_configs
from sparse_mla import EXTRA_PAGE, HEADS, MAIN_PAGE, SHAPES, cold_count, make_calls, make_pool, time_calls
from words import at_least_1, writable

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TILES = tuple(
    CombineConfig(*tile, eager=eager)
    for tile in ((1, 128, 1), (1, 256, 2), (1, 512, 2), (1, 512, 4), (2, 512, 4), (4, 512, 8))
    for eager in (False, True)
)
Cell = tuple[str, int]
Trial = tuple[str, int, Choice, int]


def splits_of(form: str, widths: tuple[int, ...], batch: int) -> int:
    """Split count that ``form`` takes."""
    device = describe_device(torch.empty(0, device="cuda"))
    if form == "split_k":
        return split_configs(device, batch, HEADS, widths)[1]
    return hopper_splits(batch, HEADS, widths, device.num_sms, FORMS[form].block_t)


def lists(shape: str) -> tuple[int, ...]:
    """Widths of a shape's lists, without those of no tokens."""
    return tuple(width for width in SHAPES[shape] if width)


def compile_trials(trials: list[Trial]) -> None:
    """Run each trial once on little data, which compiles it."""
    small = make_pool(1e6, MAIN_PAGE, 1), make_pool(1e6, EXTRA_PAGE, 2)
    for shape, batch, choice, _ in trials:
        run_choice(make_calls(small, SHAPES[shape], batch, 1)[0], choice)
    torch.cuda.synchronize()


def compile_all(cells: Iterable[Cell]) -> None:
    """Compile whatever the measurement will launch, in processes side by side; Triton's cache keeps it."""
    distinct: dict[object, Trial] = {}
    for (shape, batch), form in product(cells, (*FORMS, "split_k")):
        splits = splits_of(form, lists(shape), batch)
        kernel = (form, batch) if form == "split_k" else (form, splits == 1)
        distinct[len(lists(shape)), kernel] = (shape, batch, Choice(form, TILES[0]), splits)
        for tile in TILES if splits > 1 else ():  # the combine does not know whose partials it merges
            distinct[splits, tile] = (shape, batch, Choice(form, tile), splits)
    trials = list(distinct.values())
    workers = max(1, min(14, multiprocessing.cpu_count() - 1))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_trials, [trials[i::workers] for i in range(workers)]))
    print(f"compiled {len(trials)} launches", flush=True)


def measure_cell(shape: str, batch: int, calls: list[DecodeCall]) -> dict[str, object]:
    """The fastest choice for a shape and batch, as an entry of the file."""

    def microseconds(choice: Choice) -> float:
        return time_calls(lambda call: run_choice(call, choice), calls, warm_calls=0, replays=10)[0]

    usual = combine_config(batch, HEADS)
    by_form = {form: microseconds(Choice(form, usual)) for form in (*FORMS, "split_k")}
    times = {Choice(form, usual): time for form, time in by_form.items()}
    # The tile moves a form by up to a tenth: those that near the best are tried with all of them.
    for form in by_form:
        if splits_of(form, lists(shape), batch) > 1 and by_form[form] < 1.1 * min(by_form.values()):
            times |= {Choice(form, tile): microseconds(Choice(form, tile)) for tile in TILES if tile != usual}
    choice = min(times, key=times.__getitem__)
    form, best, best_us = choice.form, choice.combine, times[choice]
    others = ", ".join(f"{name} {time:.2f}" for name, time in by_form.items())
    print(f"{shape:>9} B={batch:<4} {form:>12} {best_us:7.2f} us  combine ({best.block_h}, {best.columns}, "
          f"{best.warps}{', eager' if best.eager else ''}); {others}", flush=True)  # fmt: skip
    return {
        "tokens": list(lists(shape)), "rows": batch, "form": form,
        "combine": [best.block_h, best.columns, best.warps], "eager": best.eager,
        "microseconds": round(best_us, 2),
    }  # fmt: skip


def write(path: Path, entries: list[dict[str, object]]) -> None:
    """The file ``dsv4_kernels.hopper_select`` reads, a choice a line."""
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    card = json.dumps(torch.cuda.get_device_name())
    path.write_text(f'{{\n "card": {card},\n "choices": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=at_least_1, default=list(BATCHES))
    parser.add_argument("--out", type=writable, required=True, help="where the choices go")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tune_hopper.py: no CUDA device; this measures kernels and needs one")
    reason = unavailable(describe_device(torch.empty(0, device="cuda")))
    if reason:
        sys.exit(f"tune_hopper.py: the Hopper form needs {reason}")
    cells = [(shape, batch) for shape in options.shapes for batch in options.batches]
    compile_all(cells)
    pools: tuple[PagedKV, PagedKV] = make_pool(1.07e9, MAIN_PAGE, 1), make_pool(4.29e9, EXTRA_PAGE, 2)
    entries = []
    for shape, batch in cells:
        calls = make_calls(pools, SHAPES[shape], batch, cold_count(SHAPES[shape], batch))
        entries.append(measure_cell(shape, batch, calls))
    write(options.out, entries)


if __name__ == "__main__":
    main()
