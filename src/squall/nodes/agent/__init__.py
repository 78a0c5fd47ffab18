"""Store mode: agents that meet in a store and need no network between them."""
