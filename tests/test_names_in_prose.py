"""Modules and names that docs, docstrings and messages speak of are there, also after they moved."""

from __future__ import annotations

import re
from pathlib import Path

import hta_dsv4

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"(?<![\w/.-])~?(hta_dsv4(?:\.[A-Za-z_]\w*)+)")
_FILE = re.compile(r"(?<![\w.-])(hta_dsv4/[\w/]+\.(?:py|toml))")
_TEXTS = (
    "hta_dsv4/**/*.py",
    "docs/**/*.md",
    "*.md",
    "*/README.md",
    "examples/*.py",
    "notebooks/*.ipynb",
    "benchmarks/*.py",
)


def written() -> list[tuple[Path, str]]:
    """Every text of the project, with its path."""
    paths = sorted(
        {p for pattern in _TEXTS for p in ROOT.glob(pattern) if not p.is_relative_to(ROOT / ".venv")}
    )
    return [(p, p.read_text(encoding="utf-8")) for p in paths]


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or its next word stands in that module's source."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        place = ROOT.joinpath(*words[:length])
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_file():
            continue
        rest = words[length:]
        return (
            not rest
            or (length == 1 and rest[0] in hta_dsv4.__all__)
            or bool(re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")))
        )
    return False


def test_what_is_named_is_there():
    """A module or a name of ours in any text -> there."""
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in written()
        for name in _NAME.findall(text)
        if not is_there(name)
    }
    gone |= {
        f"{path.relative_to(ROOT)}: {file}"
        for path, text in written()
        for file in _FILE.findall(text)
        if not (ROOT / file).is_file()
    }
    assert not gone


def test_what_is_gone_is_found_out():
    """A module, or a name in a module, that is not there -> told from those that are."""
    assert is_there("hta_dsv4.trace.reader.read_trace")
    assert is_there("hta_dsv4.load")
    assert not is_there("hta_dsv4.trace.reader.read_everything")
    assert not is_there("hta_dsv4.cli_options")
