"""Speech recognisers whose graphs are traced from `transformers`: CTC heads over encoders of the waveform."""
