"""summary.txt counts the requests of the log."""

import unittest
from pathlib import Path

EXPECTED = """\
/cart 32 5 854
/help 29 5 898
/items/7 31 5 858
/items 26 4 802
/login 18 1 840
/pay 18 1 847
"""


class Summary(unittest.TestCase):
    def test_lines(self):
        found = Path("/app/summary.txt").read_text(encoding="utf-8")
        self.assertEqual(found.strip().splitlines(), EXPECTED.strip().splitlines())


if __name__ == "__main__":
    unittest.main()
