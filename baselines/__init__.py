"""Schedules to compare with: one schedule a file."""
