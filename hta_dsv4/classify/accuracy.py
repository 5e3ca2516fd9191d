"""How often the rules agree with a table of names whose buckets are known.

    python -m hta_dsv4.classify.accuracy NAMES.tsv [--min 0.98] [--rules MORE.toml] [--engine vllm]

The table is tab-separated with a header that names the columns ``kernel_name``, ``bucket`` and, optionally,
``role``. Printed are the accuracy per bucket, the confusions, and apart from them the two errors that spoil a
share table most: a glue kernel counted elsewhere, and another kernel counted as glue.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hta_dsv4.classify.rule import BUCKETS
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.classify.rules_file import load_rules
from hta_dsv4.errors import HtaDsv4Error, RulesError

GLUE = "glue"


@dataclass(frozen=True, slots=True)
class Miss:
    """One name whose bucket is not the expected one.

    Attributes:
        name: the kernel.
        expected, got: buckets.
        rule: the rule that decided.
    """

    name: str
    expected: str
    got: str
    rule: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Agreement of a rule set with a table of names.

    Attributes:
        names: expected bucket -> number of names, buckets in the order of :data:`BUCKETS`.
        right: expected bucket -> number of names judged so.
        misses: every other name, in file order.
        ambiguous: names judged with a doubt, whether right or wrong.
    """

    names: dict[str, int]
    right: dict[str, int]
    misses: tuple[Miss, ...]
    ambiguous: int

    @property
    def total(self) -> int:
        """Names in the table."""
        return sum(self.names.values())

    @property
    def share(self) -> float:
        """Right names over all names."""
        return sum(self.right.values()) / self.total

    @property
    def glue_swallowed(self) -> tuple[Miss, ...]:
        """Glue kernels counted elsewhere."""
        return tuple(m for m in self.misses if m.expected == GLUE)

    @property
    def swallowed_by_glue(self) -> tuple[Miss, ...]:
        """Other kernels counted as glue."""
        return tuple(m for m in self.misses if m.got == GLUE)


def read_names(path: Path | str) -> list[tuple[str, str]]:
    """Read a table of names.

    Args:
        path: a TSV file with a header; columns ``kernel_name`` and ``bucket``, others are ignored. Quotes
            have no meaning: a name is everything between two tabs.

    Returns:
        (name, bucket) pairs in file order.

    Raises:
        RulesError: the file is missing, empty, lacks a column or names an unknown bucket.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"{path}: cannot be read ({error}); give a tab-separated UTF-8 file") from None
    header = lines[0].split("\t") if lines else []
    if "kernel_name" not in header or "bucket" not in header:
        raise RulesError(f"{path}: line 1: needs the columns kernel_name and bucket, separated by a tab")
    at_name, at_bucket = header.index("kernel_name"), header.index("bucket")
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise RulesError(
                f"{path}: line {number}: {len(cells)} columns, the header has {len(header)}; correct it"
            )
        if cells[at_bucket] not in BUCKETS:
            raise RulesError(
                f"{path}: line {number}: unknown bucket {cells[at_bucket]!r}; use one of {', '.join(BUCKETS)}"
            )
        pairs.append((cells[at_name], cells[at_bucket]))
    if not pairs:
        raise RulesError(f"{path}: holds no names; add lines below the header")
    return pairs


def measure(rules: RuleSet, pairs: Sequence[tuple[str, str]]) -> Accuracy:
    """Compare the rules with expected buckets.

    Args:
        rules: the rule set.
        pairs: (name, expected bucket).
    """
    names: Counter[str] = Counter()
    right: Counter[str] = Counter()
    misses: list[Miss] = []
    ambiguous = 0
    for name, expected in pairs:
        match = rules.classify(name)
        names[expected] += 1
        ambiguous += match.ambiguous
        if match.bucket == expected:
            right[expected] += 1
        else:
            misses.append(Miss(name, expected, match.bucket, match.rule))
    order = [b for b in BUCKETS if b in names]
    return Accuracy({b: names[b] for b in order}, {b: right[b] for b in order}, tuple(misses), ambiguous)


def render(result: Accuracy) -> str:
    """The report as text, ending in a newline."""
    out = [f"{'bucket':<16}{'names':>7}{'right':>7}{'share':>9}"]
    for bucket, count in result.names.items():
        right = result.right[bucket]
        out.append(f"{bucket:<16}{count:>7}{right:>7}{right / count:>9.2%}")
    out.append(f"{'all':<16}{result.total:>7}{sum(result.right.values()):>7}{result.share:>9.2%}")
    out.append(f"told with a doubt: {result.ambiguous}")
    out.append(
        f"glue counted elsewhere: {len(result.glue_swallowed)}; counted as glue: {len(result.swallowed_by_glue)}"
    )
    if result.misses:
        out.append("expected -> got (rule): name")
    for miss in result.misses:
        name = miss.name if len(miss.name) <= 120 else miss.name[:117] + "..."
        out.append(f"  {miss.expected} -> {miss.got} ({miss.rule}): {name}")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (1: below ``--min``, 2: a mistake in the input)."""
    parser = argparse.ArgumentParser(prog="python -m hta_dsv4.classify.accuracy", description=__doc__)
    parser.add_argument("table", type=Path, help="tab-separated names with their buckets")
    parser.add_argument(
        "--min", type=float, default=0.0, metavar="SHARE", help="exit 1 below this share, e.g. 0.98"
    )
    parser.add_argument(
        "--rules", type=Path, action="append", default=[], help="a rules file of your own; repeatable"
    )
    parser.add_argument("--engine", help="an engine's layer, e.g. vllm")
    options = parser.parse_args(arguments)
    try:
        result = measure(load_rules(*options.rules, engine=options.engine), read_names(options.table))
    except HtaDsv4Error as error:
        print(error, file=sys.stderr)
        return 2
    print(render(result), end="")
    return 1 if result.share < options.min else 0


if __name__ == "__main__":
    sys.exit(main())
