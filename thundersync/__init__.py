"""Gradient streaming: the schedule, its gradient ledger and the parity certificate."""
