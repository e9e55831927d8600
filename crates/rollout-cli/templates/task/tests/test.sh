#!/bin/bash
# Grades an attempt, in the directory where the agent worked. It must write a number to
# /logs/verifier/reward.txt and exit with status 0, also if the answer is wrong.

if [ "$(cat greeting.txt 2>/dev/null)" = "Hello, world!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo "greeting.txt is missing or wrong"
  echo 0 > /logs/verifier/reward.txt
fi
