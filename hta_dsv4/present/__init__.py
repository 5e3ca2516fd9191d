"""Tables -> people: text, figures, reports. Formats and never computes."""
