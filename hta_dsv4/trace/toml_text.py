"""TOML, to and fro: the one place that knows which parser this Python has, and how our own files are written."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hta_dsv4.errors import HtaDsv4Error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
TomlError = tomllib.TOMLDecodeError
"""What text that is no TOML raises; a :class:`ValueError`, as are numbers of thousands of digits."""


def from_toml(text: str) -> dict[str, Any]:
    """Read a document.

    Raises:
        TomlError: not TOML.
        ValueError, RecursionError: TOML that no machine reads: a number of 5,000 digits, 5,000 brackets.
    """
    return tomllib.loads(text)


def to_toml(data: Mapping[str, Any], prefix: str = "") -> str:
    """Strings, numbers, booleans, lists of these, and nested tables as TOML text.

    Args:
        data: scalars, lists and tables; ``None`` is left out.
        prefix: dotted path of the table ``data`` is.

    Raises:
        HtaDsv4Error: a value that TOML cannot hold, naming its key.
    """
    lines, tables = [], []
    for key, value in data.items():
        name = str(key) if _BARE_KEY.fullmatch(str(key)) else _string(str(key), prefix)
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            tables.append(f"\n[{path}]\n{to_toml(value, path)}")
        elif value is not None:
            lines.append(f"{name} = {_value(value, path)}")
    return "\n".join(lines) + ("\n" if lines else "") + "".join(tables)


def _value(value: object, path: str) -> str:
    """A scalar or a list as TOML."""
    if isinstance(value, str):
        return _string(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf, -inf: TOML's words, not JSON's
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return f"[{', '.join(_value(v, path) for v in value)}]"
    raise HtaDsv4Error(
        f"{path}: a manifest holds text, numbers and lists of them, not {type(value).__name__}"
    )


def _string(text: str, path: str) -> str:
    """Text as TOML: a JSON string but for DEL, which needs an escape here."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HtaDsv4Error(f"{path}: not text that UTF-8 can hold: {text!a}") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
