"""Who should read these traces? The words of ``--cluster``, and when other processes pay."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.cluster.client import Cluster
from hta_dsv4.cluster.connect import LOCAL, cores, installed
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.run_files import rank_files

AUTO, OFF = "auto", "off"
MANY_FILES = 4
MANY_BYTES = 200 << 20
"""``auto`` starts local processes for this many files of this many bytes or more, together: reading them takes a
process some 20 s, and starting workers 3 to 5 s. Plain JSON counts a tenth: it is that much larger than gzip."""
_ADDRESS = re.compile(r"(?:tcp|tls|ws|wss)://(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.%a-z]+\])(?::([0-9]{1,5}))?/?")
"""Of a scheduler. Given another, Dask leaves a client half made, which waits half a minute and prints a traceback."""


@contextlib.contextmanager
def cluster_for(where: str, paths: Sequence[Path], rules: RuleSet | None = None) -> Iterator[Cluster | None]:
    """The cluster that an option means for these inputs.

    Args:
        where: ``auto``, ``off``, ``local``, ``local:N`` or a scheduler's address.
        paths: traces and folders to be read.
        rules: to classify with.

    Yields:
        ``None`` where this process reads them itself.

    Raises:
        HtaDsv4Error: not of that form; as :class:`Cluster`.
    """
    local, _, count = where.partition(":")
    if where == OFF or (where == AUTO and not (installed() and pays(_files(paths)))):
        yield None
        return
    if local == LOCAL and (not count or (count.isdecimal() and 0 < int(count) <= 1024)):
        with Cluster(LOCAL, workers=int(count) if count else None, rules=rules) as cluster:
            yield cluster
    elif where == AUTO:
        with Cluster(LOCAL, rules=rules) as cluster:
            yield cluster
    elif (address := _ADDRESS.fullmatch(where)) and 0 < int(address[1] or 8786) < 65536:
        with Cluster(where, rules=rules) as cluster:
            yield cluster
    else:
        raise HtaDsv4Error(f"--cluster {where}: write auto, off, local, local:N or tcp://HOST:PORT")


def pays(files: Sequence[Path]) -> bool:
    """Whether local processes read these faster than this one does (the rule of ``auto``)."""
    size = sum(_weight(f) for f in files)
    return len(files) >= MANY_FILES and size >= MANY_BYTES and cores() >= 2


def _weight(file: Path) -> int:
    with contextlib.suppress(OSError):
        size = file.stat().st_size
        return size // 10 if file.suffix == ".json" else size
    return 0


def _files(paths: Sequence[Path]) -> list[Path]:
    return [file for path in paths for _, file, _ in (rank_files(path) or [(path.name, path, None)])]
