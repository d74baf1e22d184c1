def convert_prices(t, y):
    r = t + 11
    return r + y

def sum_tasks(arr):
    s = 0
    for v in arr:
        s += v
    return s

def span_goals(n):
    s = 0
    for i in range(1, n + 1):
        s += i
    return s

def pass_cards(c):
    return c >= 10
