#!/usr/bin/env python3
"""Cuts random texts with the expression of docs/formats.md in another regex engine, into tests/golden/pretokenizer.json.

    python3 tests/tools/make_pretokenizer_golden.py        (needs the package regex)

The texts are made of representatives of every class that the expression tells apart. All of them are older than
Unicode 12, so that engines with different versions of the tables agree.
"""
import json
import random
from pathlib import Path

import regex

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")

LETTERS = list("aZsStTrReEvVmMlLdDé") + ["漢", "ñ", "ß", "ſ", "ª", "ʰ", "א", "ا", "क", "ไ", "한", "𝒜", "Ǆ", "K"]
MARKS = ["\u0301", "\u0308", "\u093f", "\u20dd", "\U0001d165", "\ufe0f"]
NUMBERS = list("0179") + ["½", "Ⅷ", "٣", "²", "𝟘", "〇"]
SPACES = [" ", " ", " ", "  ", "\t", "\x0b", "\x0c", "\x85", "\u00a0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f",
          "\u205f", "\u3000"]
BREAKS = ["\n", "\n", "\r\n", "\r", "\n\n"]
OTHERS = list(".,!?-_()[]{}<>|/\\\"'`~@#$%^&*+=:;") + ["'s", "'T", "'Re", "'vE", "'m", "'LL", "'d", "’s", "€", "—", "🙂", "\x00",
          "\x1c", "\x1f", "\x7f", "\u00ad", "\u180e", "\u200b", "\u200d", "\ufeff", "\ufffd", "\ue000", "\u0378"]
CLASSES = [LETTERS, MARKS, NUMBERS, SPACES, BREAKS, OTHERS]


def main():
    rng = random.Random(20240229)
    cases = []
    for number in range(1200):
        # Some texts from few classes, so that long runs of each occur.
        classes = rng.sample(CLASSES, rng.randint(1, len(CLASSES)))
        text = "".join(rng.choice(rng.choice(classes)) for _ in range(rng.randint(1, 6 + number // 60)))
        pieces = regex.findall(PATTERN, text)
        assert "".join(pieces) == text, text
        cases.append(pieces)
    golden = Path(__file__).resolve().parent.parent / "golden" / "pretokenizer.json"
    golden.write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases) + "\n]\n", encoding="utf-8")
    print(len(cases), "texts,", sum(map(len, cases)), "pieces")


if __name__ == "__main__":
    main()
