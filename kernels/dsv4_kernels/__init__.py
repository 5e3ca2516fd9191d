"""DeepSeek-V4 decode kernels in Triton, each beside the torch form it replaces."""

from dsv4_kernels.decode import sparse_mla_decode
from dsv4_kernels.layout import PagedKV, pack_kv

__all__ = ["PagedKV", "pack_kv", "sparse_mla_decode"]
