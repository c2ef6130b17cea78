"""Dead letters: how they are staged, read, marked and sent again. Every sink uses this."""
