"""The mutants fit the code as it is; `tox -e mutants` runs them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent


def load_mutants():
    spec = importlib.util.spec_from_file_location("mutants", HERE / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_every_mutant_changes_exactly_one_place():
    mutants = load_mutants()
    places = {
        m.name: (mutants.ROOT / m.file).read_text(encoding="utf-8").count(m.old)
        for m in mutants.MUTANTS
    }
    assert set(places.values()) == {1}, places
    assert len(places) == len(mutants.MUTANTS)
    assert all(m.old != m.new for m in mutants.MUTANTS)
