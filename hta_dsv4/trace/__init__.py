"""Bytes of a trace file -> the activity table."""
