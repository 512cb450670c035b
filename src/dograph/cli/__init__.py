"""The command line: one file a verb. Heavy imports wait until a verb needs them."""
