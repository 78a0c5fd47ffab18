"""Decides how many users and iterations each share of a workflow gets.

The sums are exact and no share is empty of users: a core that was reserved is used.
"""

from __future__ import annotations

from collections.abc import Sequence


def split_users(vus: int, threads: int) -> list[int]:
    """One number of users per thread; fewer threads than asked when there are fewer users.

    Every thread gets the same number, and the last one also the remainder: 2000 on 6 is five times
    333 and 335. When the remainder would make the last thread hot (few users each), it is spread
    one by one over the last threads instead.
    """
    if vus < 1 or threads < 1:
        raise ValueError(f"cannot split {vus} users over {threads} threads")
    threads = min(threads, vus)
    base, remainder = divmod(vus, threads)
    if base >= threads:
        return [base] * (threads - 1) + [base + remainder]
    return [base] * (threads - remainder) + [base + 1] * remainder


def split_by_weight(total: int, weights: Sequence[int]) -> list[int]:
    """Splits a number in proportion to the weights; what is left goes to the largest remainders,
    the first of equal ones."""
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda at: -(total * weights[at] % whole))
    for at in order[: total - sum(parts)]:
        parts[at] += 1
    return parts


def split_iterations(total: int, parts: int) -> list[int]:
    """As even as whole numbers allow, the first parts one more; 0 where there are too few."""
    if total < 0 or parts < 1:
        raise ValueError(f"cannot split {total} iterations into {parts} parts")
    base, remainder = divmod(total, parts)
    return [base + 1] * remainder + [base] * (parts - remainder)
