"""Floor 3: the recorded program: operations with their rules and adjoints, the rewriter, and the text form."""
