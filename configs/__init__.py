"""Hydra configuration groups, one folder per seam."""
