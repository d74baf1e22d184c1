"""Terminal-Bench 4.0's task folders: the end state of a machine, judged by the task's own tests."""
