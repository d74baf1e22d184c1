"""Where engine and learner processes run."""
