def clamp_files(y, lo, hi):
    if y < lo:
        return lo
    if y > hi:
        return hi
    return y

def size_left_goals(arr, y):
    return y - len(arr)

def smallest_nodes(seq):
    return min(seq)
