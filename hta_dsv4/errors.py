"""What a user did, or a file is, that we cannot go on with: one clear line, exit code 2."""

from __future__ import annotations


class HtaDsv4Error(Exception):
    """A user's mistake or a broken input; ``str()`` is one line naming the file, the place and the remedy.

    The command line prints it and exits with code 2; a traceback on such input is a bug of ours.
    """


class TraceError(HtaDsv4Error):
    """A trace file that cannot be read (missing, empty, cut, not a trace, ...)."""


class RulesError(HtaDsv4Error):
    """A rules file that cannot be used (syntax, unknown bucket, bad pattern, failing example)."""
