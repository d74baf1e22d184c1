"""What work would cost on hardware that is not here: seconds from shapes, rates and overheads."""
