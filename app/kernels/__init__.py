"""How one operation runs on one kind of hardware."""
