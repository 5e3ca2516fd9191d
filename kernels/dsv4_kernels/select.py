"""Which configuration a kernel runs with: data and pure functions of static shapes, never a timing.

Tuning while serving would break CUDA graphs (a capture may not benchmark) and make results depend on
noise, so the choices are written down here, by device family, in the order they are tried. The figures in
the comments are microseconds per call at 128 + 512 tokens and 64 heads on an H200, cold, combine included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dsv4_kernels._device import Device

EVEN = (128, 128, 128, 128)  # the last tile holds the last 64 e4m3 columns and the 64 rotary ones
SPLIT_LAST = (128, 128, 128, 64, 64)
FINE = (64,) * 8
WGMMA_SHARED = 227 * 1024  # bytes a block may have on sm_90; sm_120 has 99 KiB

Policy = Literal["one_wave", "campaign"]


@dataclass(frozen=True)
class MmaConfig:
    """Shape of a tensor-core kernel.

    Attributes:
        block_h: Heads per program.
        block_t: Tokens per block.
        tiles: How the 512 head dimensions are cut; the last tile ends in the 64 rotary ones.
        warps: Warps per program.
        stages: Software-pipelining depth of the token loop.
        ahead: Read the next block's slots in the loop body rather than in the software pipeline.
        pdl: Programmatic dependent launch: the next kernel's blocks are placed while this one drains.
    """

    block_h: int
    block_t: int
    tiles: tuple[int, ...]
    warps: int
    stages: int
    ahead: bool = False
    pdl: bool = True


@dataclass(frozen=True)
class CombineConfig:
    """Shape of the combine.

    Attributes:
        block_h: Heads per program.
        columns: Of 512, per program.
        warps: Warps per program.
        partials: Type of the splits' outputs.
        pdl: As :attr:`MmaConfig.pdl`.
        eager: Read the partial outputs beside the sums that say whether they were written, for up to
            ``EAGER_SPLITS`` splits: one latency less, more registers.
    """

    block_h: int
    columns: int
    warps: int
    partials: Literal["bf16", "f32"] = "bf16"
    pdl: bool = True
    eager: bool = False


@dataclass(frozen=True)
class Family:
    """The configurations of one kind of device.

    Attributes:
        single: Tried in order for splits of one block each: the first whose grid fits the device at once.
        short: For programs that walk at most ``SHORT_BLOCKS`` of its blocks; None if ``loop`` is as good.
        loop: Otherwise.
    """

    single: tuple[MmaConfig, ...]
    short: MmaConfig | None
    loop: MmaConfig


SHORT_BLOCKS = 3


# sm_90. One block per program as long as all fit on the SMs: B=1 6.6 (4 programs of 16 heads a row beat one
# of 64), B=4 10.3, B=8 12.2 (64 tokens a block, or the grid would not fit).
# The loop: B=64 34.9, B=128 56.5. Five stages, because the gather hangs behind the load of its indices; three
# with the slots read ahead take 38.8 and 63.2. But where a program walks two or three blocks, the deep
# pipeline costs more to fill than it hides: B=16 18.2 with three stages and slots ahead, 19.5 with five.
# EVEN spills in a loop (65.1 at B=128), FINE waits for sixteen products a block instead of ten (60.1).
WGMMA = Family(
    single=(
        MmaConfig(16, 32, EVEN, 8, 1),
        MmaConfig(64, 32, EVEN, 8, 1),
        MmaConfig(64, 64, EVEN, 8, 1),
    ),
    short=MmaConfig(64, 32, SPLIT_LAST, 8, 3, ahead=True),
    loop=MmaConfig(64, 64, SPLIT_LAST, 8, 5),
)
# sm_120, and whatever else has no wgmma or less shared memory: mma.sync products of 16 to 32 heads, within
# 99 KiB and without spills (asserted by the AOT tests; no such card was at hand to time them).
# sm_100 too: its tensor memory cannot hold these accumulators and products of 64 heads as Triton lays them
# out (the compiler emits a trap instead), while 32 heads go through mma.sync.
SMALL = Family(
    single=(MmaConfig(16, 32, SPLIT_LAST, 4, 1),),
    short=None,
    loop=MmaConfig(32, 32, FINE, 8, 3),
)
EAGER_SPLITS = 32  # all their outputs are in registers at once
MAX_SPLITS = 64  # the combine reads every split; past this it costs more than the loop saves
LARGEST_SPLITS = (
    256  # on request: the combine is unrolled over them, and thousands would take minutes to compile
)


def family(device: Device) -> Family:
    """The configurations for a device."""
    return WGMMA if device.capability == 90 and device.shared_limit >= WGMMA_SHARED else SMALL


def count_blocks(widths: tuple[int, ...], block_t: int) -> int:
    """Blocks of the padded lists; a block never straddles two of them."""
    return sum(-(-width // block_t) for width in widths)


def loop_config(device: Device, heads: int) -> MmaConfig:
    """Configuration for programs that walk several blocks of a list."""
    config = family(device).loop
    # Half a tile of heads that do not exist is half the work thrown away; wgmma has no smaller tile.
    return replace(config, block_h=16) if config.block_h == 32 and heads <= 16 else config


def single_config(device: Device, rows: int, heads: int, widths: tuple[int, ...]) -> MmaConfig | None:
    """Configuration for programs of one block each.

    Args:
        device: Where they run.
        rows: Query tokens.
        heads: Query heads.
        widths: Padded width of each scope.

    Returns:
        The family's first ``single`` configuration whose programs fit the SMs all at once, or None.
    """
    for config in family(device).single:
        blocks = count_blocks(widths, config.block_t)
        programs = rows * -(-heads // config.block_h) * blocks
        if blocks <= MAX_SPLITS and programs <= device.num_sms:
            return config
    return None


def split_configs(
    device: Device, rows: int, heads: int, widths: tuple[int, ...], splits: int | None = None
) -> tuple[MmaConfig, int]:
    """Configuration and split count of the split-K kernel.

    Args:
        device: Where it runs.
        rows: Query tokens.
        heads: Query heads.
        widths: Padded width of each scope.
        splits: The caller's split count; None to choose.

    Returns:
        The configuration, and the split count: the caller's, held to the number of blocks and to
        ``LARGEST_SPLITS``, or the choice.
    """
    if splits is not None:
        splits = min(splits, LARGEST_SPLITS)
    single = single_config(device, rows, heads, widths)
    if single is not None:
        blocks = count_blocks(widths, single.block_t)
        if splits is None or splits >= blocks:
            return single, blocks
    chosen = family(device)
    for config in (chosen.short, loop_config(device, heads)):
        if config is None:
            continue
        blocks = count_blocks(widths, config.block_t)
        count = min(splits, blocks) if splits else num_splits(
            rows, heads, widths, device.num_sms, block_h=config.block_h, block_t=config.block_t
        )  # fmt: skip
        if config is not chosen.short or (count > 1 and -(-blocks // count) <= SHORT_BLOCKS):
            break
    assert config is not None
    return config, count


def combine_config(rows: int, heads: int) -> CombineConfig:
    """Configuration of the combine.

    One program per row, head and 512 columns while that is few programs; several heads a program when there
    are thousands, whose launch alone costs (one kernel of 8448 empty programs takes 5.7 us). The wrong tile
    costs up to 17 us: (1, 128) at B=64 takes 57.0 where (2, 512) takes 40.1. Eager reads pay while the combine is
    all latency: B=1 6.75 to 6.48, B=4 10.13 to 9.84; at B=8 they cost, 11.75 to 12.19.
    """
    if rows * heads <= 64:
        return CombineConfig(1, 256, 2, eager=True)
    if rows * heads <= 256:
        return CombineConfig(1, 512, 4, eager=True)
    if rows * heads <= 2048:
        return CombineConfig(1, 512, 4)
    return CombineConfig(2, 512, 4)


def num_splits(
    rows: int,
    heads: int,
    widths: tuple[int, ...],
    num_sms: int,
    *,
    block_h: int,
    block_t: int,
    policy: Policy = "one_wave",
) -> int:
    """Programs that share one row's token list; a pure function of static shapes, so that graphs hold.

    Policies:

    * ``one_wave`` (default): as many as fit on the SMs at once, one program on each. Any more and some SM
      runs two in turn (B=32: 5 splits, 160 programs, 31.2 us; 4 splits, 23.5, in a study of the same
      kernel); fewer leave SMs empty (B=16: 8 splits 18.8 us, 5 splits 20.0).
    * ``campaign``: the rule of the published optimisation campaign: fill every SM at least once (it aimed at
      one to two programs an SM on 188 SMs), at most 16 splits, at least 32 tokens each.

    Args:
        rows: Query tokens (B times q_len).
        heads: Query heads.
        widths: Padded width of each scope in tokens.
        num_sms: Streaming multiprocessors.
        block_h: Heads per program.
        block_t: Tokens per block.
        policy: See above.

    Returns:
        1 or more, and never more than there are blocks; 1 means the single-launch kernel.

    Raises:
        ValueError: The policy is unknown, or a size is not positive.
    """
    sizes = {"rows": rows, "heads": heads, "num_sms": num_sms, "block_h": block_h, "block_t": block_t}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected a positive integer, got {size}")
    blocks = max(1, count_blocks(widths, block_t))
    base = rows * -(-heads // block_h)
    if policy == "one_wave":
        return max(1, min(blocks, num_sms // base, MAX_SPLITS))
    if policy == "campaign":
        return max(1, min(blocks, -(-num_sms // base), sum(widths) // 32, 16))
    raise ValueError(f"policy: expected one_wave or campaign, got {policy!r}")
