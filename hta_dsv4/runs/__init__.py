"""Captures as a whole: files in, answers out. What a notebook and the command line stand on."""
