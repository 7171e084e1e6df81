"""The loops of agents: LLMCompiler, ReAct, function calling; and one run's state."""
