"""What is measured inside models."""
