"""Words of a command line that no option may have, looked at before they are parsed."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.errors import HtaDsv4Error

_MAY_BE_EMPTY = ("--api-key",)
"""An empty key is none: what ``--api-key "$KEY"`` gives where the variable is not set."""


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty word after an option: parsed as a path it would be the current folder.

    Arguments that are empty are left to their commands, which say what belongs there.

    Args:
        words: after the command's name.

    Raises:
        HtaDsv4Error: naming the option.
    """
    for i, word in enumerate(words):
        if word == "--":
            return
        option, equals, value = word.partition("=")
        if word == "" and i and words[i - 1].startswith("-"):
            option, value = words[i - 1], ""
        elif not (option.startswith("--") and equals):
            continue
        if value == "" and option not in _MAY_BE_EMPTY:
            raise HtaDsv4Error(
                f"{option}: an empty word where its value belongs; give one, or leave {option} out"
            )
