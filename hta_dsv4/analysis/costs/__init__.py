"""What a launch must at least move and compute, by family; nothing here looks at how long it took."""
