#!/bin/bash
awk '$9 == 404 { n++ } END { print n }' /app/access.log > /app/answer.txt
