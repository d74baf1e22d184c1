"""Objectives: what the update is, whatever the schedule."""
