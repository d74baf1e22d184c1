"""Six real bug fixes of projects on PyPI as SWE-bench instances.

Nothing of the projects is in this repository: `python -m environments.swebench.pypi` downloads
their pinned source distributions, makes the instances and runs the tests before and after the fix.
"""

from environments.swebench.pypi.source import PypiSource

__all__ = ["PypiSource"]
