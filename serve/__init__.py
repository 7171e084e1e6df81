"""The OpenAI HTTP API over the runtime: decoders and encoders, batched continuously."""
