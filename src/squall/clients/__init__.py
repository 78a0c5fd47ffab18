"""Protocol clients under test, one folder each."""
