"""Data sets in SWE-bench's own format: where they are read from, what is said of broken rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments.protocols import UsageError
from environments.swebench.config import SweBenchConfig
from environments.swebench.environment import SweBench
from environments.swebench.mini.dataset import MiniSource
from environments.swebench.published import PublishedSource

INSTANCES = MiniSource().instances("eval")[:10]
LEFT_OUT = ("split", "files", "image", "eval_type")  # what the published data sets lack


def rows(count: int = 10) -> list[dict[str, Any]]:
    """Rows as the published data sets have them: test lists are JSON text."""
    made = []
    for instance in INSTANCES[:count]:
        row = {k: v for k, v in instance.record().items() if k not in LEFT_OUT}
        row["FAIL_TO_PASS"] = json.dumps(row["FAIL_TO_PASS"])
        row["PASS_TO_PASS"] = json.dumps(row["PASS_TO_PASS"])
        row |= {"hints_text": "", "created_at": "2025-01-01", "environment_setup_commit": "0" * 40}
        made.append(row)
    return made


def write_parquet(path: Path, records: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def write(folder: Path, form: str, records: list[dict[str, Any]]) -> Path:
    path = folder / f"own.{form}"
    if form == "parquet":
        return write_parquet(path, records)
    if form == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text(json.dumps(records))
    return path


def write_task_repository(path: Path, records: list[dict[str, Any]]) -> Path:
    (path / "tasks").mkdir(parents=True)
    (path / "sweb.yaml").write_text(yaml.safe_dump({"datasets": ["own/data"]}))
    files = {
        "gold.patch": "patch",
        "test.patch": "test_patch",
        "eval.sh": "eval_script",
        "problem_statement.md": "problem_statement",
    }
    tests = ("FAIL_TO_PASS", "PASS_TO_PASS")
    for record in records:
        task = path / "tasks" / record["instance_id"]
        task.mkdir()
        meta = {k: v for k, v in record.items() if k not in {*files.values(), *tests}}
        (task / "task.yaml").write_text(yaml.safe_dump(meta | {"split": "test"}))
        (task / "tests.json").write_text(json.dumps({k: json.loads(record[k]) for k in tests}))
        for name, column in files.items():
            (task / name).write_text(record[column])
        (task / "Dockerfile").write_text("FROM scratch\n")
    return path


def source(dataset: Path | str, **settings: Any) -> PublishedSource:
    opened = SweBench(SweBenchConfig(dataset=str(dataset), **settings)).source
    assert isinstance(opened, PublishedSource)
    return opened


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet"])
def test_a_file_in_the_exact_schema_gives_its_instances(tmp_path: Path, form: str) -> None:
    read = source(write(tmp_path, form, rows()))
    assert read.complaints == []
    found = {i.instance_id: i for i in read.instances("test")}
    for original in INSTANCES:
        instance = found[original.instance_id]
        assert instance.FAIL_TO_PASS == original.FAIL_TO_PASS
        assert instance.eval_script == original.eval_script
        name = original.instance_id.replace("__", "_1776_")
        assert instance.image == f"swebench/sweb.eval.x86_64.{name}:latest"


def test_a_task_repository_gives_the_same_instances(tmp_path: Path) -> None:
    read = source(write_task_repository(tmp_path / "own", rows()))
    assert read.complaints == []
    assert {i.instance_id for i in read.instances("test")} == set(read.folders)
    by_file = source(write(tmp_path, "jsonl", rows()))
    assert sorted(map(repr, read.instances("test"))) == sorted(map(repr, by_file.instances("test")))


def test_a_hugging_face_data_set_comes_from_the_cache_alone(tmp_path: Path) -> None:
    cache = tmp_path / "datasets--own--data"
    commit = "a" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    data = cache / "snapshots" / commit / "data"
    write_parquet(data / "train-00000-of-00001.parquet", rows()[:4])
    write_parquet(data / "test-00000-of-00001.parquet", rows()[4:])
    read = source("own/data", data_dir=str(tmp_path))
    counts = {split: len(read.instances(split)) for split in read.splits}
    assert counts == {"train": 4, "test": 6, "eval": 6}


@pytest.mark.parametrize("name", ["verified", "own/missing"])
def test_a_data_set_that_is_not_there_says_what_to_fetch_and_how(tmp_path: Path, name: str) -> None:
    full = "SWE-bench/SWE-bench_Verified" if name == "verified" else name
    with pytest.raises(UsageError) as error:
        source(name, data_dir=str(tmp_path))
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(f"env.dataset={full}: not in the local Hugging Face cache")
    assert line.endswith(f"hf download {full} --repo-type dataset --cache-dir {tmp_path}")


REQUIRED = (
    *("repo", "base_commit", "patch", "test_patch", "problem_statement", "version"),
    *("FAIL_TO_PASS", "PASS_TO_PASS", "eval_script", "log_parser"),
)


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_field_is_one_line_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, key: str
) -> None:
    records = rows()
    name = records[3]["instance_id"]
    del records[3][key]
    with caplog.at_level(logging.WARNING):
        read = source(write(tmp_path, form, records))
    assert len(read.instances("test")) == 9
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.endswith(f"row 4: instance {name!r}: field {key!r} is missing")
    assert "\n" not in line


def test_a_broken_task_of_a_repository_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    path = write_task_repository(tmp_path / "own", rows())
    names = sorted(record["instance_id"] for record in rows())
    (path / "tasks" / names[0] / "eval.sh").unlink()
    (path / "tasks" / names[1] / "tests.json").write_text("{")
    meta = path / "tasks" / names[2] / "task.yaml"
    meta.write_text(meta.read_text().replace("log_parser:", "parser:"))
    (path / "tasks" / names[3] / "task.yaml").write_text("a: [")
    read = source(path)
    assert [line.partition(": ")[2].partition(" (")[0] for line in read.complaints] == [
        "the file eval.sh is missing",
        "cannot be read",
        "cannot be read",
        f"instance {names[2]!r}: field 'log_parser' is missing",
    ]
    assert all(f"task {n!r}" in "".join(read.complaints) for n in names[:4])
    assert len(read.instances("test")) == 6


def test_a_data_set_without_one_usable_instance_is_refused(tmp_path: Path) -> None:
    records = rows(2)
    del records[0]["repo"], records[1]["patch"]
    with pytest.raises(UsageError, match=r"has no usable instance, the first: .*field 'repo' is"):
        source(write(tmp_path, "jsonl", records))


def test_repeated_and_odd_rows_are_named(tmp_path: Path) -> None:
    records: list[Any] = [*rows(2), rows(1)[0], 7]
    read = source(write(tmp_path, "json", records))
    assert len(read.instances("test")) == 2
    assert "row 4: must be an object" in read.complaints[0]
    assert "appears twice" in read.complaints[1]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", "{", "cannot be read"),
        ("a.jsonl", "[1", "cannot be read"),
        ("a.parquet", "no parquet", "cannot be read"),
        ("a.json", "3", "must hold a list"),
        ("missing.parquet", None, "no such file"),
        ("folder", None, "no sweb.yaml in this folder"),
        ("no-such-thing", None, "is unknown; use one of mini, pypi, verified, a Hugging"),
    ],
)
def test_what_is_no_data_set_is_one_line(
    tmp_path: Path, name: str, content: str | None, problem: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    if name == "folder":
        path.mkdir()
    with pytest.raises(UsageError, match=problem) as error:
        source(name if name == "no-such-thing" else path)
    assert str(error.value).startswith("env.dataset=")
    assert "\n" not in str(error.value)


def test_a_data_set_without_a_training_split_is_for_evaluation(tmp_path: Path) -> None:
    data = write(tmp_path, "jsonl", rows())
    read = source(data)
    assert sorted(read.splits) == ["eval", "test"]
    assert read.instances("eval") == read.instances("test")
    assert len(read.instances("eval")) == 10
    environment = SweBench(SweBenchConfig(dataset=str(data)))
    with pytest.raises(UsageError, match=r"^env.split='train': data set .* is for evaluation") as e:
        environment.tasks("train")
    line = str(e.value)
    assert "\n" not in line
    for way_out in ("env.dataset", "split column says train", "env.train_on_evaluation=true"):
        assert way_out in line


def test_the_test_split_is_evaluated_where_others_are_there_too(tmp_path: Path) -> None:
    names = ["train"] * 4 + ["dev"] * 3 + ["test"] * 3
    for start, training in ((0, True), (4, False)):
        records = [row | {"split": s} for row, s in zip(rows(), names, strict=True)][start:]
        read = source(write(tmp_path, "jsonl", records))
        assert ("train" in read.splits) == training
        assert read.instances("eval") == read.instances("test")


def test_who_asks_for_it_trains_on_four_fifths_by_hash(tmp_path: Path) -> None:
    forward = source(write(tmp_path, "jsonl", rows()), train_on_evaluation=True)
    held_out = {i.instance_id for i in forward.instances("eval")}
    assert len(held_out) == 2
    trained = {i.instance_id for i in forward.instances("train")}
    assert not held_out & trained
    assert len(trained) == 8
    backward = source(write(tmp_path, "jsonl", rows()[::-1]), train_on_evaluation=True)
    assert {i.instance_id for i in backward.instances("eval")} == held_out


def test_a_split_column_that_names_them_is_kept(tmp_path: Path) -> None:
    records = [row | {"split": "eval" if n < 3 else "train"} for n, row in enumerate(rows())]
    read = source(write(tmp_path, "jsonl", records))
    assert [i.instance_id for i in read.instances("eval")] == [r["instance_id"] for r in rows(3)]
    assert sorted(read.splits) == ["eval", "train"]


def test_a_table_names_other_images(tmp_path: Path) -> None:
    name = rows()[0]["instance_id"]
    table = tmp_path / "images.json"
    table.write_text(json.dumps({name: "registry.example/own:3"}))
    read = source(write(tmp_path, "jsonl", rows()), images=str(table))
    images = {i.instance_id: i.image for i in read.instances("test")}
    assert images.pop(name) == "registry.example/own:3"
    assert all(image.startswith("swebench/") for image in images.values())


@pytest.mark.parametrize(
    ("content", "problem"), [("[]", "must map"), ('{"a": 3}', "'a' must be"), ("{", "cannot be")]
)
def test_a_broken_table_is_one_line(tmp_path: Path, content: str, problem: str) -> None:
    table = tmp_path / "images.json"
    table.write_text(content)
    with pytest.raises(UsageError, match=f"env.images=.*{problem}"):
        source(write(tmp_path, "jsonl", rows()), images=str(table))


def test_a_sandbox_is_the_owners_and_keeps_the_images_path(tmp_path: Path) -> None:
    data = write(tmp_path, "jsonl", rows())
    spec = source(data).sandbox_spec(source(data).instances("test")[0])
    assert (spec.user, spec.workdir, spec.network) == ("0", "/testbed", "none")
    assert "PATH" not in spec.environment
    small = source(data, user="65532", memory_mb=512, cpus=0.5)
    spec = small.sandbox_spec(small.instances("test")[0])
    assert (spec.user, spec.memory_mb, spec.cpus) == ("65532", 512, 0.5)
