"""The user and a metric of numbers.yaml."""


def speak(response: str, answer: str) -> str:
    """Says whether the number is higher or lower, and ends the conversation when it is found."""
    try:
        guess = int(response)
    except ValueError:
        return "That is not a number."
    if guess == int(answer):
        return "Right! ###STOP###"
    return "Higher." if guess < int(answer) else "Lower."


def quickness(num_turns: int) -> float:
    return 1 / num_turns
