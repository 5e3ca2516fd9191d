"""DeepSeek-V4 decode kernels in Triton, each beside the torch form it replaces."""
