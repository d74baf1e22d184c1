"""backup.sh copies whatever names there are."""

import subprocess
import tempfile
import unittest
from pathlib import Path

NAMES = [
    *("plain.txt", "two words.txt", "-n", ".hidden", "sub/inner file", "sub/deep/.x"),
    *("a*b", "tab\tname"),
]


def backup(*arguments, cwd="/"):
    return subprocess.run(
        ["bash", "/app/backup.sh", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


class Backup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.source, self.target = self.root / "my source", self.root / "my target"
        for number, name in enumerate(NAMES):
            file = self.source / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"content {number}")
        (self.source / "empty folder").mkdir()

    def test_every_file_is_copied(self):
        done = backup(str(self.source), str(self.target))
        self.assertEqual((done.returncode, done.stdout.strip()), (0, str(len(NAMES))))
        for number, name in enumerate(NAMES):
            self.assertEqual((self.target / f"{name}.bak").read_text(), f"content {number}")

    def test_the_target_keeps_what_it_has(self):
        self.target.mkdir()
        (self.target / "older").write_text("old")
        self.assertEqual(backup(str(self.source), str(self.target)).returncode, 0)
        self.assertEqual((self.target / "older").read_text(), "old")

    def test_relative_names_that_begin_with_a_dash(self):
        (self.source / "-d").mkdir()
        (self.source / "-d/f").write_text("f")
        self.assertEqual(backup("-d", "-t", cwd=self.source).returncode, 0)
        self.assertEqual((self.source / "-t/f.bak").read_text(), "f")

    def test_no_source(self):
        done = backup(str(self.root / "nothing"), str(self.target))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertNotEqual(done.stderr, "")
        self.assertFalse(self.target.exists())


if __name__ == "__main__":
    unittest.main()
