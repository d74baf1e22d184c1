"""start.sh starts a server that answers as it should."""

import json
import subprocess
import unittest
import urllib.error
import urllib.request

BASE = "http://127.0.0.1:8080"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(path):
    try:
        with OPENER.open(BASE + path, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


class Server(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["bash", "/app/start.sh"]
        subprocess.run(command, cwd="/app", stdin=subprocess.DEVNULL, timeout=15, **quiet)

    def test_health(self):
        status, text = get("/health")
        self.assertEqual((status, text.strip()), (200, "ok"))

    def test_counts(self):
        for word, count in (("tree", 3), ("River", 3), ("the", 4), ("leaf", 0)):
            status, text = get(f"/count/{word}")
            self.assertEqual(status, 200)
            self.assertEqual(json.loads(text), {"word": word, "count": count})

    def test_other_paths(self):
        for path in ("/", "/counts/tree", "/healthy"):
            self.assertEqual(get(path)[0], 404)


if __name__ == "__main__":
    unittest.main()
