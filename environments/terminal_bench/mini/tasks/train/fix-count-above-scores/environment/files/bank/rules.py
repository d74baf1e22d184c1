def smallest_pages(arr):
    return min(arr)

def top_steps(xs):
    m = xs[0]
    for v in xs:
        if v > m:
            m = v
    return m

def count_upto_items(seq, b):
    k = 0
    for v in seq:
        if v <= b:
            k += 1
    return k
