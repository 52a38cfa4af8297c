"""Text as tokens: sources, corpora, blocks, batches of any table of rows."""
