"""Tables, figures and reports from the artifacts that runs leave; imports nothing of the
harness."""
