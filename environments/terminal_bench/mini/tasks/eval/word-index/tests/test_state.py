"""index.txt lists the words of the pages."""

import unittest
from pathlib import Path

EXPECTED = """\
hill: one.txt:1, one.txt:2, two.txt:1
mill: one.txt:2, three.txt:1
miller: one.txt:1, two.txt:1, two.txt:3
"""


class Index(unittest.TestCase):
    def test_lines(self):
        found = Path("/app/index.txt").read_text(encoding="utf-8")
        self.assertEqual(found.strip().splitlines(), EXPECTED.strip().splitlines())


if __name__ == "__main__":
    unittest.main()
