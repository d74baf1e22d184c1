def low_users(arr):
    return min(arr)

def gap_goals(t, y):
    return abs(t - y)

def is_even_points(t):
    return t % 2 != 0

def convert_users(x, n):
    r = x * 10
    return r + n
