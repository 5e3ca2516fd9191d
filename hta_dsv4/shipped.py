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
    """Shipped variants by name: a file without its suffixes, or a folder of ranks.

    E.g. ``traces()["h200_probe"]`` is a file and ``traces()["cuda_graph_c32_tp2"]`` a folder with a trace per rank.
    """
    files, folders = {}, {}
    root = traces_dir()
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name.endswith(_SUFFIXES):
            if path.parent == root:
                files[path.name.split(".")[0]] = path
            else:
                folders[path.parent.name] = path.parent
    return files | folders


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
    if not text:
        raise HtaDsv4Error(
            "an empty word where a trace belongs; give a file, a folder or a shipped trace's name"
        )
    if _exists(text):
        return None, Path(text)
    label, equals, rest = text.partition("=")
    name = rest if equals else text
    if equals and not (label and rest):
        raise HtaDsv4Error(f"{text!r}: write it as LABEL=PATH, with both")
    if _exists(name):
        return label, Path(name)
    known = traces()
    if name in known:
        return (label if equals else name), known[name]
    if len(name) > 300:
        name = f"{name[:300]}..."
    raise HtaDsv4Error(
        f"{name}: no such file or folder, and no shipped trace of that name (shipped: {', '.join(known) or 'none'})"
    )


def _exists(text: str) -> bool:
    """Whether something is there; a folder that may not be looked into is said, not taken for nothing."""
    try:
        Path(text).stat()
    except PermissionError as error:
        raise HtaDsv4Error(
            f"{text}: cannot be looked at ({error.strerror}); check its permissions"
        ) from error
    except (OSError, ValueError):  # nothing there, or no name a file could have
        return False
    return True


def label_of(path: Path) -> str:
    """How a trace without a label is called: its file's name without suffixes, a folder's own name for ``.``."""
    name = path.name or path.resolve().name
    return presentable(name.split(".")[0] or name) or "trace"


def presentable(text: str) -> str:
    """Text without halves of surrogate pairs, by which Python keeps bytes that are not UTF-8: as escapes instead."""
    return text.encode("utf-8", "backslashreplace").decode()
