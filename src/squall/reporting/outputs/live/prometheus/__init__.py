"""Prometheus: scraped (`scrape`), pushed to a gateway (`pushgateway`), written (`remote_write`)."""
