"""merged.json has every setting from the source that wins."""

import json
import unittest
from pathlib import Path

EXPECTED = {
    "server": {"host": "localhost", "port": "8080", "workers": "4", "tls": "true"},
    "cache": {"size": "64", "mode": "hard mode"},
    "mail": {"from": "a@b.invalid"},
    "page": {"title": "a = b"},
}


class Merged(unittest.TestCase):
    def test_settings(self):
        merged = json.loads(Path("/app/merged.json").read_text(encoding="utf-8"))
        flag = merged["server"]["tls"]
        merged["server"]["tls"] = flag.lower() if isinstance(flag, str) else flag
        self.assertEqual(merged, EXPECTED)


if __name__ == "__main__":
    unittest.main()
