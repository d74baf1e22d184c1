def sum_cards(nums):
    s = 0
    for v in nums:
        s += v
    return s

def mean_goals(arr):
    return sum(arr) / len(arr)

def last_items(nums):
    return nums[-1]

def pick_even_points(arr):
    return [v for v in arr if v % 2 == 0]
