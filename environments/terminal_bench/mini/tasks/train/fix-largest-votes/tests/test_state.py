"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("park.core", "sum_cards", [[21, 6]], 27),
    ("park.core", "sum_cards", [[17, 20]], 37),
    ("park.core", "mean_goals", [[19, 18, 3, 13, 1]], 10.8),
    ("park.core", "mean_goals", [[20, 1, 7, 15, -8]], 7.0),
    ("park.core", "last_items", [[16, 10, 6, 8, 13]], 13),
    ("park.core", "last_items", [[5, 19, 18, -6, 0]], 0),
    ("park.core", "pick_even_points", [[21, 16, 8, 16, 14]], [16, 8, 16, 14]),
    ("park.core", "pick_even_points", [[17, 19]], []),
    ("park.base", "largest_votes", [[7, 21, 7]], 21),
    ("park.base", "largest_votes", [[11, 14]], 14),
    ("park.base", "largest_votes", [[2, -5, -4, 15, 16]], 16),
    ("park.base", "largest_votes", [[6, 1, 3]], 6),
    ("park.base", "largest_votes", [[9, -6, 20]], 20),
    ("park.base", "largest_votes", [[4, 9, 15, 10, 2]], 15),
    ("park.base", "largest_votes", [[10, 13, 16, 1]], 16),
    ("park.base", "gap_coins", [2, 6], 4),
    ("park.base", "gap_coins", [8, -1], 9),
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
