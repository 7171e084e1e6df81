"""Bundle -> checkpoint: the weights of a decoder in the formats of other tools, where these hold them exactly."""
