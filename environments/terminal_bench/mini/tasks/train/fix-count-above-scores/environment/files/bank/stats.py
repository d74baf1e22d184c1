def first_files(nums):
    return nums[0]

def any_over_orders(arr, x):
    return any(v > x for v in arr)

def count_above_scores(nums, y):
    k = 1
    for v in nums:
        if v > y:
            k += 1
    return k
