"""OpenTelemetry metrics: `message`, sent `over_http` and `over_grpc`."""
