"""build.sh makes a program that greets."""

import os
import shutil
import subprocess
import unittest

QUIET = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 20}


class Build(unittest.TestCase):
    def test_a_build_from_nothing_and_over_an_old_one(self):
        shutil.rmtree("/app/dist", ignore_errors=True)
        for _ in range(2):
            done = subprocess.run(["bash", "build.sh"], cwd="/app", **QUIET)
            self.assertEqual(done.returncode, 0, done.stderr)
        shutil.copy("/app/dist/greet.pyz", "/tmp/copied.pyz")
        self.addCleanup(os.unlink, "/tmp/copied.pyz")
        for names in (["Ada", "Bob"], ["Cleo"], []):
            done = subprocess.run(["python3", "-I", "/tmp/copied.pyz", *names], cwd="/", **QUIET)
            expected = [f"Hello, {name}!" for name in names] + [str(len(names))]
            self.assertEqual(done.stdout.splitlines(), expected)


if __name__ == "__main__":
    unittest.main()
