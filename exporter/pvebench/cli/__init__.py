"""The roof: the only place that knows every concrete room."""
