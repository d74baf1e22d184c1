"""plan.txt is back, in one new commit, and nothing else has changed."""

import subprocess
import unittest

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
OLD_SUBJECTS = ["greet", "tidy up", "final plan", "more plan", "first notes"]


def git(*arguments):
    done = subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-C", "/app/notes", *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout


class Restored(unittest.TestCase):
    def test_the_file_is_back_on_main(self):
        text = git("cat-file", "-p", "refs/heads/main:plan.txt")
        self.assertEqual(text, "buy rope\npack the tent\nleave at six\n")

    def test_one_commit_was_added(self):
        subjects = git("log", "--format=%s", "refs/heads/main").splitlines()
        self.assertEqual(subjects[1:], OLD_SUBJECTS)

    def test_nothing_else_changed(self):
        changed = git("diff", "--no-ext-diff", "--name-only", "main~1", "main")
        self.assertEqual(changed.split(), ["plan.txt"])
        self.assertEqual(git("status", "--porcelain"), "")
        self.assertEqual(git("rev-parse", "--abbrev-ref", "HEAD"), "main\n")


if __name__ == "__main__":
    unittest.main()
