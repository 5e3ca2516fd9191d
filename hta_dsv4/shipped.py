"""The traces that ship with the package, by name, and what a user's ``[LABEL=]TRACE`` means."""

from __future__ import annotations

from pathlib import Path

from hta_dsv4.errors import HtaDsv4Error

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".zip")


def traces_dir() -> Path:
    """The folder of shipped traces: inside the installed package, or ``traces/`` of a source checkout.

    Raises:
        HtaDsv4Error: neither is there.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "_traces", here.parent / "traces"):
        if folder.is_dir():
            return folder
    raise HtaDsv4Error("the shipped traces are missing from this installation; reinstall hta-dsv4")


def traces() -> dict[str, Path]:
    """Shipped traces: name -> file, e.g. ``traces()["h200_probe"]``; a name is the file's without its suffixes."""
    found = {}
    for path in sorted(traces_dir().rglob("*")):
        if path.is_file() and path.name.endswith(_SUFFIXES):
            found[path.name.split(".")[0]] = path
    return found


def resolve(text: str) -> tuple[str | None, Path]:
    """A command-line ``[LABEL=]TRACE`` as label and path.

    Args:
        text: a path, the name of a shipped trace, or either after ``LABEL=``. An existing path wins over both other
            readings, so that a file name may hold ``=``.

    Returns:
        The label (``None`` where none is given) and the path.

    Raises:
        HtaDsv4Error: nothing is there under that name.
    """
    if Path(text).exists():
        return None, Path(text)
    label, equals, rest = text.partition("=")
    name = rest if equals else text
    if equals and not (label and rest):
        raise HtaDsv4Error(f"{text!r}: write it as LABEL=PATH, with both")
    if Path(name).exists():
        return label, Path(name)
    known = traces()
    if name in known:
        return (label if equals else name), known[name]
    raise HtaDsv4Error(
        f"{name}: no such file or folder, and no shipped trace of that name (shipped: {', '.join(known) or 'none'})"
    )
