"""What is asked: prompts, and sampling parameters that go through the whole of sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoTokenizer

PROMPTS = (
    "What should I cook tonight with rice and eggs?",
    "Write a short letter to a friend who moved to another city.",
    "Why is the sky blue? Explain it to a child.",
    "Give me three ideas for a birthday party.",
    "Tell me about the history of Rome in a few sentences.",
    "How do I learn to play the guitar?",
    "What is the difference between a lake and a pond?",
    "Describe a rainy morning in a harbour town.",
    "Plan a weekend for two people in the mountains.",
    "Who invented the telephone, and how did it work?",
    "Explain to a beginner how compound interest works.",
    "Write a Python function that reverses a string.",
    "Rewrite this code with type hints:\n```python\ndef add(a, b):\n    total = a + b\n    return total\n```",
    "Write a SQL query that counts the orders of each customer.",
    "Write a Python class for a stack with push and pop.",
    "Show a loop in JavaScript that prints the numbers from 1 to 10.",
    "Write a Python function that tells whether a number is prime.",
    "Repeat this list and sort it by length: pear, fig, banana, kiwi, strawberry, plum, apple, orange.",
    "Write unit tests for a function `area(width, height)` that returns width * height.",
    "Add a docstring:\n```python\ndef mean(values):\n    return sum(values) / len(values)\n```",
    "Write a shell script that renames all .txt files of a folder to .md.",
    "Explain line by line: `for i in range(3): print(i)`",
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "Solve the equation 2 * x + 3 = 11 step by step.",
    "A train travels 60 km in one hour. How far does it travel in 5 hours?",
    "Calculate 12 * 12 and explain how.",
    "What is 15 percent of 80?",
    "A rectangle is 7 cm wide and 9 cm long. What are its area and its perimeter?",
    "List the first ten multiples of 7.",
    "Sara reads 12 pages a day. How many days does she need for 180 pages?",
    "Which is larger, 3/8 or 2/5? Show your work.",
    "Write the numbers from 20 down to 1.",
)
TEMPERATURES = (0.0, 1.0)


class Question(NamedTuple):
    """One request, without its depth."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any]


def ask_all(prompts: list[list[int]], tokens: int) -> list[Question]:
    """Every prompt at every temperature; some with penalties, and with top-p, top-k or min-p above temperature 0."""
    return [
        Question(tuple(prompt), _sampling(i, temperature, tokens))
        for i, prompt in enumerate(prompts)
        for temperature in TEMPERATURES
    ]


def _sampling(i: int, temperature: float, tokens: int) -> dict[str, Any]:
    sampled = temperature > 0
    return {
        "max_tokens": tokens,
        "end_id": -1,  # no early end: more tokens to compare
        "temperature": temperature,
        "seed": 1000 + i,
        "top_p": 0.9 if sampled and i % 4 == 1 else 0.0,
        "top_k": 40 if sampled and i % 4 == 2 else 0,
        "min_p": 0.05 if sampled and i % 4 == 3 else 0.0,
        "repetition_penalty": 1.2 if i % 5 == 4 else 1.0,
    }


def chat_prompts(checkpoint: Path) -> list[list[int]]:
    """PROMPTS in the model's chat template."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in PROMPTS
    ]
    return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
