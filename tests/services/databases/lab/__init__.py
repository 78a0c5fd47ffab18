"""What the tests of databases share."""
