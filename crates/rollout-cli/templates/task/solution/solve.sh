#!/bin/bash
# Solves the task: the oracle agent runs this, in the directory where agents work.
set -euo pipefail

echo "Hello, world!" > greeting.txt
