"""What is measured inside models, and what is proved of them."""
