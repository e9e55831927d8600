"""The metrics in Python's own words, to compare with: one JSON object per line in, one out."""

import json
import re
import sys
import unicodedata
from collections import Counter

PHRASES = ("the answer is", "answer:", "final answer:", "therefore,", "thus,", "so,")
ANNOUNCED = (
    (r"(final answer|answer is|the answer is|answer:)\s*[:\-]?\s*(.+?)(\n|$)", 2),
    (r"(therefore|thus|so|hence),?\s+(the answer is\s+)?(.+?)(\.|$)", 3),
    (r"\*\*Answer\*\*:?\s*(.+?)(\n|$)", 1),
)


def normal(text):
    text = text.lower().strip()
    for phrase in PHRASES:
        if text.startswith(phrase):
            text = text[len(phrase) :].strip()
    return re.sub(r"\s+", " ", re.sub(r"[.,;:!?]+$", "", text)).strip()


def f1(predicted, truth):
    predicted, truth = normal(predicted).split(), normal(truth).split()
    common = sum((Counter(predicted) & Counter(truth)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(truth)
    return 2 * precision * recall / (precision + recall)


def similarity(predicted, truth):
    predicted, truth = set(normal(predicted)), set(normal(truth))
    return len(predicted & truth) / len(predicted | truth) if predicted and truth else 0.0


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def numeric(predicted, truth):
    def close(given, right):
        return abs(given - right) <= 1e-6 or (right != 0 and abs((given - right) / right) <= 0.01)

    return float(any(close(given, right) for given in numbers(predicted) for right in numbers(truth)))


def extracted(text):
    for pattern, group in ANNOUNCED:
        if found := re.search(pattern, text, re.IGNORECASE):
            answer = found.group(group).strip()
            return answer[:-1].strip() if answer.endswith(".") else answer
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else text.strip()


def character(code):
    """What Python makes of a character; nothing of those that are newer than its oldest tables."""
    char = chr(code)
    if 0xD800 <= code < 0xE000 or unicodedata.ucd_3_2_0.category(char) == "Cn":
        return None
    return [char.lower(), char.isspace(), bool(re.match(r"\s", char)), unicodedata.decimal(char, None)]


def main():
    for line in sys.stdin:
        case = json.loads(line)
        if "from" in case:
            answer = [character(code) for code in range(case["from"], case["to"])]
        else:
            predicted, truth = case["predicted"], case["truth"]
            answer = {
                "normal": normal(predicted),
                "extracted": extracted(predicted),
                "exact_match": float(normal(predicted) == normal(truth)),
                "f1_score": f1(predicted, truth),
                "contains_answer": float(normal(truth) in normal(predicted)),
                "numeric_match": numeric(predicted, truth),
                "similarity": similarity(predicted, truth),
            }
        print(json.dumps(answer))


main()
