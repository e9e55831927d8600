#!/bin/bash
check() {
  [ "$(printf "$1" | bash /app/total.sh)" = "$2" ] || { echo "wrong total for '$1'"; failed=1; }
}
failed=0
check '1\n2\n3\n' 6
check '' 0
check '5\n-7\n' -2
check "$(seq -s '\n' 1 10)\n" 55
if [ $failed -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
