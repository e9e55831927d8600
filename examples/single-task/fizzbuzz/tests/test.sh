#!/bin/bash
# Partial credit: the share of inputs that come out right, with the cases as named rewards beside it.
expected() {
  for i in $(seq 1 "$1"); do
    if ((i % 15 == 0)); then echo FizzBuzz; elif ((i % 3 == 0)); then echo Fizz; elif ((i % 5 == 0)); then echo Buzz; else echo "$i"; fi
  done
}
right=0
for n in 1 3 5 15 100; do
  if [ "$(timeout 5 bash /app/fizzbuzz.sh "$n" 2>/dev/null)" = "$(expected "$n")" ]; then
    right=$((right + 1))
  fi
done
echo "{\"reward\": $(awk "BEGIN { print $right / 5 }"), \"cases_passed\": $right}" > /logs/verifier/reward.json
