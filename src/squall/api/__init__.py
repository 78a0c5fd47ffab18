"""What an author imports. The lowest layer: it imports nothing else of Squall."""
