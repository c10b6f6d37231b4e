"""Terminal output: the parser, the tracker of a terminal's state, widths and clean lines. No cells."""
