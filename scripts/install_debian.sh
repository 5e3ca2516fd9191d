#!/usr/bin/env bash
# Chromium, for the tests that open reports and notebooks in a browser and for figures as PNG or SVG. Debian and Ubuntu.
set -euo pipefail
if command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null; then
  exit 0
fi
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
as_root apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null
