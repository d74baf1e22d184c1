"""The bundled data set: its size, its spread, its splits, and that its generator still makes it."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from environments.protocols import UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.instance import parse_instance
from environments.swebench.mini import build
from environments.swebench.mini.dataset import MiniSource, data_hash, data_path, make_instance
from environments.swebench.mini.generator import generate
from environments.swebench.mini.mutate import render
from environments.swebench.mini.task import MiniTask, split_of
from environments.swebench.mini.templates import TEMPLATES

SPLITS = ("train", "eval", "demo")


def head(split: str, count: int, seed: int = build.SEED) -> list[MiniTask]:
    return list(itertools.islice(generate(split, seed), count))


def test_the_generator_makes_the_committed_bytes() -> None:
    instances = build.generate_split("train", build.TRAIN, build.SEED)
    instances += build.generate_split("eval", build.EVAL, build.SEED)
    made = gzip.decompress(build.encode(instances))
    # compared unpacked: zlib releases may pack the same text differently
    assert made == gzip.decompress(data_path(None).read_bytes())


def test_another_seed_makes_other_tasks() -> None:
    ours = {t.package.key for t in head("train", 20)}
    assert not ours & {t.package.key for t in head("train", 20, seed=2)}


def test_sizes_and_spread() -> None:
    source = MiniSource()
    assert len(source.instances("train")) == 512
    assert len(source.instances("eval")) == 96
    for split in source.splits:
        counts = Counter(i.difficulty for i in source.instances(split))
        assert set(counts) == {"easy", "medium", "hard", "slow"}
        total = sum(counts.values())
        assert 0.04 < counts["slow"] / total < 0.16
    tasks = head("train", 512)
    assert 0.6 < sum(t.visible_failure for t in tasks) / len(tasks) < 0.73
    assert 0.2 < sum(t.value_only for t in tasks) / len(tasks) < 0.3
    assert len({(t.target.template.name, t.mutation) for t in tasks}) >= 60
    assert all(4 <= len(t.package.all_functions) <= 8 for t in tasks)


def test_splits_share_no_site_and_no_package() -> None:
    tasks = {split: head(split, 96) for split in SPLITS}
    for split in SPLITS:
        assert all(split_of(t.site) == split for t in tasks[split])
        assert all(split_of(t.package.key) == split for t in tasks[split])
    for a, b in itertools.combinations(SPLITS, 2):
        assert not {t.site for t in tasks[a]} & {t.site for t in tasks[b]}
        assert not {t.package.key for t in tasks[a]} & {t.package.key for t in tasks[b]}
    for split in ("train", "eval"):
        assert len({t.site for t in tasks[split]}) == 96


def test_bundled_instances_share_no_repository() -> None:
    source = MiniSource()
    train, evaluation = source.instances("train"), source.instances("eval")
    assert not {i.base_commit for i in train} & {i.base_commit for i in evaluation}
    assert not {i.patch for i in train} & {i.patch for i in evaluation}


def test_every_mutation_changes_one_line() -> None:
    names = {"L": "xs", "A": "n", "B": "y", "C": "hi"}
    for template in TEMPLATES:
        good = render(template, "f", names, 5).split("\n")
        for mutation in template.mutations:
            bad = render(template, "f", names, 5, mutation).split("\n")
            assert sum(a != b for a, b in zip(good, bad, strict=True)) == 1, mutation


def test_a_mutation_without_its_subtree_is_an_error() -> None:
    other = TEMPLATES[1].mutations[0]
    with pytest.raises(ValueError, match="no subtree"):
        render(TEMPLATES[0], "f", {"L": "xs"}, 5, other)


def test_issues_say_a_symptom_or_one_wrong_value() -> None:
    for task in head("demo", 60):
        if task.value_only:
            assert re.fullmatch(r"\w+\(.*\) should be .+, got .+\.", task.issue)
        else:
            symptoms = task.mutation.symptoms
            assert task.issue in [f"{task.target.name} {symptom}." for symptom in symptoms]


def test_hidden_tests_are_not_in_the_repository() -> None:
    for task in head("train", 30):
        instance = make_instance(task, "train")
        assert instance.files is not None
        text = "".join(instance.files.values())
        names = [n.partition("::")[2] for n in instance.FAIL_TO_PASS + instance.PASS_TO_PASS]
        hidden = [name for name in names if f"def {name}(" not in text]
        assert len(hidden) >= 3
        assert sum(n.startswith(f"test_{task.target.name}_") for n in names) >= 5


def test_validation_catches_an_instance_that_lies() -> None:
    instance = MiniSource().instances("eval")[0]
    build.validate(instance)
    record = instance.record()
    moved = record["PASS_TO_PASS"].pop()
    record["FAIL_TO_PASS"].append(moved)
    lying = parse_instance(record)
    with pytest.raises(UsageError, match=re.escape(moved)):
        build.validate(lying)


def test_the_hash_is_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mini.jsonl.gz").write_bytes(data_path(None).read_bytes())
    assert data_hash(str(tmp_path)) == data_hash()


def test_a_missing_or_broken_data_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"env.data_dir: .*mini.jsonl.gz cannot be read"):
        SweBench(SweBenchConfig(data_dir=str(tmp_path))).tasks("eval")
    record = MiniSource().instances("eval")[0].record()
    del record["log_parser"]
    line = json.dumps(record).encode()
    (tmp_path / "mini.jsonl.gz").write_bytes(gzip.compress(line))
    with pytest.raises(UsageError, match=f"{record['instance_id']}.*'log_parser' is missing"):
        SweBench(SweBenchConfig(data_dir=str(tmp_path))).tasks("eval")
