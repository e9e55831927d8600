#!/bin/bash
# Grades an attempt, in the directory where the agent worked. It must leave a number in
# /logs/verifier/reward.txt and exit with 0, also when the attempt is worth nothing.

if [ "$(cat greeting.txt 2>/dev/null)" = "Hello, world!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo "greeting.txt is not what was asked for"
  echo 0 > /logs/verifier/reward.txt
fi
