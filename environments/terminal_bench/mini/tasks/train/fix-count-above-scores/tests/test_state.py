"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("bank.stats", "first_files", [[9, 21, 14, 6]], 9),
    ("bank.stats", "first_files", [[-2, 13, -4, 8, 19]], -2),
    ("bank.stats", "any_over_orders", [[6, 6, 17], 2], True),
    ("bank.stats", "any_over_orders", [[18, 3], 18], False),
    ("bank.stats", "count_above_scores", [[16, -5, 15], 16], 0),
    ("bank.stats", "count_above_scores", [[-2, 11, -7], 3], 1),
    ("bank.stats", "count_above_scores", [[16, 8, 2, 1], 3], 2),
    ("bank.stats", "count_above_scores", [[4, 12, 8], 3], 3),
    ("bank.stats", "count_above_scores", [[5, 14, 18, 7], 3], 4),
    ("bank.stats", "count_above_scores", [[5, 7, 0, 12, 7], 5], 3),
    ("bank.stats", "count_above_scores", [[16, 3, 13, 18, 6], 12], 3),
    ("bank.rules", "smallest_pages", [[8, 15, 3]], 3),
    ("bank.rules", "smallest_pages", [[-9, -2]], -9),
    ("bank.rules", "top_steps", [[19, 2, 12, 10]], 19),
    ("bank.rules", "top_steps", [[6, 20]], 20),
    ("bank.rules", "count_upto_items", [[6, 7], -1], 0),
    ("bank.rules", "count_upto_items", [[-9, -1, 16, 17, -3], 2], 3),
]
CALL = """
import importlib, json, sys
sys.path.insert(0, "/app")
answers = []
for module, function, arguments in json.load(sys.stdin):
    try:
        answers.append([getattr(importlib.import_module(module), function)(*arguments)])
    except Exception:
        answers.append([])
print(json.dumps(answers))
"""


class Package(unittest.TestCase):
    def test_cases(self):
        calls = [case[:3] for case in CASES]
        done = subprocess.run(
            ["python3", "-I", "-B", "-c", CALL],
            input=json.dumps(calls),
            capture_output=True,
            text=True,
            timeout=20,
            cwd="/app",
        )
        answers = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(answers, [[case[3]] for case in CASES])


if __name__ == "__main__":
    unittest.main()
