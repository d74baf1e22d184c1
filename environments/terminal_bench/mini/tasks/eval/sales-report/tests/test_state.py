"""report.json has the revenue of every region."""

import json
import unittest
from pathlib import Path

EXPECTED = {"east": 4852.34, "north": 11013.26, "south": 3672.07, "west": 5394.06}


class Report(unittest.TestCase):
    def test_revenue(self):
        report = json.loads(Path("/app/report.json").read_text(encoding="utf-8"))
        self.assertEqual(sorted(report), sorted(EXPECTED))
        for region, revenue in EXPECTED.items():
            self.assertAlmostEqual(report[region], revenue, places=2)


if __name__ == "__main__":
    unittest.main()
