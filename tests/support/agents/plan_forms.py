"""Plans as models write them, each with its calls, or the reason why it is invalid."""

from __future__ import annotations

from typing import NamedTuple

PLAN = '1. search("Asia")\n2. search("Africa")\n3. calculate("$1 / $2")\n4. join()'
SEARCH, BOTH = '1. search("Asia")', '1. search("Asia")\n2. search("Africa")'


class Form(NamedTuple):
    """A plan as a model writes it."""

    name: str
    text: str
    calls: str = PLAN  # in the syntax of plans; with join() if the plan has an end
    error: str = ""  # a part of the error, after these calls


def line_by_line(form: str) -> str:
    """`PLAN` with each line in another form: `{n}` is the number, `{call}` the call."""
    lines = (line.split(". ", 1) for line in PLAN.splitlines())
    return "\n".join(form.format(n=number, call=call) for number, call in lines)


NUMBERINGS = [
    "{n}) {call}",
    "({n}) {call}",
    "[{n}] {call}",
    "{n}: {call}",
    "{n} - {call}",
    "{n} – {call}",
    "{n}.) {call}",
    "{n}.{call}",
    "{n} {call}",
    "#{n} {call}",
    "${n} = {call}",
    "${n}: {call}",
    "${{{n}}} = {call}",
    "{n} = {call}",
    "- {n}. {call}",
    "* {n}. {call}",
    "• {n}. {call}",
    "> {n}. {call}",
    "   {n}. {call}",
    "\t{n}.\t{call}",
    "### {n}. {call}",
    "**{n}.** {call}",
    "**{n}. {call}**",
    "{n}. **{call}**",
    "*{n}.* {call}",
    "{n}. `{call}`",
    "`{n}. {call}`",
    "{n}. {call}.",
    "{n}. {call};",
    "{n}. {call},",
    "{n}. {call}   # because it is needed",
    "{n}. {call} // because it is needed",
    "{n}. {call} -- because it is needed",
    "{n}. {call} – because it is needed",
    "{n}. {call} → a number",
    "{n}. {call} (a number)",
    "{n}. {call} to find a number",
    "{n}. {call}<br>",
    "{n}. functions.{call}",
    "{n}. Action: {call}",
    "Step {n}: {call}",
    "Step {n}. {call}",
    "**Step {n}:** {call}",
    "## Step {n}: {call}",
    "- Step {n}: {call}",
    "Task {n}: {call}",
    "Action {n}: {call}",
    "Call {n} - {call}",
    "| {n} | {call} |",
    "{n}\ufe0f\u20e3 {call}",
    "{n}、{call}",
    "{n}.\u00a0{call}",
    "\u3000{n}.\u3000{call}",
    "{call}",
    "- {call}",
    "Action: {call}",
    "Thought: I need it.\n{n}. {call}",
    "**Thought:** I need it.\n{n}. {call}",
    "*Thought {n}:* I need it.\n\n{n}. {call}",
    "### Thought\nI need it.\n{n}. {call}",
]
WHOLE = [
    Form("a fence", f"```\n{PLAN}\n```"),
    Form("a fence with a language", f"```python\n{PLAN}\n```"),
    Form("a fence on one line", f"```{SEARCH}```", SEARCH),
    Form("prose and a fence", f"Sure! Here is the plan:\n\n```text\n{PLAN}\n```"),
    Form("prose before", f"To answer this, I look both up.\n\n{PLAN}\n"),
    Form("a heading", f"## Plan\n\n{PLAN}"),
    Form("a label on the line", f"Plan: {PLAN}"),
    Form("a comment", f"# First the areas\n{PLAN}"),
    Form("prose between calls", PLAN.replace("\n", "\nThen the next one.\n")),
    Form("an outline", f"1. Find the areas\n2. Divide them\n\nPlan:\n{PLAN}"),
    Form("Windows line ends", PLAN.replace("\n", "\r\n") + "\r\n"),
    Form("a byte order mark", f"\ufeff{PLAN}"),
    Form("spaces of no width", PLAN.replace(". ", ".\u200b ")),
    Form("one line", PLAN.replace("\n", " ")),
    Form("one line with semicolons", PLAN.replace("\n", "; ")),
    Form("an end mark", f"{PLAN}<END_OF_PLAN>"),
    Form("an end mark behind a call", f"{SEARCH} <END_OF_PLAN>", f"{SEARCH}\n2. join()"),
    Form("calls within a thought", f'Thought: first 1. search("Asia"), then the rest.\n{PLAN}'),
    Form("the names of tools in prose", f"The tools are search(query) and calculate(expression).\n{PLAN}"),
    Form("calls in a longer sentence", f'I will call search("Asia") first, and then I go on.\n{PLAN}'),
    Form("tags around the plan", f"<plan>\n{PLAN}\n</plan>"),
    Form("an end mark for join", f"{BOTH}\n<END_OF_PLAN>", f"{BOTH}\n3. join()"),
    Form("marks of a template", f"<|start_header_id|>assistant<|end_header_id|>\n\n{PLAN}<|eot_id|>"),
    Form("no join", BOTH, BOTH),
    Form("Finish()", PLAN.replace("join", "Finish")),
    Form("JOIN()", PLAN.replace("join", "JOIN")),
    Form("join without parentheses", PLAN.replace("join()", "join")),
    Form("join without a number", PLAN.replace("4. join()", "join()")),
    Form("join with results", PLAN.replace("join()", "join($1, $2, results=[$3])")),
    Form("names in capitals", PLAN.replace("search", "Search")),
    Form("an escaped underscore", "1. read\\_page('a')", "1. read_page('a')"),
    Form("reasoning", f"<think>\nI could use\n1. search('no')\n</think>\n\n{PLAN}"),
    Form("reasoning of another name", f"<reasoning>1. search('no')</reasoning>{PLAN}"),
    Form("reasoning in reasoning", f"<thinking>a <think>b</think>\n1. now()</thinking>\n{PLAN}"),
    Form("reasoning without its beginning", f"Okay, the user asks.\nSo I search.\n</think>\n\n{PLAN}"),
    Form("reasoning of Magistral", f"[THINK]1. search('no')[/THINK]{PLAN}"),
    Form(
        "reasoning of gpt-oss",
        f"<|channel|>analysis<|message|>1. now()<|end|><|start|>assistant<|channel|>final<|message|>{PLAN}<|return|>",
    ),
    Form("reasoning between calls", f"{SEARCH}\n<think>2. now()</think>\n{PLAN.partition(chr(10))[2]}"),
    Form("names of arguments", '1. search(query="a", limit=3)', '1. search(query="a", limit=3)'),
    Form("names with colons", '1. search(query: "a", limit: 3)', '1. search(query="a", limit=3)'),
    Form("names in quotes", '1. search("query": "a", "limit": 3)', '1. search(query="a", limit=3)'),
    Form("one object", '1. search({"query": "a", "limit": 3})', '1. search(query="a", limit=3)'),
    Form("one object over lines", '1. search({\n  "query": "a",\n})', '1. search(query="a")'),
    Form("an object as a value", '1. store({"value": 1})', '1. store({"value": 1})'),
    Form("a call over lines", '1. search(\n    "a",\n    limit=3,\n)', '1. search("a", limit=3)'),
    Form("German quotes", "1. search(„das „a“)", '1. search("das „a")'),
    Form("curly quotes", "1. search(“it's 3\" wide”, limit=3)", '1. search("it\'s 3\\" wide", limit=3)'),
    Form("single curly quotes", "1. search(‘a’)", '1. search("a")'),
    Form("French quotes", "1. search(«a»)", '1. search("a")'),
    Form("Asian quotes", "1. search(「a」)", '1. search("a")'),
    Form("backticks", "1. search(`a`)", '1. search("a")'),
    Form("three quotes", '1. search("""a "b" c""")', "1. search('a \"b\" c')"),
    Form("an empty text", '1. search("")', "1. search('')"),
    Form(
        "references in braces", "1. now()\n2. search(${1})\n3. search('${1}')", "1. now()\n2. search($1)\n3. search($1)"
    ),
    Form(
        "a reference at the end of a sentence", "1. now()\n2. search('it is $1.')", "1. now()\n2. search('it is ${1}.')"
    ),
    Form("text behind a reference", "1. now()\n2. search('${1}.txt')", "1. now()\n2. search('${1}.txt')"),
]
REFUSED = [
    Form("nothing but prose", "I will look up both areas and divide them.", "", "expected a line such as"),
    Form("steps in prose", "1. Search for Asia\n2. Search for Africa", "", "expected the name of a tool"),
    Form("a step in prose after calls", f"{SEARCH}\n2. Compare the results", SEARCH, "expected the name of a tool"),
    Form("steps in prose with a call", '1. Find Asia\n2. search("Africa")', "", "expected the name of a tool"),
    Form("an unknown tool", '1. lookup("Asia")', "", "no tool is named 'lookup'"),
    Form("an unknown tool without a number", f'{SEARCH}\nlookup("$1")', SEARCH, "expected a line such as"),
    Form("a call within a thought", f'{SEARCH}\nThought: now 2. search("b")\n3. join()', SEARCH, "within a thought"),
    Form("a call within the last thought", f'{SEARCH}\nThought: now 2. search("b")', SEARCH, "within a thought"),
    Form("a variable", 'asia = search("Asia")\nafrica = search("Africa")', "", "expected a line such as"),
    Form("another label", 'First: search("Asia")', "", "expected a line such as"),
    Form("a call in prose", 'Then 2. search("Asia") is done', "", "expected a line such as"),
    Form("square brackets", "#E1 = search[Asia]", "", "expected a line such as"),
    Form("a call that was commented out", f'{SEARCH}\n# 2. search("Africa")', SEARCH, "expected a line such as"),
    Form("JSON", '[{"id": 1, "tool": "search", "args": {"query": "Asia"}}]', "", "expected a line such as"),
    Form(
        "a tool call",
        '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>',
        "",
        "a line such as",
    ),
    Form("text without quotes", "1. search(Asia)", "", "Write text in quotes"),
    Form("words without quotes", "1. search(area of Asia)", "", "expected"),
    Form("an expression without quotes", "1. now()\n2. calculate($1 / 2)", "1. now()", "expected a comma"),
    Form("a sum of calls", '1. search("a") + search("b")', '1. search("a")', "expected the end of the line"),
    Form("a calculation behind a call", '1. calculate("3") - 2', '1. calculate("3")', "expected the end of the line"),
    Form("a part of a result", '1. search("a")[0]', '1. search("a")', "expected the end of the line"),
    Form("a condition", '1. search("a") if true', '1. search("a")', "expected the end of the line"),
    Form("two calls with and", '1. search("a") and search("b")', '1. search("a")', "expected the end of the line"),
    Form("a call in a comment", '1. search("a") # or search("b")', '1. search("a")', "expected the end of the line"),
    Form("a call in a call", "1. calculate(now())", "", "a result as $1"),
    Form("a formatted text", '1. now()\n2. search(f"{1}")', "1. now()", "got f, expected a value"),
    Form("a part of a result by name", '1. now()\n2. search("$1.area")', "1. now()", "results have no parts"),
    Form("a part of a result by place", '1. now()\n2. search("$1[0]")', "1. now()", "results have no parts"),
    Form("a bare part of a result", "1. now()\n2. search($1.area)", "1. now()", "expected a comma"),
    Form("a price", '1. now()\n2. search("below $1.50")', "1. now()", "$$ for a dollar sign"),
    Form("a number with leading zeros", "1. store(1,000)", "", "got 000, expected a value"),
    Form("other quotes at the end", '1. search("a”)\n2. search("b")', "", "expected a comma"),
    Form("a placeholder", "1. search(...)", "", "expected a value"),
    Form("reasoning without an end", f"<think>\nI could write\n{PLAN}", "", "the reasoning has no end"),
    Form("reasoning that ends after calls", f"{SEARCH}\nno.</think>\n{PLAN}", SEARCH, "reasoning ends after calls"),
    Form("an invented result", f"{SEARCH}\nObservation: 44\n2. calculate('44 / 2')", SEARCH, "come after the plan"),
    Form("an answer", "Answer: 44", "", "a plan has no answer"),
    Form(
        "another question", f"{SEARCH}\n\nQuestion: How old?\n1. search('age')", SEARCH, "expected the end of the plan"
    ),
    Form("the list of tools", "- search(query: string, limit: integer)", "", "got string, expected a value"),
]
FORMS = [*(Form(repr(form), line_by_line(form)) for form in NUMBERINGS), *WHOLE, *REFUSED]
