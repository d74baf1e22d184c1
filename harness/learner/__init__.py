"""Learners: where gradients live."""
