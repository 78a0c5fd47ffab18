"""One core whose peers are played by the test: `one_member`."""
