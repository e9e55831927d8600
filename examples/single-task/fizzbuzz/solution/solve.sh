#!/bin/bash
cat > /app/fizzbuzz.sh <<'SCRIPT'
for ((i = 1; i <= $1; i++)); do
  line=
  ((i % 3 == 0)) && line+=Fizz
  ((i % 5 == 0)) && line+=Buzz
  echo "${line:-$i}"
done
SCRIPT
