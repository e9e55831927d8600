#!/bin/bash
# The log as it was given: an agent may have changed the one in /app.
expected=$(grep -c '" 404 ' /tests/access.log)
if [ "$(tr -d '[:space:]' < /app/answer.txt)" = "$expected" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
