"""The tool and the rewards of shop.yaml."""

PRICES = {"market": {"apples": 2, "pears": 4}, "station": {"apples": 3, "pears": 5}}


def price(item: str, shop: str) -> int:
    """Finds what one piece of an item costs.

    Args:
        item: What is sold, such as `apples`.
    """
    if item not in PRICES[shop]:
        raise ValueError(f"nothing is known of {item}")
    return PRICES[shop][item]


def close(response: str, answer: str) -> float:
    """1 for the right number, less for a number near it."""
    try:
        distance = abs(float(response) - float(answer))
    except ValueError:
        return 0
    return max(0, 1 - distance / float(answer))


def is_number(response: str) -> bool:
    return response.strip().isdigit()


def agree(responses: list[str]) -> list[float]:
    """For each rollout the share of those that answer the same."""
    return [responses.count(response) / len(responses) for response in responses]
