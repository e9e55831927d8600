#!/bin/bash
echo "Dear Kim, thank you for the invitation! I cannot come on Friday, because my train leaves at noon." > /app/letter.txt
