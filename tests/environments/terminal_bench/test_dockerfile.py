"""Which Dockerfiles need an engine, and what happens to the others inside a sandbox."""

from __future__ import annotations

import pytest

from environments.protocols import InfrastructureError
from environments.terminal_bench.dockerfile import parse

CONTEXT = {"Dockerfile": b"", "files/a.txt": b"a", "files/sub/b.txt": b"b", "one.txt": b"1"}
APP = (
    "FROM thundersync/mini:1\nRUN mkdir -p /app && chown agent:agent /app\n"
    "USER agent\nWORKDIR /app\n"
)
HEAD = "FROM thundersync/mini:1\nUSER agent\nWORKDIR /app\n"


def read(text: str):
    found = parse(text)
    assert found is not None
    return found


def test_the_last_stage_counts() -> None:
    text = "# a comment\nFROM x AS y\nWORKDIR /old\nfrom --platform=linux/amd64 z\nRUN a \\\n  b\n"
    found = read(text + "ENV A=1 B='2 3'\nENV C the rest\nworkdir /new\nUSER me\n")
    assert (found.base, found.workdir, found.user) == ("z", "/new", "me")
    assert found.environment == {"A": "1", "B": "2 3", "C": "the rest"}
    assert found.instructions[0] == ("RUN", "a    b")
    assert parse("RUN x\n") is None


@pytest.mark.parametrize(
    "lines",
    [
        "COPY files/ ./\n",
        "COPY --chown=agent:agent files one.txt /tmp/x/\n",
        "COPY . /app\n",
        "LABEL a=b\nRUN echo\nUSER root\nRUN echo\nUSER 65532\nCMD x\n",
    ],
)
def test_no_engine_is_needed(lines: str) -> None:
    assert read(HEAD + lines).engine_needed_for(CONTEXT) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM ubuntu:24.04\nWORKDIR /app\n", "FROM ubuntu:24.04"),
        ("FROM thundersync/mini:1\n", "no WORKDIR"),
        (HEAD + "COPY missing ./\n", "COPY missing ./"),
        (HEAD + "COPY fil* ./\n", "COPY fil* ./"),
        (HEAD + "COPY --from=x files ./\n", "COPY --from=x files ./"),
        (HEAD + "COPY files /etc/x\n", "COPY files /etc/x"),
        (HEAD + "COPY files /app/../etc\n", "COPY files /app/../etc"),
        (HEAD + 'COPY ["files", "./"]\n', 'COPY ["files", "./"]'),
        (HEAD + "ADD files ./\n", "ADD files ./"),
        (HEAD + "USER www-data\n", "USER www-data"),
        (HEAD + 'RUN ["true"]\n', 'RUN ["true"]'),
        (HEAD + "RUN --mount=type=cache true\n", "RUN --mount=type=cache true"),
        ("FROM thundersync/mini:1\nWORKDIR /a\nWORKDIR /app\n", "WORKDIR /a"),
        (HEAD + "SHELL x\n", "SHELL x"),
        (HEAD + "RUN true && apt-get update\n", "RUN true && apt-get update"),
        (HEAD + "RUN pip install x\n", "RUN pip install x"),
    ],
)
def test_an_engine_is_needed(text: str, words: str) -> None:
    assert read(text).engine_needed_for(CONTEXT).startswith(words)
    assert read(HEAD).engine_needed_for(CONTEXT | {".dockerignore": b""}) == ".dockerignore"


def test_the_files_and_commands_of_an_image_are_the_same_in_both_sandboxes(bench, make_task):
    lines = (
        "COPY --chown=agent:agent files/ ./\nCOPY one.txt renamed.txt\nCOPY one.txt /tmp/into/\n"
        "COPY files one.txt deep/er/\nENV GREETING='a b'\nRUN echo \"$GREETING\" > said\n"
    )
    files = {
        "environment/files/a.txt": "a",
        "environment/files/sub/run": "#!/bin/sh\n",
        "environment/one.txt": "1",
    }
    path = make_task(dockerfile=APP + lines, files=files)
    environment, task = bench.environment_of(path)

    async def look(sandbox):
        listed = "find /app /tmp/into -type f -printf '%p %m\\n' | sort; cat said; pwd; id -un"
        return (await sandbox.exec(f'{listed}; echo "$GREETING"', timeout_s=20)).output

    assert bench.in_sandbox(environment, task, look).splitlines() == [
        *("/app/a.txt 644", "/app/deep/er/a.txt 644", "/app/deep/er/one.txt 644"),
        *("/app/deep/er/sub/run 755", "/app/renamed.txt 644", "/app/said 644"),
        *("/app/sub/run 755", "/tmp/into/one.txt 644", "a b", "/app", "agent", "a b"),
    ]


def test_a_command_that_fails_is_infrastructure(bench, make_task) -> None:
    environment, task = bench.environment_of(make_task(dockerfile=APP + "RUN exit 3\n"))
    with pytest.raises(InfrastructureError) as caught:
        bench.in_sandbox(environment, task, lambda sandbox: sandbox.exec("true", timeout_s=5))
    assert caught.value.kind == "image"
    assert "exit 3" in str(caught.value) and "\n" not in str(caught.value)
