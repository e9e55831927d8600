#!/bin/bash
total=1
while read -r number; do
  total=$((total * number))
done
echo "$total"
