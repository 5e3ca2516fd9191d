"""Live servers, over HTTP: the load they decode, their profilers, the traces they write. Knows no torch."""
