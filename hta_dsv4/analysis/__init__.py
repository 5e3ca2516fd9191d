"""Tables in, tables out: one question per file, nothing printed."""
