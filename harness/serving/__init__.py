"""Engines side by side: the same requests for each (python -m harness.throughput)."""
