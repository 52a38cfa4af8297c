"""Speed and memory beside other encoders."""
