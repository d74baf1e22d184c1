"""What a task is, where it runs and how it is judged; knows nothing of training."""
