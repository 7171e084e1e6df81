"""JSON schemas as grammars: what a schema allows, as sets of values, and the rules that write them."""
