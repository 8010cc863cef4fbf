"""Is it an explanation? Attention beside importance, under tests that could show it is not."""
