"""What several commands use: the parser, common flags, options of a run, presenters, access."""
