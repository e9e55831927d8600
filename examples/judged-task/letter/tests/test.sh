#!/bin/bash
# No file is an answer too: it needs no judge.
if [ ! -s /app/letter.txt ]; then
    echo 0 > /logs/verifier/reward.txt
    exit
fi
python3 "$(dirname "$0")/judge.py" /app/letter.txt
