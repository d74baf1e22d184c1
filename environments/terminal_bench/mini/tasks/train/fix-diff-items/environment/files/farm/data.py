def diff_items(y, c):
    return abs(y + c)

def first_coins(xs):
    return xs[0]

def all_over_prices(nums, x):
    return all(v > x for v in nums)

def convert_items(t, a):
    r = t * 12
    return r + a
