"""Kernels run in Triton's interpreter where there is no GPU; that must be set before triton is imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
# The interpreter runs numpy on small tiles: more threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
