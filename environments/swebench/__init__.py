"""SWE-bench's instance format: data sets, agent prompt, verifier."""
