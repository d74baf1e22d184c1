"""The function templates of mini, and the syntax-tree mutations that put a bug into each.

A body is written with the placeholders L (a list), A, B, C (scalars) and K (a small constant),
which the generator renames. A mutation replaces the first subtree equal to `old` by `new`;
`symptoms` say in an issue's words what then goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One bug: the subtree `old` becomes `new`. `weight` is its share in demonstrations."""

    old: str
    new: str
    symptoms: tuple[str, ...]
    weight: int = 1


@dataclass(frozen=True)
class Template:
    """One function: `parameters` is a string over L, A, B, C in order of the signature, `call_ns`
    the CPU time of a call as once measured, by which slow tests are sized."""

    verbs: tuple[str, ...]
    parameters: str
    call_ns: int
    body: str
    mutations: tuple[Mutation, ...]

    @property
    def name(self) -> str:
        return self.verbs[0]


M = Mutation
STARTS_AT_ONE = ("is always one too large", "starts counting from one, not zero")
HARD = 3  # bugs whose repair has to combine several names: demonstrated more often

TEMPLATES: tuple[Template, ...] = (
    Template(
        ("total", "sum"),
        "L",
        150,
        "s = 0\nfor v in L:\n    s += v\nreturn s",
        (
            M("s += v", "s -= v", ("subtracts the values instead of adding them",)),
            M("s = 0", "s = 1", STARTS_AT_ONE),
            M("s += v", "s += 1", ("adds one per value instead of the value",)),
        ),
    ),
    Template(
        ("count_above", "num_above"),
        "LA",
        180,
        "k = 0\nfor v in L:\n    if v > A:\n        k += 1\nreturn k",
        (
            M("v > A", "v >= A", ("also counts values equal to the limit",), HARD),
            M("v > A", "v < A", ("counts the smaller values instead of the larger ones",), HARD),
            M("k += 1", "k += 2", ("is twice as large as it should be",), HARD),
            M("k = 0", "k = 1", STARTS_AT_ONE, HARD),
        ),
    ),
    Template(
        ("count_upto", "num_upto"),
        "LA",
        150,
        "k = 0\nfor v in L:\n    if v <= A:\n        k += 1\nreturn k",
        (
            M("v <= A", "v < A", ("forgets values equal to the limit",)),
            M("v <= A", "v >= A", ("counts the larger values instead of the smaller ones",)),
            M("k += 1", "k -= 1", ("comes out negative",)),
        ),
    ),
    Template(
        ("clamp", "limit"),
        "ABC",
        50,
        "if A < B:\n    return B\nif A > C:\n    return C\nreturn A",
        (
            M("A < B", "A > B", ("is wrong for inputs under the lower bound",), HARD),
            M("A > C", "A < C", ("is wrong for inputs over the upper bound",), HARD),
            M("return B", "return C", ("gives the upper bound for small inputs",), HARD),
            M("return C", "return B", ("gives the lower bound for large inputs",), HARD),
        ),
    ),
    Template(
        ("mean", "average"),
        "L",
        140,
        "return sum(L) / len(L)",
        (
            M(
                "sum(L) / len(L)",
                "sum(L) * len(L)",
                ("multiplies by the length instead of dividing",),
            ),
            M("sum(L) / len(L)", "sum(L) // len(L)", ("drops the fraction",)),
            M("sum(L)", "max(L)", ("uses the largest value instead of the sum",)),
        ),
    ),
    Template(
        ("last",),
        "L",
        90,
        "return L[-1]",
        (
            M("L[-1]", "L[0]", ("returns the first element",)),
            M("L[-1]", "L[-2]", ("returns the one before the last element",)),
        ),
    ),
    Template(
        ("first",),
        "L",
        70,
        "return L[0]",
        (
            M("L[0]", "L[1]", ("returns the second element",)),
            M("L[0]", "L[-1]", ("returns the last element",)),
        ),
    ),
    Template(
        ("is_even",),
        "A",
        60,
        "return A % 2 == 0",
        (
            M("A % 2 == 0", "A % 2 != 0", ("is true for odd numbers",)),
            M("A % 2", "A % 3", ("tests multiples of three",)),
            M("A % 2", "A // 2", ("uses the quotient instead of the remainder",)),
        ),
    ),
    Template(
        ("pass", "accept"),
        "A",
        40,
        "return A >= K",
        (
            M("A >= K", "A > K", ("rejects the exact threshold",)),
            M("A >= K", "A <= K", ("accepts low values and rejects high ones",)),
        ),
    ),
    Template(
        ("reject", "under"),
        "A",
        45,
        "return A < K",
        (
            M("A < K", "A <= K", ("is true for the exact threshold",)),
            M("A < K", "A > K", ("is true for high values and false for low ones",)),
        ),
    ),
    Template(
        ("take", "head"),
        "LA",
        160,
        "return L[:A]",
        (
            M("L[:A]", "L[A:]", ("drops the leading elements instead of keeping them",)),
            M("L[:A]", "L[:A - 1]", ("keeps one element too few",)),
            M("L[:A]", "L[:A + 1]", ("keeps one element too many",)),
        ),
    ),
    Template(
        ("both",),
        "AB",
        60,
        "return A > 0 and B > 0",
        (
            M("A > 0 and B > 0", "A > 0 or B > 0", ("is true when only one input is positive",)),
            M("B > 0", "B < 0", ("wants the second input to be negative",)),
            M("A > 0", "A < 0", ("wants the first input to be negative",)),
        ),
    ),
    Template(
        ("missing", "lacks"),
        "LA",
        100,
        "return A not in L",
        (M("A not in L", "A in L", ("is true for present values, the negation is missing",)),),
    ),
    Template(
        ("largest", "top"),
        "L",
        170,
        "m = L[0]\nfor v in L:\n    if v > m:\n        m = v\nreturn m",
        (
            M("v > m", "v < m", ("returns the smallest value",)),
            M("return m", "return v", ("returns the final element, not the best one",)),
        ),
    ),
    Template(
        ("smallest", "low"),
        "L",
        210,
        "return min(L)",
        (
            M("min(L)", "max(L)", ("returns the largest value",)),
            M("min(L)", "sum(L)", ("adds everything up",)),
        ),
    ),
    Template(
        ("gap", "diff"),
        "AB",
        60,
        "return abs(A - B)",
        (
            M("A - B", "A + B", ("adds the inputs instead of subtracting",)),
            M("A - B", "A - A", ("is always zero",), HARD),
            M("abs(A - B)", "int(A - B)", ("can be negative",)),
        ),
    ),
    Template(
        ("area", "cover"),
        "AB",
        50,
        "return A * B",
        (
            M("A * B", "A + B", ("adds the sides instead of multiplying",)),
            M("A * B", "A * A", ("ignores the second side",), HARD),
            M("A * B", "B * B", ("ignores the first side",)),
        ),
    ),
    Template(
        ("scale", "convert"),
        "AB",
        60,
        "r = A * K\nreturn r + B",
        (
            M("A * K", "A + K", ("adds the factor instead of multiplying",)),
            M("r + B", "r - B", ("subtracts the offset",)),
            M("r + B", "r + A", ("uses the first input as offset",), HARD),
        ),
    ),
    Template(
        ("span", "upto"),
        "A",
        240,
        "s = 0\nfor i in range(1, A + 1):\n    s += i\nreturn s",
        (
            M("range(1, A + 1)", "range(1, A - 1)", ("stops too early, two short",)),
            M("range(1, A + 1)", "range(2, A + 1)", ("skips the first number",)),
            M("s += i", "s *= i", ("multiplies the numbers instead of adding",)),
            M("s = 0", "s = 1", STARTS_AT_ONE),
        ),
    ),
    Template(
        ("evens", "pick_even"),
        "L",
        330,
        "return [v for v in L if v % 2 == 0]",
        (
            M("v % 2 == 0", "v % 2 != 0", ("keeps odd values",)),
            M("v % 2", "v % 3", ("keeps multiples of three",)),
        ),
    ),
    Template(
        ("any_over",),
        "LA",
        500,
        "return any(v > A for v in L)",
        (
            M(
                "any(v > A for v in L)",
                "all(v > A for v in L)",
                ("needs every value to pass, one is enough",),
            ),
            M("v > A", "v >= A", ("is true for a value equal to the limit",)),
            M("v > A", "v < A", ("looks for small values",)),
        ),
    ),
    Template(
        ("all_over",),
        "LA",
        480,
        "return all(v > A for v in L)",
        (
            M(
                "all(v > A for v in L)",
                "any(v > A for v in L)",
                ("passes when only one value does",),
            ),
            M("v > A", "v >= A", ("is true for a value equal to the limit",)),
            M("v > A", "v < A", ("looks for small values",)),
        ),
    ),
    Template(
        ("size_left", "room"),
        "LA",
        80,
        "return A - len(L)",
        (
            M("A - len(L)", "A + len(L)", ("grows with the length instead of shrinking",)),
            M("len(L)", "sum(L)", ("uses the sum instead of the length",)),
        ),
    ),
)
