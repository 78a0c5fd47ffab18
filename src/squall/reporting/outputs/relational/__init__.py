"""Databases with tables: PostgreSQL, TimescaleDB, MySQL, MariaDB, SQLite. Start with `reporter`,
which all of them share; `schema` makes the statements, and each database is one file."""
