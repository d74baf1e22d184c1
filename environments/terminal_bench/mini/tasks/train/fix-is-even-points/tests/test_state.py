"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("game.calc", "low_users", [[11, 7, 19, 3]], 3),
    ("game.calc", "low_users", [[-5, 11, -5, 3, 10]], -5),
    ("game.calc", "gap_goals", [5, -5], 10),
    ("game.calc", "gap_goals", [6, 0], 6),
    ("game.calc", "is_even_points", [2], True),
    ("game.calc", "is_even_points", [-3], False),
    ("game.calc", "is_even_points", [4], True),
    ("game.calc", "is_even_points", [3], False),
    ("game.calc", "is_even_points", [1], False),
    ("game.calc", "is_even_points", [7], False),
    ("game.calc", "is_even_points", [3], False),
    ("game.calc", "convert_users", [10, 5], 105),
    ("game.calc", "convert_users", [1, 9], 19),
    ("game.core", "total_prices", [[13, 9, 21, 15]], 58),
    ("game.core", "total_prices", [[18, 9, -3, -5]], 19),
    ("game.core", "count_above_scores", [[4, 11], 14], 0),
    ("game.core", "count_above_scores", [[10, 20, -7, 10], 10], 1),
    ("game.core", "top_files", [[3, 17]], 17),
    ("game.core", "top_files", [[6, -9, 16, -6, 2]], 16),
    ("game.core", "accept_cards", [7], True),
    ("game.core", "accept_cards", [4], False),
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
