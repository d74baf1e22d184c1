"""One engine in a process of its own: rounds are asked for on standard input, a JSON line each, and
answered on standard output. Whatever an engine prints goes to standard error."""

from __future__ import annotations

import json
import os
import sys

from harness.cluster.worker import die_with_parent, load
from harness.serving.play import play
from harness.serving.requests import make
from harness.serving.setting import Setting


def main() -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target, setting = json.loads(sys.argv[1])
    server = load(target)(Setting(**setting))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        requests = make(**json.loads(line))
        print(json.dumps(play(server, requests).row()), file=answers, flush=True)
    os._exit(0)  # an engine has nothing to save, and threads of its own


if __name__ == "__main__":
    main()
