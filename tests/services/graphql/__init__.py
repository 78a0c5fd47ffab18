"""The GraphQL clients against a server of graphql-core."""
