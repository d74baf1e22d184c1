"""Teachers of on-policy distillation: who scores the policy's own tokens, and how it may fail."""
