"""Parts for compiled code: operators, and checks of misplaced readers."""
