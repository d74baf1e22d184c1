def top_users(nums):
    m = nums[0]
    for v in nums:
        if v > m:
            m = v
    return m

def average_boxes(arr):
    return sum(arr) / len(arr)

def head_cards(arr, y):
    return arr[:y + 1]
