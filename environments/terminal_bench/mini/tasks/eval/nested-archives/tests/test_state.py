"""The bills are out of the archives, and their sum is right."""

import unittest
from pathlib import Path

AMOUNTS = {"a.bill": 120, "b.bill": 75, "c.bill": 41, "d.bill": 8, "e.bill": 300, "f.bill": 6}


class Bills(unittest.TestCase):
    def test_files(self):
        found = {path.name: path.read_text() for path in Path("/app/bills").iterdir()}
        self.assertEqual(found, {name: f"amount: {n}\n" for name, n in AMOUNTS.items()})

    def test_total(self):
        total = Path("/app/total.txt").read_text(encoding="utf-8").strip()
        self.assertEqual(total, str(sum(AMOUNTS.values())))


if __name__ == "__main__":
    unittest.main()
