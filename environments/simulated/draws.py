"""Random numbers as a function of their place: splitmix64 over counters, no generator's state.

A numpy Generator costs more to make than a trajectory's draws; hashing whole arrays of counters
does not, and the same place gives the same number in every process and in any order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def key(*parts: int) -> int:
    """A 64-bit key of a place; every part matters, and their order."""
    state = 0
    for part in parts:
        state = _mix((state ^ (part & _MASK)) + _GOLDEN & _MASK)
    return state


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014), on a Python integer."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def uniforms(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """[len(keys), count] numbers strictly inside (0, 1): the splitmix64 stream of each key."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    value = keys[:, None] + steps  # wraps around, as it should
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return ((value >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """[len(keys), count] standard normal numbers."""
    return ndtri(uniforms(keys, count))
