"""good.jsonl and bad.txt share the lines out as they should."""

import json
import unittest
from pathlib import Path

BAD = [1, 4, 10, 14, 15, 18, 26, 28, 34, 37, 38, 41, 47, 58, 60]


def good_records():
    """From a copy of the input, by the numbers of its bad lines."""
    lines = Path("/tests/sensors.jsonl").read_text(encoding="utf-8").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line]
    records = [json.loads(line) for number, line in numbered if number not in BAD]
    return sorted(records, key=lambda record: (record["sensor"], record["t"], record["value"]))


class Lines(unittest.TestCase):
    def test_good(self):
        lines = Path("/app/good.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line) for line in lines], good_records())

    def test_bad(self):
        numbers = Path("/app/bad.txt").read_text(encoding="utf-8").split()
        self.assertEqual(numbers, [str(number) for number in BAD])


if __name__ == "__main__":
    unittest.main()
