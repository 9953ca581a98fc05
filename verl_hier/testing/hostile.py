"""Texts of a policy that the kits for workers and environments play."""

from __future__ import annotations

HOSTILE: dict[str, str] = {
    "an empty answer": "",
    "white space": " \n\t\r\n ",
    "braces": "{} {0} {instruction} {observation!r} {{ }",
    "percent signs": "%s %(x)s %n %",
    "opened tags": "<action><plan><answer><think>",
    "closed tags": "</action></plan></answer>",
    "nested tags": "<action><action>right</action></action>",
    "brackets": "(" * 1500 + "[{<",
    "backslashes": "\\1 \\g<0> \\u12 [a- (?P<x>",
    "digits": "9" * 1500,
    "separators": ";;; , : | \n-\n*\n1.",
    "code": '__import__("os").abort()',
    "a tool and brackets": "look " + "[" * 2000,
    "a call of brackets": '<tool_call>{"name": "look", "arguments": {"way": '
    + "[" * 500
    + "]" * 500
    + "}}</tool_call>",
    "brackets within a mapping": '{"message": ' + "[" * 300 + "]" * 300 + "}",
    "numbers that are none": '{"message": NaN, "far": [-Infinity, 1e999], "many": ' + "9" * 5000 + "}",
    "JSON that is cut": '{"action": ["right", {"to": ',
    "halves of characters, escaped": '"\\ud83d" {"text": "\\udc00", "name": "\\ud800"} f("\\ud800")',
    "control characters": "\x1b[31m\x07\b\x7f\x85 \u2066\u2069\u200b",
    "letters of many scripts": "é İ ß ﬁ 𝕏 語 שלום \u202e\u0301\u2028\ufeff\0",
}
"""Texts that a policy may generate, however rarely; none may raise an exception in a worker or an environment."""
