"""Every function of the package returns what it should.

The package is called in a process of its own, which knows the arguments only; what it should
return is compared here.
"""

import json
import subprocess
import unittest

CASES = [
    ("farm.data", "diff_items", [1, 3], 2),
    ("farm.data", "diff_items", [2, 2], 0),
    ("farm.data", "diff_items", [5, 8], 3),
    ("farm.data", "diff_items", [4, 8], 4),
    ("farm.data", "diff_items", [-7, -5], 2),
    ("farm.data", "diff_items", [9, 8], 1),
    ("farm.data", "diff_items", [6, 6], 0),
    ("farm.data", "first_coins", [[18, 1, 21, 11, 7]], 18),
    ("farm.data", "first_coins", [[-5, -7, 2]], -5),
    ("farm.data", "all_over_prices", [[15, 9, 5], 15], False),
    ("farm.data", "all_over_prices", [[8, 9, -1], 8], False),
    ("farm.data", "convert_items", [12, 7], 151),
    ("farm.data", "convert_items", [2, 3], 27),
    ("farm.rules", "low_units", [[9, 19, 11, 17]], 9),
    ("farm.rules", "low_units", [[-5, 0, 15, 2]], -5),
    ("farm.rules", "any_over_boxes", [[9, 3, 3, 10], 9], True),
    ("farm.rules", "any_over_boxes", [[-4, 15, 15, -9], 6], True),
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
