"""All protocol clients against the same misbehaving servers."""
