"""``python -m hta_dsv4``: the command line, where its script is not on the path."""

from hta_dsv4.cli.main import main

main()
