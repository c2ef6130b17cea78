"""What browsers and dashboards connect to, as ASGI applications."""
