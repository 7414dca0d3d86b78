"""Which workload a request is, and so which drafter it gets."""

from __future__ import annotations

import re

from python_backend.settings import Workload

_CODE = re.compile(
    r"```|\b(def|class|import|return|function|const|public|static|void|#include)\b.*[(:{;]"
    r"|\b(python|javascript|typescript|java|c\+\+|rust|golang|sql|bash|regex|html|css)\b"
    r"|\b(code|function|script|program|refactor|docstring|unit test|compile|debug)\b",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\d\s*[-+*/^=×÷]\s*\d|\\(frac|sqrt|sum|int)\b|\$[^$]+\$"
    r"|\b(solve|equation|calculate|compute|sum of|product of|percent|fraction|integral|derivative|probability|prove)\b"
    r"|\bhow (many|much|far|long|old)\b",
    re.IGNORECASE,
)


def route(text: str) -> Workload:
    """A keyword rule: code before math before chat."""
    if _CODE.search(text):
        return "code"
    if _MATH.search(text):
        return "math"
    return "chat"
