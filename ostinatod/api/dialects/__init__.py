"""What clients say, in the words of chat completions that the engine understands, and its answers in theirs."""
