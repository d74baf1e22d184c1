#!/usr/bin/env -S python3 -ISB
"""runtests: run pytest-style test functions in about a quarter of pytest's start-up time.

    runtests [-rA] [FILE...]      default: tests/test_*.py

Plain, it prints the first failing line and a count; with -rA one line per test, as pytest's short
summary does, which swebench's `parse_log_pytest` reads. Exit code: 0 passed, 1 failed, 4 usage.

Tests run in a forked child whose standard streams are /dev/null, and of a test that ends in
`assert CALL == LITERAL` the child returns only the value of CALL: the literal is compared here, in
the parent, which never imports the code under test. The child lets go of the literals before it
imports that code, and where that code ends the child (os._exit, a crash, a time limit) the running
test is a failed one. With FORGET_TESTS in the environment, as for a verifier, the test files are
removed once they are read, so that the code under test cannot read them; this process's memory and
descriptors are closed to others. What is left: signals, so that a verifier has to look at the exit
code, and attacks on the shell that started this.
Imports are few on purpose: every one of them is paid by each run.
"""

import _ast
import os
import resource
import select
import sys
import time

CPU_LIMIT_S = 3
WALL_LIMIT_S = 20
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
PR_SET_DUMPABLE = 4
SHOWN = 60  # characters of a value or an error that are printed


def literal(node):
    """The value of a literal expression; raises ValueError on anything else."""
    if isinstance(node, _ast.Constant):
        return node.value
    if isinstance(node, _ast.UnaryOp) and isinstance(node.op, _ast.USub):
        value = literal(node.operand)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, _ast.List):
        return [literal(item) for item in node.elts]
    if isinstance(node, _ast.Tuple):
        return tuple(literal(item) for item in node.elts)
    if isinstance(node, _ast.Dict):
        return {literal(k): literal(v) for k, v in zip(node.keys, node.values, strict=True)}
    raise ValueError("not a literal")


def parse_literal(text):
    tree = compile(text, "literal", "eval", ONLY_AST)
    assert isinstance(tree, _ast.Expression)
    return literal(tree.body)


def plain(value):
    """True where `value` is built of exact builtin types, whose == cannot be redefined."""
    if type(value) in (list, tuple):
        return all(plain(item) for item in value)
    if type(value) is dict:
        return all(plain(key) and plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes)


def set_dumpable(value):
    """Whether processes of this user may look into this one's memory and descriptors."""
    try:
        import _ctypes

        function = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
        _ctypes.call_function(function, (PR_SET_DUMPABLE, value, 0, 0, 0))
    except (ImportError, OSError):
        return  # a Python without ctypes: the kernel's own rules on tracing are left


class File:
    """A parsed test file: the code that the child runs, the names of its tests, and for each the
    expected value in a list of its own, or None."""

    def __init__(self, path):
        self.path = path
        self.tests = []
        self.expected = []
        self.error = None
        try:
            with open(path, "rb") as file:
                tree = compile(file.read(), path, "exec", ONLY_AST)
            assert isinstance(tree, _ast.Module)
            for node in tree.body:
                if isinstance(node, _ast.FunctionDef) and node.name.startswith("test_"):
                    self.expected.append(self._take_expected(node))
                    self.tests.append((node.name, self.expected[-1] is not None))
            self.code = compile(tree, path, "exec")
        except (SyntaxError, ValueError) as error:
            self.error = describe(error)

    @staticmethod
    def _take_expected(function):
        """Turn a final `assert X == LITERAL` into `return X`; the literal stays here, in a list."""
        last = function.body[-1]
        if not (isinstance(last, _ast.Assert) and isinstance(last.test, _ast.Compare)):
            return None
        if len(last.test.ops) != 1 or not isinstance(last.test.ops[0], _ast.Eq):
            return None
        try:
            expected = literal(last.test.comparators[0])
        except ValueError:
            return None
        place = {"lineno": last.lineno, "col_offset": last.col_offset}
        function.body[-1] = _ast.Return(value=last.test.left, **place)
        return [expected]


def describe(error):
    text = " ".join(str(error).split())
    return type(error).__name__ + (": " + text if text else "")


def child(files, start, out):
    """Run the tests numbered `start` and later; write one line each: number, kind, text."""
    for file in files:
        file.expected.clear()  # no frame and no object that code under test can reach has them now
    number = 0
    for file in files:
        end = number + len(file.tests)
        if end > start:
            names, import_error = {"__name__": file.path[:-3].replace("/", ".")}, None
            try:
                exec(file.code, names)
            except BaseException as error:
                import_error = describe(error)
            for offset, (name, has_value) in enumerate(file.tests):
                if number + offset < start:
                    continue
                if import_error is None:
                    kind, text = run(names, name, has_value)
                else:
                    kind, text = "import", import_error
                os.write(out, f"{number + offset}\t{kind}\t{text[:4000]!r}\n".encode())
        number = end


def run(names, name, has_value):
    try:
        value = names[name]()
        if not has_value:
            return "passed", ""
        return ("value" if plain(value) else "other"), repr(value)
    except AssertionError as error:
        return "error", "assert" + " ".join(str(error).split())
    except BaseException as error:
        return "error", describe(error)


def read_results(pipe, pid, first, count, deadline):
    """The child's lines until its end or the deadline -> (results, why it ended)."""
    data = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while data.count(b"\n") < count - first:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        data += chunk
    os.killpg(pid, 9)  # the child is not waited for yet, so its group exists
    status = os.waitpid(pid, 0)[1]
    results = []
    for line in data.split(b"\n")[:-1]:
        parts = line.decode("utf-8", "replace").split("\t", 2)
        if len(parts) != 3 or parts[0] != str(first + len(results)):
            break
        results.append((parts[1], parts[2]))
    over = time.monotonic() >= deadline or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == 24)
    return results, "time limit" if over else "the test process ended"


def run_all(files, count):
    """Outcomes of all tests, in order, as (kind, text)."""
    outcomes = []
    deadline = time.monotonic() + WALL_LIMIT_S
    while len(outcomes) < count:
        pipe, out = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # here and in the parent: whoever comes first
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
            limit = max(1, CPU_LIMIT_S - int(spent.ru_utime + spent.ru_stime))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
            null = os.open("/dev/null", os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            set_dumpable(1)  # the code under test's own /proc/self is root's otherwise
            sys.path.insert(0, os.getcwd())
            child(files, len(outcomes), out)
            os._exit(0)
        os.setpgid(pid, pid)
        os.close(out)
        results, why = read_results(pipe, pid, len(outcomes), count, deadline)
        os.close(pipe)
        outcomes += results
        if len(outcomes) < count:
            rest = count - len(outcomes) if why == "time limit" else 1
            outcomes += [("error", repr(why))] * rest
    return outcomes


def one_line(text):
    return " ".join(text.splitlines())


def judge(kind, text, expected):
    """(passed, what to say) of one outcome; whatever the child wrote, that is one line."""
    try:
        text = str(parse_literal(text))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False, "unreadable result"
    if kind == "passed" and expected is None:
        return True, ""
    if kind == "value" and expected is not None:
        try:
            got = parse_literal(text)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            kind, got = "other", None
        if kind == "value" and got == expected[0]:
            return True, ""
    if kind in ("value", "other") and expected is not None:
        return False, f"assert {one_line(text)[:SHOWN]} == {repr(expected[0])[:SHOWN]}"
    return False, one_line(text)[:SHOWN]


def main(arguments):
    every = "-rA" in arguments
    paths = [argument for argument in arguments if not argument.startswith("-")]
    if not paths:
        names = os.listdir("tests") if os.path.isdir("tests") else []
        paths = ["tests/" + n for n in sorted(names) if n.startswith("test_") and n[-3:] == ".py"]
    for path in paths:
        if not os.path.isfile(path):
            print("ERROR: file or directory not found: " + path)
            return 4
    files = [File(path) for path in paths]
    if os.environ.pop("FORGET_TESTS", None):
        set_dumpable(0)
        for path in paths:
            os.unlink(path)
    lines, failures = [], []
    for file in files:
        if file.error is not None:
            failures.append(f"ERROR {file.path} - {file.error[:SHOWN]}")
    good = [file for file in files if file.error is None]
    tests = [(file, number) for file in good for number in range(len(file.tests))]
    outcomes = run_all(good, len(tests))
    passed = 0
    for (file, number), (kind, text) in zip(tests, outcomes, strict=True):
        name, expected = file.tests[number][0], file.expected[number]
        ok, reason = judge(kind, text, expected)
        passed += ok
        if ok:
            lines.append(f"PASSED {file.path}::{name}")
        else:
            failures.append(f"FAILED {file.path}::{name} - {reason}")
    print("\n".join(lines + failures if every else failures[:1]), end="")
    if failures or (every and lines):
        print()
    counts = [f"{len(failures)} failed"] if failures else []
    counts += [f"{passed} passed"] if passed or not failures else []
    print(", ".join(counts))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
