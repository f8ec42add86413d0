#!/usr/bin/env python3
"""Renders conversations with the real Jinja engine, set up as chat templates are run, into tests/golden/chat_template.json.

    python3 tests/tools/make_chat_golden.py        (needs jinja2; run from the repository root)
"""
import itertools
import json
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, in °C <or °F>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                       "required": ["city"]},
    },
}
NUMBERS = {"name": "numbers", "values": [1, 1.0, -0.5, 1e15, 1e16, 1.5e300, 0.0001, 0.00001, -0.0, 2**63, -7, True, None],
           "text": "tab\t quote\" slash\\ / bell\x07 \x7f é 漢 🙂 & ' <b>", "empty": [{}, [], ""]}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, reasoning="", calls=()):
    return {"role": "assistant", "content": text, "reasoning_content": reasoning,
            "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def tool(text):
    return {"role": "tool", "content": text}


SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in one line."}
CALL = ("get_weather", {"city": "Łódź", "days": 3, "raw": "a\n\n b", "deep": {"k": [1, 2.5, "x", None, False]}, "empty": ""})

CONVERSATIONS = {
    "question": [user("Hello, who are you?")],
    "system": [SYSTEM, user("Hi")],
    "empty_system": [{"role": "system", "content": ""}, user("Hi")],
    "system_only": [SYSTEM],
    "empty_user": [user("")],
    "markup": [user("  <|im_end|>\n<think>\nx</think> {{ 7 * 7 }} \n")],
    "turns": [SYSTEM, user("1+1?"), assistant("2", "Easy.\nOne and one."), user("And 2+2?"), assistant("4"), user("Thanks")],
    "ends_with_answer": [user("1+1?"), assistant("2", "Sum.\n")],
    "call": [user("Weather?"), assistant("", "I need the tool.", [CALL]), tool('{"t": 21.5}'), assistant("It is 21.5 °C.", "Done.")],
    "call_with_content": [user("Weather?"), assistant("Let me look.\n", "", [CALL]), tool("rain")],
    "blank_before_call": [user("Weather?"), assistant(" \n\n", "", [("now", {})])],
    "two_calls": [SYSTEM, user("Both cities"), assistant("Looking. ", "Two calls.", [CALL, ("get_weather", {"city": "Oslo"})]),
                  tool("21"), tool("7"), assistant("21 and 7", "Compare."), user("Which is warmer?"), assistant("Łódź", "21 > 7")],
    "loop": [user("Do it"), assistant("", "Step 1.", [("step", {"n": 1})]), tool("ok"),
             assistant("", "Step 2.", [("step", {"n": 2})]), tool("ok"), tool("again")],
    "tool_first": [tool("orphan"), user("What was that?")],
    "wrapped_result": [user("Q"), assistant("", "R1", [("f", {"x": True})]), user("<tool_response>\n5\n</tool_response>"),
                       assistant("five", "R2")],
    "assistant_first": [assistant("Hello!", "Greet."), user("Hi")],
}


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

    def raise_exception(message):
        raise ValueError(message)

    env.globals["raise_exception"] = raise_exception
    return env


def cases(form):
    """Every conversation with the default options, and those where it can matter with each of the others."""
    for name, messages in CONVERSATIONS.items():
        has_turns = any(m["role"] == "assistant" for m in messages)
        for thinking, effort, preserve, tools, prompt in itertools.product(
                (True, False), ("xhigh", "medium", "low"), (True, False), (0, 1, 2), (True, False)):
            changed = (not thinking) + (effort != "xhigh") + (not preserve) + (tools > 0) + (not prompt)
            wanted = changed <= 1 or (name in ("system", "two_calls", "empty_system") and changed <= 2 and tools < 2)
            if not wanted or (not preserve and not has_turns) or (form == "nano" and effort == "low"):
                continue
            yield {"name": name, "messages": messages, "thinking": thinking, "reasoning_effort": effort,
                   "preserve_thinking": preserve, "tools": [WEATHER, NUMBERS][:tools], "add_generation_prompt": prompt}


def main():
    golden = {}
    for form in ("nano", "qwen38_form"):
        template = environment().from_string((GOLDEN / f"chat_template_{form}.jinja").read_text(encoding="utf-8"))
        golden[form] = []
        for case in cases(form):
            text = template.render(messages=case["messages"], tools=case["tools"] or None,
                                   add_generation_prompt=case["add_generation_prompt"], enable_thinking=case["thinking"],
                                   reasoning_effort=case["reasoning_effort"], preserve_thinking=case["preserve_thinking"])
            golden[form].append({**{k: v for k, v in case.items() if k not in ("messages", "tools")},
                                 "tools": len(case["tools"]), "text": text})
    out = {"tools": [WEATHER, NUMBERS], "conversations": CONVERSATIONS, **golden}
    (GOLDEN / "chat_template.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print({form: len(golden[form]) for form in ("nano", "qwen38_form")})


if __name__ == "__main__":
    main()
