"""Shared machinery of every training schedule, and the entry points."""
