"""Profile-driven bottleneck analysis for DeepSeek-V4 decode."""
