"""Speed and memory beside other encoders and language models."""
