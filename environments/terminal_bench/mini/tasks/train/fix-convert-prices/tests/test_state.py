"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("farm.calc", "area_rows", [11, 1], 11),
    ("farm.calc", "area_rows", [4, -2], -8),
    ("farm.calc", "average_pages", [[4, 4, 19, 7, 21]], 11.0),
    ("farm.calc", "average_pages", [[19, -7, 15]], 9.0),
    ("farm.rules", "convert_prices", [5, 9], 64),
    ("farm.rules", "convert_prices", [9, 8], 107),
    ("farm.rules", "convert_prices", [1, -1], 10),
    ("farm.rules", "convert_prices", [12, 5], 137),
    ("farm.rules", "convert_prices", [11, 0], 121),
    ("farm.rules", "convert_prices", [2, 7], 29),
    ("farm.rules", "convert_prices", [-9, 3], -96),
    ("farm.rules", "sum_tasks", [[11, 1, 4, 12, 8]], 36),
    ("farm.rules", "sum_tasks", [[-1, 5, 7]], 11),
    ("farm.rules", "span_goals", [9], 45),
    ("farm.rules", "span_goals", [6], 21),
    ("farm.rules", "pass_cards", [10], True),
    ("farm.rules", "pass_cards", [4], False),
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
