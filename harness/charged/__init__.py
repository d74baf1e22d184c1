"""Virtual time with real learning: real work, whose seconds a model charges."""
