"""Isolated machines behind one protocol of few methods."""
