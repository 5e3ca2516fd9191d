"""How many CTAs of a kernel one SM holds at once, and what limits it.

Recomputed from block size, registers and shared memory, because a trace does not say it: Kineto's "est. achieved
occupancy" is 0 above 48 KiB of shared memory, and its "blocks per SM" is the grid divided by the SMs.

The arithmetic is the hardware's allocation, as the CUDA occupancy calculator has it for compute capability 8.0 and up:

* warps: a CTA takes ``ceil(threads / 32)`` of them;
* registers: allocated per warp in units of 256, from four sub-partitions that each own a quarter of the SM's; a CTA
  whose warps, rounded up to a multiple of 4, would need more than one CTA may have does not run at all;
* shared memory: what the CTA asks for plus 1 KiB that the driver reserves, in units of 128 bytes, out of the largest
  carve-out the SM has.

What a trace does not carry cannot limit here: a smaller carve-out, named barriers, thread-block clusters, tensor
memory of sm_100, or another kernel on the same SM. So the figure is an upper bound, as the calculator's is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from hta_dsv4.trace.model import Device, TraceMeta
from hta_dsv4.trace.toml_text import from_toml

Ints = npt.NDArray[np.int64]

WARPS, REGISTERS, SHARED, BLOCKS = "warps", "registers", "shared memory", "blocks"
LIMITS = (WARPS, REGISTERS, SHARED, BLOCKS)

_REGISTER_UNIT = 256  # registers per warp are allocated in multiples of this
_SUB_PARTITIONS = 4  # warp schedulers, each with its own quarter of the registers
_REGISTERS_PER_THREAD = 256
_SHARED_UNIT = 128
_RESERVED_SHARED = 1024  # the driver's own, per CTA
_UNLIMITED = np.iinfo(np.int64).max

# Kineto's names of the properties that override the table
_OVERRIDES = {
    "registers": "regsPerMultiprocessor",
    "registers_per_block": "regsPerBlock",
    "shared": "sharedMemPerMultiprocessor",
    "shared_per_block": "sharedMemPerBlockOptin",
    "max_threads_per_block": "maxThreadsPerBlock",
}
_OTHER_VENDORS = ("amd", "instinct", "radeon", "gfx", "intel")


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What one SM of a device holds.

    Attributes:
        capability: compute capability, e.g. ``9.0``.
        sms: streaming multiprocessors; ``None`` where the trace does not say.
        max_warps, max_blocks: resident at once on one SM.
        max_threads_per_block: largest block.
        registers, registers_per_block: 32-bit registers of one SM, and the most one CTA may have.
        shared, shared_per_block: bytes of shared memory of one SM, and the most one CTA may ask for (opt-in).
        assumed: which of these the trace does not state, so that they come from the table by compute capability.
    """

    capability: str
    sms: int | None
    max_warps: int
    max_blocks: int
    max_threads_per_block: int
    registers: int
    registers_per_block: int
    shared: int
    shared_per_block: int
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resident:
    """CTAs that one SM holds, for several kernels.

    Attributes:
        ctas: int64 [n]; 0 where the configuration cannot run on the device.
        by_limit: name of each of :data:`LIMITS` -> int64 [n], the CTAs that limit alone would admit (the largest
            int64 where it does not limit).
    """

    ctas: Ints
    by_limit: dict[str, Ints]

    def limited_by(self) -> npt.NDArray[np.object_]:
        """The limits that bind, joined by ``+`` where several do: object [n] of str."""
        out = np.full(len(self.ctas), "", dtype=object)
        for name in LIMITS:
            hit = self.by_limit[name] == self.ctas
            out[hit] = [f"{text}+{name}" if text else name for text in out[hit]]
        return out


@cache
def _table() -> dict[str, dict[str, int]]:
    text = files("hta_dsv4.analysis").joinpath("sm_limits.toml").read_text(encoding="utf-8")
    return {str(k): dict(v) for k, v in from_toml(text)["limits"].items()}


def capabilities() -> tuple[str, ...]:
    """The compute capabilities whose limits are known."""
    return tuple(_table())


def limits_for(capability: str, sms: int | None = None) -> SmLimits:
    """The limits of a compute capability, nothing overridden.

    Args:
        capability: one of :func:`capabilities`.
        sms: streaming multiprocessors of the device.

    Raises:
        KeyError: the capability is not in the table.
    """
    row = _table()[capability]
    assumed = ("max_warps", "max_blocks", *_OVERRIDES)
    return SmLimits(
        capability=capability, sms=sms, max_warps=row["max_warps"], max_blocks=row["max_blocks"],
        max_threads_per_block=1024, registers=row["registers"], registers_per_block=row["registers"],
        shared=row["shared"], shared_per_block=row["shared_per_block"], assumed=assumed,
    )  # fmt: skip


def device_limits(device: Device | None) -> tuple[SmLimits | None, str]:
    """The limits of a device as its trace describes it.

    Args:
        device: an entry of ``deviceProperties``, or ``None`` where the trace has none for the kernel's device.

    Returns:
        The limits and an empty string, or ``None`` and why they are unknown.
    """
    if device is None:
        return None, "the trace has no deviceProperties for this GPU"
    name, warp = device.name or "unnamed GPU", device.properties.get("warpSize", 32)
    if warp != 32 or any(v in name.lower() for v in _OTHER_VENDORS):
        return None, f"{name}: the limits of other vendors' compute units are not known here"
    major, minor = device.properties.get("computeMajor"), device.properties.get("computeMinor")
    if not (isinstance(major, int) and isinstance(minor, int)):
        return None, f"{name}: deviceProperties lack computeMajor and computeMinor"
    capability = f"{major}.{minor}"
    if capability not in _table():
        return (
            None,
            f"{name}: compute capability {capability} is not in the table (it has {', '.join(_table())})",
        )
    base = limits_for(capability, device.num_sms)
    found = {ours: _positive(device, theirs) for ours, theirs in _OVERRIDES.items()}
    stated = {ours: value for ours, value in found.items() if value is not None}
    if (threads := _positive(device, "maxThreadsPerMultiprocessor")) is not None:
        stated["max_warps"] = threads // 32
    values = {n: getattr(base, n) for n in SmLimits.__dataclass_fields__}
    return SmLimits(**{**values, **stated, "assumed": tuple(a for a in base.assumed if a not in stated)}), ""


def _positive(device: Device, key: str) -> int | None:
    value = device.properties.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None


def device_entry(meta: TraceMeta, index: int | None) -> Device | None:
    """The ``deviceProperties`` entry of a kernel's device.

    Args:
        meta: metadata of the trace.
        index: the kernel's device; ``None`` or -1 where it names none.

    Returns:
        The entry of that number; the only entry where there is one (ROCm numbers kernels by the node's GPU and the
        entries by the process's, and a kernel may name none); else ``None``.
    """
    known = {d.index: d for d in meta.devices}
    return known.get(-1 if index is None else index) or (meta.devices[0] if len(known) == 1 else None)


def resident_ctas(limits: SmLimits, threads: Ints, registers: Ints, shared: Ints) -> Resident:
    """CTAs that one SM holds at once.

    Args:
        limits: of the device.
        threads: int64 [n], threads per CTA, >= 1.
        registers: int64 [n], registers per thread; 0 does not limit.
        shared: int64 [n], bytes of shared memory per CTA, static and dynamic, without the driver's own.

    Returns:
        The CTAs and what each limit alone admits.
    """
    warps = -(-threads // 32)
    by_warps = np.where(threads <= limits.max_threads_per_block, limits.max_warps // np.maximum(warps, 1), 0)

    per_warp = _round_up(registers * 32, _REGISTER_UNIT)
    quarter = limits.registers // _SUB_PARTITIONS
    by_registers = quarter // np.maximum(per_warp, 1) * _SUB_PARTITIONS // np.maximum(warps, 1)
    # The launch check counts warps as if every sub-partition had to hold as many as the fullest.
    too_many = (per_warp * _round_up(warps, _SUB_PARTITIONS) > limits.registers_per_block) | (
        registers > _REGISTERS_PER_THREAD
    )
    by_registers = np.where(too_many, 0, np.where(per_warp == 0, _UNLIMITED, by_registers))

    allocated = _round_up(shared + _RESERVED_SHARED, _SHARED_UNIT)
    fits = allocated <= limits.shared_per_block + _RESERVED_SHARED
    by_shared = np.where(fits, limits.shared // allocated, 0)

    by_limit = {
        WARPS: by_warps, REGISTERS: by_registers, SHARED: by_shared,
        BLOCKS: np.full(len(threads), limits.max_blocks, dtype=np.int64),
    }  # fmt: skip
    return Resident(np.minimum.reduce([by_limit[n] for n in LIMITS]), by_limit)


def _round_up(values: Ints, unit: int) -> Ints:
    return -(-values // unit) * unit
