"""Bundled small tasks in SWE-bench's format, generated from a seed."""
