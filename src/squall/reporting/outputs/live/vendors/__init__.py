"""Services with an interface of their own, and annotations in Grafana."""
