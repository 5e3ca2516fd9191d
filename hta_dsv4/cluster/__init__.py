"""Many traces read by many processes, here or on other machines; only tables come back."""
