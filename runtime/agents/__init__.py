"""Agent loops over the engines: LLMCompiler (thesis, chapter 6), ReAct, and function calling.

Read in this order: `tool`, `plan`, `plan_parser`, `call_scheduler`, `llm_compiler`.
"""
