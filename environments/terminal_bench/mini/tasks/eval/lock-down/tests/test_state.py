"""Every file and folder of the service has its mode, and its content."""

import os
import stat
import unittest
from pathlib import Path

ROOT = Path("/app/service")
MODES = {
    ".": 0o750,
    "bin": 0o750,
    "conf": 0o750,
    "keys": 0o750,
    "keys/old": 0o750,
    "bin/start": 0o750,
    "bin/stop": 0o750,
    "bin/readme": 0o640,
    "keys/id": 0o600,
    "keys/id.pub": 0o644,
    "keys/old/id 1": 0o600,
    "keys/old/id 1.pub": 0o644,
    "conf/service.conf": 0o640,
    "conf/extra.conf": 0o640,
}
LINKS = {"bin/conf": "../conf/service.conf", "conf/users": "/etc/passwd"}
CONTENTS = {
    "bin/start": "#!/bin/sh\necho start\n",
    "keys/id": "private\n",
    "keys/old/id 1.pub": "public, once\n",
    "conf/extra.conf": "x = 1\n#!no\n",
}


class Modes(unittest.TestCase):
    def test_modes(self):
        found = {path: stat.S_IMODE(os.lstat(ROOT / path).st_mode) for path in MODES}
        self.assertEqual(found, MODES)

    def test_links_and_contents(self):
        self.assertEqual({path: os.readlink(ROOT / path) for path in LINKS}, LINKS)
        self.assertEqual({path: (ROOT / path).read_text() for path in CONTENTS}, CONTENTS)
        there = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*")}
        self.assertEqual(there, {*MODES, *LINKS} - {"."})


if __name__ == "__main__":
    unittest.main()
