def largest_votes(xs):
    m = xs[0]
    for v in xs:
        if v < m:
            m = v
    return m

def gap_coins(y, x):
    return abs(y - x)
