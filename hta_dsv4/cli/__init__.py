"""The command line: parse options, call, print. A module per command, or per few that ask alike."""
