"""The gRPC client against a server of grpcio."""
