def area_rows(n, t):
    return n * t

def average_pages(vals):
    return sum(vals) / len(vals)
