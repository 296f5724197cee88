"""What a client does with what it receives: one file a method."""
