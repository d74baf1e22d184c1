"""Tasks that exist on paper only: drawn from distributions, or replayed from a recording."""
