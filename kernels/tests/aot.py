"""Compile kernels for GPUs that are not there, and read what the compiler made of them.

The tests themselves run Triton in its interpreter, which cannot compile, so compilation happens in child
processes of their own (this file run as a script) without ``TRITON_INTERPRET``. Triton's disk cache makes
a second run cheap. No GPU or driver is needed: ptxas and the disassembler ship inside the triton package.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parents[1]
SM120_SHARED_LIMIT = 99 * 1024
TENSOR_CORE = re.compile(r"^(HMMA|QMMA|OMMA|IMMA|HGMMA|QGMMA|IGMMA|UTC\w*MMA)")


@dataclass(frozen=True)
class Request:
    """One kernel to compile.

    Attributes:
        module: Module the kernel lives in, ``dsv4_kernels.mma``.
        kernel: The ``@triton.jit`` function's name.
        target: Compute capability as one number: 90, 100 or 120.
        signature: Type of every argument that is not a constexpr, in any order: ``*bf16``, ``i32``, ``fp32``.
            Pointers count as 16-byte aligned; an integer that is a multiple of 16 is written ``i64:16``.
        constexprs: Value of every constexpr argument. Lists become tuples; ``tl.bfloat16`` and the like are
            written as strings that start with ``tl.``. An integer argument that is 1 at run time belongs
            here too: the JIT makes it a constant.
        warps: ``num_warps``.
        stages: ``num_stages``, the kernel-wide default.
        options: Further compile options.
        keep_ptx: Whether the PTX is wanted too.
    """

    module: str
    kernel: str
    target: int
    signature: dict[str, str]
    constexprs: dict[str, Any]
    warps: int = 4
    stages: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    keep_ptx: bool = False


@dataclass(frozen=True)
class Compiled:
    """What came out.

    Attributes:
        registers: Registers per thread.
        stack: Stack frame in bytes per thread.
        spills: Local-memory instructions (STL and LDL) in the machine code.
        shared: Static plus dynamic shared memory per block, in bytes.
        opcodes: Machine instructions by mnemonic up to the first dot (``HGMMA``, ``BAR``, ...).
        error: The compiler's complaint, empty if it compiled; then everything else is 0.
        ptx: The PTX if it was asked for, else empty.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    opcodes: dict[str, int]
    error: str = ""
    ptx: str = ""

    @property
    def tensor_core(self) -> int:
        """Tensor-core instructions."""
        return sum(count for name, count in self.opcodes.items() if TENSOR_CORE.match(name))


def _value(value: Any, tl: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, tl) for item in value)
    if isinstance(value, str) and value.startswith("tl."):
        return getattr(tl, value[3:])
    return value


def _compile(request: Request) -> Compiled:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(request.module), request.kernel)
    constants = {name: _value(value, tl) for name, value in request.constexprs.items()}
    signature, attributes = {}, {}
    for position, name in enumerate(function.arg_names):
        kind = "constexpr" if name in constants else request.signature[name]
        kind, _, divisor = kind.partition(":")
        signature[name] = kind
        if kind.startswith("*") or divisor == "16":
            attributes[(position,)] = [["tt.divisibility", 16]]
    unknown = (set(request.signature) | set(constants)) - set(function.arg_names)
    if unknown:
        raise ValueError(f"{request.kernel} has no argument {', '.join(sorted(unknown))}")
    build = ASTSource
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as build  # noqa: N813
    source = build(function, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": request.warps, "num_stages": request.stages, **request.options}
    binary = triton.compile(source, target=GPUTarget("cuda", request.target, 32), options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [str(tool), "-sass", "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    if usage is None:
        raise RuntimeError("cuobjdump printed no resource usage")
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", text, re.MULTILINE)
    opcodes = Counter(names)
    # cuobjdump's SHARED holds the static part and the 1 KiB the system reserves from sm_90 on, which is not
    # counted against the block's limit.
    static = int(usage[3]) - 1024
    shared = int(binary.metadata.shared) + max(0, static)
    ptx = binary.asm["ptx"] if request.keep_ptx else ""
    return Compiled(
        int(usage[1]), int(usage[2]), opcodes["STL"] + opcodes["LDL"], shared, dict(opcodes), ptx=ptx
    )


def _child(requests: list[Request]) -> list[Compiled]:
    results = []
    for request in requests:
        try:
            results.append(_compile(request))
        except Exception as error:  # the compiler raises whatever it likes; the caller judges
            results.append(Compiled(0, 0, 0, 0, {}, f"{type(error).__name__}: {error}"))
    return results


def compile_all(requests: Sequence[Request], workers: int | None = None) -> list[Compiled]:
    """Compile every request, in up to ``workers`` child processes.

    Args:
        requests: What to compile.
        workers: By default one per CPU, at most 4; of CPUs that parallel test processes share, this one's part
            (each child imports Torch and Triton first, which is 2 s of a CPU).

    Returns:
        Results in the order of the requests; a failed one carries its ``error``.
    """
    mine = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    count = min(workers or max(1, min(4, mine)), len(requests))
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(KERNELS), environment.get("PYTHONPATH", "")])
    children = []
    for worker in range(count):
        share = [asdict(request) for request in requests[worker::count]]
        child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(share))
        child.stdin.close()
        children.append(child)
    results: list[Compiled | None] = [None] * len(requests)
    for worker, child in enumerate(children):
        assert child.stdout is not None
        output = child.stdout.read()
        if child.wait() != 0:
            raise RuntimeError(f"the compiling process failed with status {child.returncode}")
        # Compilers may print; the result is the last line.
        results[worker::count] = [Compiled(**item) for item in json.loads(output.strip().splitlines()[-1])]
    return [result for result in results if result is not None]


if __name__ == "__main__":
    answers = _child([Request(**item) for item in json.load(sys.stdin)])
    print(json.dumps([asdict(answer) for answer in answers]))


def assert_clean(requests: Sequence[Request], tensor_cores: str) -> None:
    """Compile for every target: no error, no spills, shared memory legal on the smallest card.

    Args:
        requests: What to compile.
        tensor_cores: Part of the names of those kernels, and of no others, whose machine code uses tensor cores.
    """
    for request, made in zip(requests, compile_all(requests), strict=True):
        label = f"{request.kernel} sm_{request.target}: {made.error}"
        assert not made.error, label
        assert made.spills == 0, label
        assert made.shared <= SM120_SHARED_LIMIT, label
        assert (made.tensor_core > 0) == (tensor_cores in request.kernel), label
