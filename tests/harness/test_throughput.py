"""python -m harness.throughput: what it refuses, and what it says."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.policy.load import resolve
from harness.protocols import InfrastructureError, UsageError
from harness.serving.contenders import Contender
from harness.serving.play import Round
from harness.serving.setting import Setting
from harness.throughput import Options, parse, report, table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["contenders=torch,tgi"], r"contenders=torch,tgi: no 'tgi'; there is torch, generate"),
        (["contenders=torch,torch"], "name each once"),
        (["contenders=torch,vllm"], r"name its interpreter, vllm_python=VENV/bin/python"),
        (["contenders=vllm", "vllm_python=/no/python"], "vllm_python=/no/python: no program there"),
        (["scenarios=poisson"], "there is together, random"),
        (["new_tokens=400"], r"new_tokens=400: .*max_position_embeddings=1024; take fewer"),
        (["rounds=0"], "rounds=0: give a whole number of at least 1"),
        (["requests=many"], "requests=many: give a whole number"),
        (["clock=virtual"], "clock=virtual: give processor or wall"),
        (["request=3"], "request=3: no such setting"),
        (["policy=/nowhere"], "policy=/nowhere: neither tiny"),
    ],
)
def test_one_line_says_what_is_wrong(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(arguments)


def test_an_engine_that_does_not_start_says_why_and_is_gone() -> None:
    setting = Setting(str(resolve("tiny")), slots=2, context=340)
    before = set(psutil.Process().children(recursive=True))
    with (
        pytest.raises(InfrastructureError, match=r"vllm: ended \(exit code 1\)[^$]*'vllm'"),
        Contender("vllm", setting, sys.executable),
    ):
        pass
    assert set(psutil.Process().children(recursive=True)) <= before


def played(seconds: float, latencies: list[float]) -> Round:
    return Round(100, 2 * seconds, seconds, [2 * s for s in latencies], latencies)


def test_ratios_are_of_the_same_round_and_the_fastest_peer_is_named() -> None:
    options = parse(["contenders=torch,generate,continuous", "scenarios=random", "rounds=2"])
    rounds = {
        "random": {
            "torch": [played(1.0, [0.5, 1.0]), played(2.0, [1.0, 2.0])],
            "generate": [played(2.0, [2.0, 2.0]), played(4.0, [4.0, 4.0])],
            "continuous": [played(8.0, [8.0, 8.0]), played(4.0, [4.0, 4.0])],
        }
    }
    found = report(options, rounds)
    random = found["scenarios"]["random"]
    assert random["fastest_peer"] == "generate"
    assert random["engines"]["generate"]["ratio"] == pytest.approx(
        {"mean": 2.0, "least": 2.0, "most": 2.0}
    )
    assert random["engines"]["continuous"]["ratio"] == pytest.approx(
        {"mean": 4.0, "least": 2.0, "most": 8.0}
    )
    assert "ratio" not in random["engines"]["torch"]
    assert random["engines"]["torch"]["tokens_per_s"]["most"] == 100
    assert random["engines"]["torch"]["latency_p50_s"] == 1.0
    assert max(map(len, table(found))) <= 100
    assert any("2.00 (2.00-2.00)  fastest peer" in line for line in table(found))
    wall = report(Options(**(vars(options) | {"clock": "wall"})), rounds)["scenarios"]["random"]
    assert wall["engines"]["torch"]["latency_p50_s"] == 2.0


@pytest.mark.slow
def test_the_command_measures_both_scenarios(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "harness.throughput", "contenders=torch,generate,continuous",
            "requests=4", "new_tokens=4", "rounds=2",
        ],
        capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    for scenario in ("together", "random"):
        engines = found["scenarios"][scenario]["engines"]
        assert set(engines) == {"torch", "generate", "continuous"}
        assert engines["continuous"]["ratio"]["least"] > 0
        assert found["scenarios"][scenario]["fastest_peer"] in ("generate", "continuous")
    assert "fastest peer" in done.stderr
