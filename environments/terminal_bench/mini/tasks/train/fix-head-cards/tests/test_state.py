"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("farm.data", "top_users", [[13, 8]], 13),
    ("farm.data", "top_users", [[5, 7, 11, -1, 16]], 16),
    ("farm.data", "average_boxes", [[3, 4, 12]], 6.333333333333333),
    ("farm.data", "average_boxes", [[-5, 4]], -0.5),
    ("farm.data", "head_cards", [[-6, 2, 18, -7], -5], []),
    ("farm.data", "head_cards", [[8, 8, 18], -4], []),
    ("farm.data", "head_cards", [[4, 9, 15, 10], 3], [4, 9, 15]),
    ("farm.data", "head_cards", [[13, 13, 17], 14], [13, 13, 17]),
    ("farm.data", "head_cards", [[13, -2], 13], [13, -2]),
    ("farm.data", "head_cards", [[2, 6, 2], 3], [2, 6, 2]),
    ("farm.data", "head_cards", [[-1, 9, -3, 8], -1], [-1, 9, -3]),
    ("farm.calc", "clamp_files", [-1, 2, 4], 2),
    ("farm.calc", "clamp_files", [8, 0, 4], 4),
    ("farm.calc", "size_left_goals", [[6, 5, 4, 10, 6], 6], 1),
    ("farm.calc", "size_left_goals", [[15, 19, 3, 2, -6], 12], 7),
    ("farm.calc", "smallest_nodes", [[11, 7, 13, 14, 10]], 7),
    ("farm.calc", "smallest_nodes", [[8, 7, 13, 8, 17]], 7),
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
