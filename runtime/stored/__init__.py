"""Programs, checkpoints and artifacts as files: written whole, checked whole, trusted only where signed."""
