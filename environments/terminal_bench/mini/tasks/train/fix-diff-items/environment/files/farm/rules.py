def low_units(vals):
    return min(vals)

def any_over_boxes(xs, n):
    return any(v > n for v in xs)
