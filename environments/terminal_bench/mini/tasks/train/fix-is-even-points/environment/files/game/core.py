def total_prices(vals):
    s = 0
    for v in vals:
        s += v
    return s

def count_above_scores(arr, y):
    k = 0
    for v in arr:
        if v > y:
            k += 1
    return k

def top_files(arr):
    m = arr[0]
    for v in arr:
        if v > m:
            m = v
    return m

def accept_cards(a):
    return a >= 7
