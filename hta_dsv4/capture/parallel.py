"""Several ranks: who this process is among them, and the collectives of a tensor-parallel step.

``torchrun`` starts one process per GPU and says in the environment which is which. A single process has the same
interface and no collectives, so that the step is written once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from hta_dsv4.errors import HtaDsv4Error

T = TypeVar("T")
LONGEST = timedelta(minutes=10)
"""How long a rank may wait for the others, to meet or in a collective: NCCL's own default; gloo's is thrice that."""
_NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ranks of a tensor-parallel group.

    Attributes:
        rank: from 0.
        world_size: how many there are; 1 is a process of its own.
        local_rank: which GPU of this host.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to share with."""
        return self.world_size == 1

    @property
    def first(self) -> bool:
        """Whether this one speaks and writes for all."""
        return self.rank == 0

    def device(self, kind: str) -> str:
        """The device of this rank: ``cuda:<local rank>`` among several ranks, else ``kind`` as it is.

        Raises:
            HtaDsv4Error: there is no such GPU on this host.
        """
        if kind != "cuda" or self.alone:
            return kind
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise HtaDsv4Error(
                f"rank {self.rank} needs a GPU of its own and this host has {count}; "
                f"start at most {max(count, 1)} with --nproc-per-node"
            )
        return f"cuda:{self.local_rank}"


ALONE = Ranks()


def ranks_from_environment(environ: Mapping[str, str] | None = None) -> Ranks:
    """What ``torchrun`` says about this process; a single process where it did not start it.

    Args:
        environ: the environment; this process's where absent.

    Raises:
        HtaDsv4Error: ``WORLD_SIZE`` asks for several ranks and the rest of what torchrun sets is missing or no number.
    """
    environ = os.environ if environ is None else environ
    size = environ.get("WORLD_SIZE", "1")
    if size == "1":
        return ALONE
    missing = [name for name in _NEEDED if name not in environ]
    if missing:
        raise HtaDsv4Error(
            f"WORLD_SIZE is {size} and {', '.join(missing)} not set: start with torchrun --nproc-per-node N "
            "-m hta_dsv4 capture ..., or unset WORLD_SIZE for a single process"
        )
    try:
        ranks = Ranks(int(environ["RANK"]), int(size), int(environ["LOCAL_RANK"]))
    except ValueError:
        raise HtaDsv4Error(
            f"RANK {environ['RANK']!r}, WORLD_SIZE {size!r}, LOCAL_RANK {environ['LOCAL_RANK']!r}: not whole numbers; "
            "start with torchrun, or unset WORLD_SIZE"
        ) from None
    if not 0 <= ranks.rank < ranks.world_size or ranks.local_rank < 0:
        raise HtaDsv4Error(
            f"RANK {ranks.rank} is none of the {size} ranks of WORLD_SIZE; start with torchrun"
        )
    return ranks


def backend_of(device: str) -> str:
    """The transport between ranks on such devices."""
    return "nccl" if device.startswith("cuda") else "gloo"


@contextmanager
def process_group(ranks: Ranks, device: str) -> Iterator[None]:
    """Connect the ranks; for a single process it does nothing.

    NCCL's own settings are left as the environment has them.

    Args:
        ranks: this process.
        device: from :meth:`Ranks.device`; becomes the current one.

    Raises:
        HtaDsv4Error: the ranks do not find each other.
    """
    if ranks.alone:
        yield
        return
    backend = backend_of(device)
    try:
        if backend == "nccl":
            torch.cuda.set_device(device)
            dist.init_process_group(backend, device_id=torch.device(device), timeout=LONGEST)
        else:
            dist.init_process_group(backend, timeout=LONGEST)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise HtaDsv4Error(
            f"rank {ranks.rank}: the ranks do not find each other ({reason}); start with torchrun"
        ) from error
    yield
    # Not after an error: the others may wait in a collective, and taking the group down would wait for them.
    gc.collect()  # a graph that holds collectives must go before the group does
    dist.destroy_process_group()


def all_reduce(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Sum a tensor over the ranks, in place; every rank gets the same bits.

    Args:
        x: contiguous, of one shape and type on all ranks; returned.
        ranks: this process.
    """
    if not ranks.alone:
        dist.all_reduce(x)
    return x


def all_gather_columns(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Put the ranks' columns side by side.

    Args:
        x: [rows, n], contiguous.
        ranks: this process.

    Returns:
        [rows, world_size * n], in rank order.
    """
    if ranks.alone:
        return x
    rows, n = x.shape
    parts = torch.empty((ranks.world_size * rows, n), dtype=x.dtype, device=x.device)
    # renamed in torch 2.13, where the old name warns
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(parts, x)
    return parts.view(ranks.world_size, rows, n).transpose(0, 1).reshape(rows, -1)


def of_all_ranks(mine: T, ranks: Ranks) -> list[T]:
    """What every rank says, in rank order, on every rank; all wait until the last has spoken."""
    if ranks.alone:
        return [mine]
    everyone: list[T | None] = [None] * ranks.world_size
    dist.all_gather_object(everyone, mine)
    return everyone  # type: ignore[return-value]
