"""A child process that heeds signals, whatever the test run's own parent ignores: ``nohup`` SIGHUP, a ``&`` SIGINT."""

import signal


def heed() -> None:
    """Put SIGINT and SIGHUP as a terminal has them; the ``preexec_fn`` of a child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
