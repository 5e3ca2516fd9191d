"""Expected CTAs per SM from the CUDA occupancy calculator itself, for ``tests/data/occupancy.tsv``.

Compiles a small program against ``cuda_occupancy.h`` (it comes with the CUDA toolkit and with Triton) and asks it for
every combination of :func:`grid`. ``python -m tests.occupancy_oracle`` prints the table that is kept: a seeded sample
of the combinations; the test asks for all of them where header and compiler are there.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hta_dsv4.analysis.occupancy import SmLimits, capabilities, limits_for

THREADS = (1, 32, 33, 64, 96, 128, 160, 192, 256, 288, 384, 512, 640, 768, 1000, 1024, 1056)
REGISTERS_PER_THREAD = (0, 16, 24, 32, 33, 40, 48, 56, 64, 72, 80, 96, 104, 128, 168, 200, 255)
SHARED_BYTES = (
    0, 1, 16, 1024, 3072, 8192, 16384, 24576, 33792, 49152, 49153, 65536, 98304, 101376, 101377, 102400, 166912, 166913,
    208896, 232448, 232449, 233472,
)  # fmt: skip
COLUMNS = ("capability", "threads", "registers", "shared", "ctas", "warps", "regs", "smem", "blocks")
SAMPLE = 3000

PROGRAM = r"""
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
  int major, minor, maxThreads, threadsPerSm, regs, regsBlock, threads, r;
  unsigned long smem, optin, s;
  while (scanf("%d %d %d %d %d %d %lu %lu %d %d %lu", &major, &minor, &maxThreads, &threadsPerSm, &regs, &regsBlock,
               &smem, &optin, &threads, &r, &s) == 11) {
    cudaOccDeviceProp p;
    p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = maxThreads;
    p.maxThreadsPerMultiprocessor = threadsPerSm; p.regsPerBlock = regsBlock; p.regsPerMultiprocessor = regs;
    p.warpSize = 32; p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = smem; p.numSms = 1;
    p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes f;
    f.maxThreadsPerBlock = maxThreads; f.numRegs = r; f.sharedSizeBytes = 0;
    f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; f.maxDynamicSharedSizeBytes = s; f.numBlockBarriers = 1;
    cudaOccDeviceState state;
    cudaOccResult out;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&out, &p, &f, &state, threads, s) != CUDA_OCC_SUCCESS) return 1;
    printf("%d %d %d %d %d\n", out.activeBlocksPerMultiprocessor, out.blockLimitWarps, out.blockLimitRegs,
           out.blockLimitSharedMem, out.blockLimitBlocks);
  }
}
"""

Config = tuple[str, int, int, int]


def header_folder() -> Path | None:
    """Where ``cuda_occupancy.h`` is, or ``None``."""
    folders = [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))]
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "backends/nvidia/include")
    return next((f for f in folders if (f / "cuda_occupancy.h").is_file()), None)


def compiler() -> str | None:
    """A C++ compiler, or ``None``."""
    return shutil.which("g++") or shutil.which("clang++")


def grid() -> list[Config]:
    """Every combination: capability, threads, registers per thread, bytes of shared memory."""
    return list(itertools.product(capabilities(), THREADS, REGISTERS_PER_THREAD, SHARED_BYTES))


def ask(configs: list[Config], folder: Path, cxx: str) -> list[tuple[int, ...]]:
    """The calculator's answer for each configuration: CTAs, then by warps, registers, shared memory, blocks."""
    lines = []
    for capability, threads, registers, shared in configs:
        m: SmLimits = limits_for(capability)
        major, minor = capability.split(".")
        lines.append(
            f"{major} {minor} {m.max_threads_per_block} {m.max_warps * 32} {m.registers} {m.registers_per_block} "
            f"{m.shared} {m.shared_per_block} {threads} {registers} {shared}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = Path(scratch, "ask.cpp"), Path(scratch, "ask")
        source.write_text(PROGRAM)
        # another project's header: its own warnings are none of ours
        subprocess.run([cxx, "-w", "-O1", f"-I{folder}", str(source), "-o", str(binary)], check=True)
        done = subprocess.run(
            [str(binary)], input="\n".join(lines), text=True, capture_output=True, check=True
        )
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def main() -> None:
    """Print the kept table."""
    folder, cxx = header_folder(), compiler()
    if folder is None or cxx is None:
        sys.exit("needs cuda_occupancy.h (CUDA toolkit, or pip install triton) and a C++ compiler")
    sample = random.Random(0).sample(grid(), SAMPLE)
    print("\t".join(COLUMNS))
    for config, answer in zip(sample, ask(sample, folder, cxx), strict=True):
        print("\t".join(map(str, (*config, *answer))))


if __name__ == "__main__":
    main()
