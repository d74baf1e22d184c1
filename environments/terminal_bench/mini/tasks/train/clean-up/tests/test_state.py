"""Only what should be left is left."""

import unittest
from pathlib import Path

FILES = ["a/b/keep me.tmp.txt", "a/keep.txt", "e/x"]
FOLDERS = ["a", "a/b", "e"]


class Left(unittest.TestCase):
    def test_tree(self):
        root = Path("/app/work")
        there = sorted(root.rglob("*"))
        files = [str(path.relative_to(root)) for path in there if path.is_file()]
        folders = [str(path.relative_to(root)) for path in there if path.is_dir()]
        self.assertEqual((sorted(files), sorted(folders)), (FILES, FOLDERS))

    def test_list(self):
        lines = Path("/app/left.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual(lines, FILES)


if __name__ == "__main__":
    unittest.main()
