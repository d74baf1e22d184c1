"""One data set with broken tasks through the whole command: one line each, the others go on."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.swebench.engine import open_engine
from environments.swebench.instance import Instance
from environments.swebench.mini.dataset import RUNNER, MiniSource

pytestmark = [pytest.mark.docker, pytest.mark.slow]
EMPTY, WHOLE = "thundersync-test/empty:1", "thundersync-test/whole:1"
DOCKERFILE = """\
FROM thundersync/mini:1
LABEL thundersync.scratch=""
ADD repository.tar /testbed/
COPY runtests /usr/local/bin/runtests
"""


def archive(files: dict[str, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    buffer.seek(0)
    return buffer


@pytest.fixture
def instance() -> Iterator[Instance]:
    """An instance of mini; WHOLE is an image with its repository, EMPTY one that cannot start."""
    source = MiniSource()
    instance = next(i for i in source.instances("eval") if i.difficulty == "easy")
    context = {
        "Dockerfile": DOCKERFILE.encode(),
        "repository.tar": source.repository(instance),
        "runtests": RUNNER.read_bytes(),
    }
    client = open_engine("test")
    try:
        steps = client.api.build(
            fileobj=archive(context), custom_context=True, tag=WHOLE, rm=True, decode=True
        )
        for step in steps:
            assert "error" not in step, step
        data = archive({"etc/nothing": b""}).read()
        client.api.import_image_from_data(data, *EMPTY.split(":"))
        yield instance
    finally:
        for image in (WHOLE, EMPTY):
            client.api.remove_image(image, force=True)
        client.close()


def row(instance: Instance, name: str, **changes: Any) -> dict[str, Any]:
    record = instance.record() | {"instance_id": name, "image": WHOLE, "split": "test"}
    del record["files"]
    return record | changes


def test_each_is_one_line_and_the_others_go_on(instance: Instance, tmp_path: Path) -> None:
    endless = instance.eval_script.replace("\nruntests ", "\nsleep 100; runtests ")
    stuck = instance.eval_script.replace("cd /testbed\n", "cd /testbed\nsleep 100\n")
    rows = [
        row(instance, "a__good-1"),
        row(instance, "a__good-2"),
        row(instance, "b__no-start", image=EMPTY),
        row(instance, "b__no-image", image="thundersync-test/missing:1"),
        row(instance, "b__other-repository", base_commit="0" * 40),
        row(instance, "b__endless-tests", eval_script=endless),
        row(instance, "b__endless-script", eval_script=stuck),
        row(instance, "c__no-field"),
    ]
    del rows[-1]["log_parser"]
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    command = [
        *(sys.executable, "-m", "harness.evaluate", "env=swebench", f"env.dataset={data}"),
        *("env.split=test", "agent=oracle", "sandbox=docker", "env.verify_timeout_s=10"),
        *("evaluation.samples_per_task=1", "rollout.retries=1", "sandbox.max_parallel=2"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["tasks"], report["solve_rate"], report["lost"]) == (7, 1.0, 5), done.stderr
    assert report["infrastructure_errors"] == {
        "start": 2, "image": 4, "verifier_timeout": 8,  # two lives, each judged twice
    }  # fmt: skip
    expected = {
        "b__no-start": "start",
        "b__no-image": "thundersync-test/missing:1",
        "b__other-repository": "holds no usable repository at base_commit 000000000000",
        "b__endless-tests": "field eval_script: its tests run past env.verify_timeout_s=10",
        "b__endless-script": "the verifier never reached its tests",
    }
    lines = done.stderr.splitlines()
    for task, said in expected.items():
        (line,) = [x for x in lines if x.startswith(f"trajectory lost: task {task}: ")]
        assert said in line
    assert [x for x in lines if "'c__no-field': field 'log_parser' is missing" in x]
    assert [x for x in lines if "1 of 3 images are not on the engine" in x]
