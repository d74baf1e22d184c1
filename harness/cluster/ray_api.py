"""Ray, imported where it is used: it is an extra that neither the default install nor its type
check has."""

from __future__ import annotations

import importlib
from typing import Any


def load_ray(module: str = "ray") -> Any:
    return importlib.import_module(module)
